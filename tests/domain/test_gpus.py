import pytest

from nemo_jobs.domain.gpus import (
    Device,
    Holder,
    Look,
    Reserved,
    Source,
    Standing,
    Turn,
    parse_reserved,
    stock_of,
    turn,
    waiting_text,
    wanted,
)

WHOLE = (Device("0", "GPU-a", "0"), Device("1", "GPU-b", "1"), Device("2", "GPU-c", "2"))
PARTS = (
    Device("MIG-x", "MIG-x", "0:0"),
    Device("MIG-y", "MIG-y", "0:1"),
    Device("1", "GPU-b", "1"),
    Device("10", "GPU-k", "10"),
)


@pytest.mark.parametrize(
    ("executor", "number"),
    [
        ({"provider": "gpu"}, 1),
        ({"provider": "gpu", "resources": {"num_gpus": None}}, 1),
        ({"provider": "gpu", "resources": {"num_gpus": 3}}, 3),
        ({"provider": "gpu", "resources": {"num_gpus": 0}}, 0),
        ({"provider": "gpu", "resources": {"num_gpus": -2}}, 0),
        ({"provider": "gpu", "resources": {"num_gpus": 10**30}}, 2**31 - 1),
        ({"provider": "subprocess", "command": ["x"]}, 0),
        ({"provider": "subprocess", "resources": None}, 0),
        ({"provider": "subprocess", "resources": {"num_gpus": 2}}, 2),
        ({"provider": "cpu", "resources": {"num_gpus": 2}}, 0),
        ({"provider": "gpu_distributed", "resources": {"num_gpus": 2}}, 0),
    ],
)
def test_how_many_gpus_a_step_wants_of_a_pool(executor: dict, number: int) -> None:
    assert wanted(executor) == number


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("all", Reserved(True)),
        (" all ", Reserved(True)),
        ("none", Reserved(False)),
        ("", Reserved(False)),
        ("0,2", Reserved(False, ("0", "2"))),
        ("2, GPU-a", Reserved(False, ("2", "GPU-a"))),
    ],
)
def test_what_is_reserved_is_text(text: str, known: Reserved) -> None:
    assert parse_reserved(text) == known


def test_a_gpu_that_is_named_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="GPU 1 twice"):
        parse_reserved("0,1,1")


def ids(look: Look, text: str, count: int | None = None) -> list[str]:
    return [device.id for device in stock_of(look, parse_reserved(text), count).devices]


@pytest.mark.parametrize(
    ("found", "text", "expected"),
    [
        (WHOLE, "all", ["0", "1", "2"]),
        (WHOLE, "none", []),
        (WHOLE, "2,0", ["2", "0"]),
        (WHOLE, "0,7", ["0"]),
        (WHOLE, "GPU-b", ["GPU-b"]),
        (WHOLE, "1,GPU-b", ["1"]),  # the same card under two names
        (PARTS, "all", ["MIG-x", "MIG-y", "1", "10"]),
        (PARTS, "0", ["MIG-x", "MIG-y"]),
        (PARTS, "1", ["1"]),
        (PARTS, "MIG-y", ["MIG-y"]),
    ],
)
def test_the_pool_is_what_is_reserved_of_what_is_there(
    found: tuple[Device, ...], text: str, expected: list[str]
) -> None:
    assert ids(Look(found), text) == expected
    assert ids(Look(found), text, count=99) == expected  # whoever can be asked is asked


def test_missing_gpus_are_told_of() -> None:
    (note,) = stock_of(Look(WHOLE), parse_reserved("0,7,GPU-z"), None).notes
    assert note.endswith("names GPUs that are not there: 7, GPU-z; there are: 0, 1, 2")


def test_where_nobody_can_be_asked_a_count_or_names_count() -> None:
    away = Look(problem="no driver")
    assert ids(away, "all", 2) == ["0", "1"]
    assert ids(away, "1,5", 2) == ["1"]
    assert ids(away, "1,5") == ["1", "5"]
    assert ids(away, "GPU-a,1", 1) == ["GPU-a", "1"]
    nothing = stock_of(away, parse_reserved("all"), None)
    assert nothing.devices == () and nothing.source is Source.NOBODY
    assert "platform.docker.gpu_device_count" in nothing.notes[0]


@pytest.mark.parametrize(
    ("wants", "free", "possible", "gets"),
    [
        (1, 1, 4, Turn.SERVED),
        (4, 4, 4, Turn.SERVED),
        (2, 1, 4, Turn.WAITS),
        (4, 0, 4, Turn.WAITS),
        (5, 4, 4, Turn.PASSED),
        (1, 0, 0, Turn.PASSED),
    ],
)
def test_whose_turn_it_is(wants: int, free: int, possible: int, gets: Turn) -> None:
    assert turn(wants, free, possible) is gets


def test_a_sentence_names_only_some_holders_and_none_of_other_workspaces() -> None:
    holders = [Holder(f"lab/job-{n}/main", 1, 0, "lab") for n in range(7)]
    text = waiting_text(Standing(1, 0, 7, 2, 9, (), holders), "other")
    assert "job-" not in text and text.count("a step of another workspace") == 5 and "and 2 more" in text
    assert text.endswith("2 older requests for 9 GPUs are ahead of it")
    assert "lab/job-0/main (1 GPU since 1970-01-01T00:00:00Z)" in waiting_text(
        Standing(1, 0, 7, 0, 0, (), holders), "lab"
    )
