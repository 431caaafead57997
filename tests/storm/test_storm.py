"""The short form of the storm; `make test-storm` is the long one, with containers as well."""

import random
from pathlib import Path

import pytest

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
