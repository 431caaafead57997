import pytest

from nemo_jobs.backends.api import Rejected
from nemo_jobs.backends.docker.quantities import bytes_of, nano_cpus, shm_of

MI, GI = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2Gi", 2 * GI),
        ("512Mi", 512 * MI),
        ("512m", 512 * MI),
        ("1g", GI),
        ("1GB", GI),
        ("1.5Gi", 3 * GI // 2),
        ("64Ki", 64 << 10),
        ("1e9", 10**9),
        (" 7 ", 7),
        (".5Ti", 1 << 39),
        ("100000000b", 10**8),
    ],
)
def test_memory(text: str, expected: int) -> None:
    assert bytes_of(text, "memory") == expected


@pytest.mark.parametrize(
    "text",
    ["", "many", "1X", "-1Gi", "0", "1e-3", "1e999Gi", "1e9999", "9e18Gi", "1 Gi Gi", "٣Gi", "NaN", "Gi"],
)
def test_what_is_no_amount_of_memory_is_told(text: str) -> None:
    with pytest.raises(Rejected, match="memory"):
        bytes_of(text, "memory")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", 2_000_000_000), ("2.5", 2_500_000_000), ("250m", 250_000_000), ("1e1", 10**10)],
)
def test_processors(text: str, expected: int) -> None:
    assert nano_cpus(text, "cpu") == expected


@pytest.mark.parametrize("text", ["", "all", "-1", "0", "0m", "1Gi", "1e99", "inf"])
def test_what_is_no_number_of_processors_is_told(text: str) -> None:
    with pytest.raises(Rejected, match="cpu"):
        nano_cpus(text, "cpu")


def test_shared_memory_follows_the_gpus_unless_it_is_asked_for() -> None:
    assert shm_of(None, 0) is None
    assert shm_of(None, 1) == 8 * GI
    assert shm_of(None, 3) == 24 * GI
    assert shm_of("1Gi", 3) == GI
    assert shm_of("512M", 0) == 512 * MI
