"""How far a pull is, from news as engines tell it."""

import pytest

from nemo_jobs.backends.docker.progress import Progress, size


def news(layer: str, status: str, current: int = 0, total: int = 0) -> dict[str, object]:
    detail = {"current": current, "total": total} if total or current else {}
    return {"id": layer, "status": status, "progressDetail": detail}


def test_a_pull_from_its_beginning_to_its_end() -> None:
    progress = Progress()
    assert str(progress) == "waiting for the registry"
    for one in (
        {"status": "Pulling from team/app", "id": "1"},
        news("a", "Already exists"),
        news("b", "Pulling fs layer"),
        news("c", "Pulling fs layer"),
        news("c", "Waiting"),
    ):
        progress.hear(one)
    assert (progress.done, progress.total) == (0, 0)
    progress.hear(news("b", "Downloading", 1_000_000, 4_000_000))
    assert str(progress) == "1.0 MB of 4.0 MB (25 %)"
    progress.hear(news("c", "Downloading", 2_000_000, 4_000_000))
    assert (progress.done, progress.total, str(progress)) == (3_000_000, 8_000_000, "3.0 MB of 8.0 MB (37 %)")
    progress.hear(news("b", "Verifying Checksum"))
    progress.hear(news("b", "Download complete"))
    assert progress.done == 6_000_000
    assert not progress.unpacking
    progress.hear(news("c", "Download complete"))
    assert progress.unpacking
    assert str(progress) == "unpacking, 0 of 2 layers are done"
    progress.hear(news("b", "Extracting", 1_000, 4_000_000))
    progress.hear(news("b", "Pull complete"))
    assert str(progress) == "unpacking, 1 of 2 layers are done"
    assert progress.done == progress.total == 8_000_000


def test_only_what_moves_changes_the_mark() -> None:
    progress = Progress()
    progress.hear(news("a", "Downloading", 10, 100))
    mark = progress.mark
    for status in ("Retrying in 5 seconds", "Waiting", "Pulling fs layer"):
        progress.hear(news("a", status))
        assert progress.mark == mark
    progress.hear(news("a", "Downloading", 11, 100))
    assert progress.mark != mark


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"id": 7, "status": "Downloading"},
        {"id": "a"},
        {"id": "a", "status": 7},
        {"id": "a", "status": "Downloading", "progressDetail": []},
        {"id": "a", "status": "Downloading", "progressDetail": {"current": -5, "total": "x"}},
        {"id": "a", "status": "Downloading", "progressDetail": {"current": None, "total": -1}},
    ],
)
def test_news_of_another_form_do_no_harm(said: dict[str, object]) -> None:
    progress = Progress()
    progress.hear(said)
    assert (progress.done, progress.total) == (0, 0)
    assert str(progress)


def test_an_image_of_endless_layers_is_bounded() -> None:
    progress = Progress()
    for number in range(5000):
        progress.hear(news(str(number), "Downloading", 1, 2))
    assert progress.total == 2000


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (123_456, "123 kB"),
        (1_500_000, "1.5 MB"),
        (12_345_678_901, "12.3 GB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_sizes(number: int, shown: str) -> None:
    assert size(number) == shown
