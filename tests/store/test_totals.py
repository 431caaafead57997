"""Totals of lists are exact, also where only the other jobs are counted."""

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.filters import parse_filter
from nemo_jobs.store import jobs
from nemo_jobs.store.jobs import JobQuery
from nemo_jobs.store.sql import Tx
from tests.store.kit import Store

COUNT, DAY = 20, 86_400 * 1_000_000
FIRST = 1_700_000_000 * 1_000_000


@pytest.fixture
async def daily(store: Store) -> Store:
    """Jobs of one each day in one workspace, and two early ones elsewhere."""

    def date(tx: Tx) -> None:
        for number in range(COUNT):
            at = {"at": FIRST + number * DAY, "name": f"j-{number}"}
            tx.count(sa.text("UPDATE job SET created_at = :at WHERE name = :name").bindparams(**at))
        tx.count(sa.text("UPDATE job SET created_at = 5 WHERE workspace = 'system'"))

    for number in range(COUNT):
        await store.create(f"j-{number}")
    for number in range(2):
        await store.create(f"early-{number}", workspace="system")
    await store.write(date)
    return store


@pytest.mark.parametrize("day", [-1, 0, 1, 3, COUNT // 2, COUNT - 2, COUNT - 1, COUNT])
@pytest.mark.parametrize("shift", [-1, 0, 1])
async def test_the_total_of_one_side_of_a_date_is_exact(daily: Store, day: int, shift: int) -> None:
    from datetime import UTC, datetime, timedelta

    value = FIRST + day * DAY + shift
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    made = [FIRST + number * DAY for number in range(COUNT)]
    for sign, meets in (
        (">", lambda at: at > value),
        (">=", lambda at: at >= value),
        ("<", lambda at: at < value),
        ("<=", lambda at: at <= value),
    ):
        where = parse_filter([("filter", f'created_at{sign}"{moment.isoformat()}"')])
        for workspace, there in (("default", made), (None, [*made, 5, 5]), ("system", [5, 5])):
            found, total, _ = await daily.read(jobs.list_jobs, JobQuery(workspace, where, page_size=100))
            assert total == len(found) == sum(map(meets, there)), (sign, workspace)


async def test_there_is_nothing_on_either_side_of_a_date_in_an_empty_workspace(store: Store) -> None:
    for sign in ("<", ">="):
        where = parse_filter([("filter", f'created_at{sign}"2024-01-01"')])
        assert (await store.read(jobs.list_jobs, JobQuery("default", where)))[1] == 0
