"""The short form of the storm; `make test-storm` is the long one."""

import random
from pathlib import Path

import pytest

from tests.storm.docker_storm import docker_storm
from tests.storm.setting import storm_on


@pytest.mark.storm
@pytest.mark.time_limit(180)
@pytest.mark.parametrize(("database", "services"), [("sqlite", 1), ("postgresql", 2)])
def test_c024_c026_c029_kill_9_loses_doubles_and_strands_nothing(
    database: str, services: int, tmp_path: Path
) -> None:
    with storm_on(database, tmp_path, random.randrange(10**6), services) as storm:
        report = storm.run(8, settle=60)
    assert not report.problems, f"\n{report}"
    assert report.jobs.total() > 50


@pytest.mark.storm
@pytest.mark.time_limit(240)
def test_c024_c051_kills_of_service_and_engine_lose_double_and_strand_no_container(tmp_path: Path) -> None:
    with docker_storm(tmp_path, random.randrange(10**6)) as storm:
        report = storm.run(6, settle=90)
    assert not report.problems, f"\n{report}"
    assert report.jobs.total() > 10
