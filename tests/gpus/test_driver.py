"""What is made of the driver's answers, and of a driver that gives none."""

import sys
from pathlib import Path

import pytest

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.gpus import driver
from nemo_jobs.gpus.driver import CantAsk, Driver, load_binding
from tests.gpus.driver_stand_in import Card, StandIn


def made(*cards: Card) -> tuple[StandIn, Driver]:
    nvml = StandIn(list(cards))
    return nvml, Driver(ManualClock(), lambda: nvml)


def test_devices_with_all_that_is_known_of_them() -> None:
    _, asked = made(Card("GPU-a", pids=(9, 3)), Card("GPU-b", ecc=None, remapped=None, percent=None))
    look = asked.look()
    assert look.problem == ""
    first, second = look.devices
    assert (first.id, first.uuid, first.index, first.model) == ("0", "GPU-a", "0", "NVIDIA H200")
    assert (first.processes, first.use_percent, first.memory_used) == ((3, 9), 7, 1 << 30)
    assert (second.id, second.trouble, second.use_percent) == ("1", "", None)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (Card("GPU-a", ecc=2), "2 uncorrectable memory errors since the driver was loaded"),
        (Card("GPU-a", remapped=(0, 1, 0, 1)), "its memory has rows that could not be replaced"),
        (Card("GPU-a", lost=True), "it can't be asked: error 15"),
    ],
)
def test_devices_that_are_ill(card: Card, why: str) -> None:
    _, asked = made(card, Card("GPU-b"))
    ill, well = asked.look().devices
    assert (ill.id, ill.trouble) == ("0", why) and well.trouble == ""


def test_a_reported_fault_stays_unless_a_program_caused_it() -> None:
    nvml, asked = made(Card("GPU-a"), Card("GPU-b"))
    assert asked.look().devices[0].trouble == ""
    nvml.events = [(nvml.cards[0], 79), (nvml.cards[1], 31)]
    for _ in range(2):
        assert [device.trouble for device in asked.look().devices] == [
            "the driver reported fault Xid 79",
            "",
        ]


def test_parts_of_a_gpu_are_devices_of_their_own_and_share_its_fate() -> None:
    card = Card("GPU-a", ecc=1, parts=[Card("MIG-x", percent=None), Card("MIG-y", pids=(5,), percent=None)])
    _, asked = made(card, Card("GPU-b", parts=[]))
    first, second = asked.look().devices
    assert (first.id, first.index, first.uuid) == ("MIG-x", "0:0", "MIG-x")
    assert (second.id, second.index, second.processes) == ("MIG-y", "0:1", (5,))
    assert first.trouble and second.trouble


def test_a_driver_that_goes_is_told_of_and_asked_anew_when_it_comes_back() -> None:
    nvml, asked = made(Card("GPU-a"))
    asked.look()
    nvml.loaded = False
    assert asked.look().problem.startswith("the NVIDIA driver can't be asked")
    assert asked.look().problem.startswith("the NVIDIA driver can't be asked")
    nvml.loaded = True
    assert len(asked.look().devices) == 1 and nvml.inits == 2


def test_without_a_driver_the_binding_is_not_even_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libnvidia-none.so.1")
    before = "pynvml" in sys.modules
    look = Driver(ManualClock()).look()
    assert look.problem == "this host has no NVIDIA driver (libnvidia-none.so.1 is not there)"
    assert ("pynvml" in sys.modules) is before


def test_a_driver_without_its_binding_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", None)  # the program itself
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(CantAsk, match=r"pip install 'nemo-jobs\[gpu\]'"):
        load_binding()


def test_the_real_binding_has_all_that_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", None)
    binding = load_binding()
    names = [name for name in dir(StandIn) if name.lower().startswith("nvml")]
    assert len(names) > 20
    assert [name for name in names if not hasattr(binding, name)] == []
    for name in names:
        if isinstance(value := getattr(StandIn, name), int):
            assert getattr(binding, name) == value, name
    # On a machine without a driver the real one fails as the stand-in does.
    look = Driver(ManualClock()).look()
    assert look.devices or look.problem.startswith("the NVIDIA driver can't be asked")
