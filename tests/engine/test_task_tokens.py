"""The token of a task: one for each run, none without authentication."""

import sqlalchemy as sa

from nemo_jobs.backends.api import PlatformInfo
from nemo_jobs.engine.engine import Engine
from nemo_jobs.engine.options import Options
from nemo_jobs.store import tokens
from nemo_jobs.testing import FakeBackend
from tests.engine.bench import Bench, open_place

_ROWS = sa.text("SELECT attempt_id, principal FROM token")


class Watched(FakeBackend):
    """Remembers the plans that it is given."""

    def __init__(self, *given):
        super().__init__(*given)
        self.plans = []

    async def submit(self, plan):
        self.plans.append(plan)
        return await super().submit(plan)


class Guarded(Bench):
    """A bench whose engine makes tokens, if it is told to."""

    task_tokens = True

    async def start(self, backends=None):
        place = self.place
        options = Options(
            host="here",
            owner="one",
            token="token-1",
            platform=PlatformInfo({"base": "http://127.0.0.1:1"}),
            log_limit=place.log_limit,
            task_tokens=self.task_tokens,
        )
        self.backend = Watched(place.clock, place.world)
        self.engine = Engine(self.db, place.profiles, {"subprocess": self.backend}, place.clock, options)
        await self.engine.start()
        return self.engine

    async def rows(self):
        return await self.db.read(lambda tx: tx.run(_ROWS))


async def test_each_run_has_a_token_that_ends_with_the_attempt(tmp_path):
    bench = Guarded(await open_place(f"{tmp_path}/jobs.db"))
    await bench.start()
    try:
        await bench.create("moth", {}, {"FAKE_RUN_SECONDS": "5"})
        await bench.until("moth", "active")
        while len(bench.backend.plans) < 2:
            await bench.move(0.01)
        one, two = (plan.token for plan in bench.backend.plans)
        assert one != two
        assert one not in repr(bench.backend.plans[0])
        job = await bench.job("moth")
        assert {tuple(row) for row in await bench.rows()} == {(job.attempt_id, "task:moth")}
        found = await bench.db.read(tokens.find, tokens.hash_of(two))
        assert found and found.task and found.task.job == "moth"
        await bench.move_until("moth", "completed")
        found = await bench.db.read(tokens.find, tokens.hash_of(two))
        assert found and found.task is None
    finally:
        await bench.close()


async def test_a_start_that_is_tried_again_keeps_its_token(tmp_path):
    bench = Guarded(await open_place(f"{tmp_path}/jobs.db"))
    await bench.start()
    try:
        await bench.create("moth", {"FAKE_SUBMIT_ERROR": "unavailable:3", "FAKE_RUN_SECONDS": "5"})
        await bench.move_until("moth", "active", step=6.0)
        assert len(bench.backend.plans) >= 4
        assert len({plan.token for plan in bench.backend.plans}) == 1
        assert len(await bench.rows()) == 1
    finally:
        await bench.close()


async def test_without_authentication_there_are_none(tmp_path):
    bench = Guarded(await open_place(f"{tmp_path}/jobs.db"))
    bench.task_tokens = False
    await bench.start()
    try:
        await bench.create("moth")
        await bench.until("moth", "completed")
        assert [plan.token for plan in bench.backend.plans] == [""]
        assert await bench.rows() == []
    finally:
        await bench.close()
