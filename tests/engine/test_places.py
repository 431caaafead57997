"""Who gets a place, and when somebody has to look for those that wait."""

import pytest

from nemo_jobs.domain.profiles import Profile, SubprocessConfig
from nemo_jobs.engine.places import CROWD, IN_A_CROWD, Places

CORES = 2


class Opened:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def profile_of(places: int) -> Profile:
    config = SubprocessConfig.model_validate({"max_concurrent": places})
    return Profile("subprocess", "default", "subprocess", config)


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def places(opened: Opened) -> Places:
    return Places(CORES, opened)


def looked(places: Places, profile: Profile) -> None:
    places.looking()
    places.looked(profile, more=False)


def test_nothing_is_reserved_before_the_first_look(places: Places) -> None:
    profile = profile_of(2)
    arrival = places.arrive(profile)
    assert not arrival.reserved
    places.arrived(arrival)
    assert places.may_wait(profile)


def test_a_reserved_place_counts_until_it_is_taken_and_given_back(places: Places, opened: Opened) -> None:
    profile = profile_of(2)
    looked(places, profile)
    first = places.arrive(profile)
    assert first.reserved and places.free(profile) == 1
    places.arrived(first)
    places.take(profile)
    assert places.free(profile) == 1
    places.give_back(profile)
    assert places.free(profile) == 2
    assert opened.times == 0 and not places.may_wait(profile)


def test_a_refused_creation_leaves_its_place(places: Places) -> None:
    profile = profile_of(1)
    looked(places, profile)
    places.arrived(places.arrive(profile))
    assert places.arrive(profile).reserved


def test_who_comes_when_all_is_taken_waits_and_others_wait_behind(places: Places, opened: Opened) -> None:
    profile = profile_of(1)
    looked(places, profile)
    assert places.arrive(profile).reserved
    assert not places.arrive(profile).reserved
    places.take(profile)
    places.give_back(profile)
    assert opened.times == 1
    # The place is free, and still the next one must not pass the one that waits.
    assert not places.arrive(profile).reserved
    assert places.may_wait(profile) and places.some_full


def test_what_is_told_during_a_look_counts_for_the_next(places: Places) -> None:
    profile = profile_of(4)
    places.looking()
    places.look_everywhere()
    places.looked(profile, more=False)
    assert places.may_wait(profile) and not places.arrive(profile).reserved


def test_in_a_crowd_few_are_started_and_the_rest_when_it_has_gone(places: Places, opened: Opened) -> None:
    profile = profile_of(100)
    looked(places, profile)
    arrivals = [places.arrive(profile) for _ in range(CROWD + 20)]
    reserved = [arrival for arrival in arrivals if arrival.reserved]
    assert len(reserved) == CROWD - 1  # those that came before it was one
    assert places.free(profile) == IN_A_CROWD * CORES - len(reserved)
    for arrival in arrivals:
        places.arrived(arrival)
    assert opened.times == 1 and places.free(profile) == 100
