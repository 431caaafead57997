"""Runs get the values of secrets, and what they write is stored without them."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.domain.secrets import Reference
from nemo_jobs.domain.states import Trigger
from nemo_jobs.engine import hidden
from nemo_jobs.secret_store import open_secrets
from nemo_jobs.store import jobs, logs, secrets
from nemo_jobs.store.secret_rows import SecretRows
from nemo_jobs.testing import FakeBackend
from nemo_jobs.vault.masking import Masks
from nemo_jobs.vault.secrets import Secrets
from tests.engine.bench import WORKSPACE, Bench, details, open_place

CLEAR = "hunter22-in-clear"
TOKEN = {"name": "TOKEN", "from_secret": {"name": "token"}}


class Life:
    """A place with secrets; the vault is opened anew with each start of the service."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.folder = bench, folder
        self.given: dict[str, dict[str, str]] = {}

    @property
    def vault(self) -> Secrets:
        assert self.bench.place.secrets is not None
        return self.bench.place.secrets

    async def start(self) -> None:
        place = self.bench.place
        place.secrets = await open_secrets(self.folder, place.db, place.clock, {})
        await self.bench.start()

    async def crash(self) -> None:
        await self.bench.crash()
        await self.vault.aclose()

    async def put(self, name: str, value: str) -> None:
        at = Reference(WORKSPACE, name)

        async def store(sealed):
            return await self.bench.db.write(secrets.create_secret, at, None, sealed, 1, "me")

        await self.vault.storing(("secret", *at), value, store)

    async def change(self, name: str, value: str) -> None:
        at = Reference(WORKSPACE, name)

        async def store(sealed):
            return await self.bench.db.write(secrets.update_secret, at, {}, sealed, 1, "me")

        await self.vault.storing(("secret", *at), value, store)

    async def create(self, name: str, *variables, **script: str) -> None:
        environment = [{"name": key, "value": value} for key, value in script.items()]
        await self.bench.create(name, {}, environment=[*environment, *(variables or (TOKEN,))])

    def writes(self, text: str) -> None:
        """The only work writes something more."""
        (work,) = self.bench.place.world.works.values()
        work.script = {**work.script, "FAKE_OUTPUT": work.script.get("FAKE_OUTPUT", "") + text}

    def ends(self, code: int = 0) -> None:
        (work,) = self.bench.place.world.works.values()
        work.script = {**work.script, "FAKE_RUN_SECONDS": "0", "FAKE_EXIT_CODE": str(code)}
        self.bench.place.world.tick(self.bench.place.clock.now())

    async def lines(self, name: str) -> list[str]:
        job = await self.bench.job(name)
        found, _, _ = await self.bench.db.read(
            logs.page, job.attempt_id, logs.LogFilter(None, None), 0, 10000
        )
        return [line.text for line in found]

    async def until_lines(self, name: str, *wanted: str) -> None:
        async with asyncio.timeout(10):
            while await self.lines(name) != list(wanted):
                await asyncio.sleep(0.005)

    async def until_read(self) -> str:
        """The stored position of the only step, once all that was written has been read."""
        (work,) = self.bench.place.world.works.values()
        size = len(work.script["FAKE_OUTPUT"].encode())
        async with asyncio.timeout(10):
            while True:
                rows = await self.bench.db.read(lambda tx: tx.run(sa.text("SELECT log_cursor FROM step")))
                if rows and rows[0][0] and json.loads(rows[0][0])["at"].get("stdout") == size:
                    return rows[0][0]
                await asyncio.sleep(0.005)

    async def runs(self) -> int:
        return len(await self.bench.db.read(lambda tx: tx.run(sa.text("SELECT run FROM run_secret"))))


@pytest.fixture
async def life(tmp_path, monkeypatch) -> AsyncIterator[Life]:
    bench = Bench(await open_place(f"{tmp_path}/nemo-jobs.db"))
    made = Life(bench, tmp_path)
    real = FakeBackend.submit

    async def submit(self, plan):
        handle = await real(self, plan)
        made.given[plan.job] = dict(plan.secret_env)
        return handle

    monkeypatch.setattr(FakeBackend, "submit", submit)
    await made.start()
    yield made
    await made.vault.aclose()
    await bench.close()


async def test_a_run_is_given_its_values_and_its_output_is_stored_without_them(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.put("pin", "123")
    encoded = base64.b64encode(b"user:" + CLEAR.encode()).decode()
    await life.create(
        "moth",
        *(TOKEN, {"name": "PIN", "from_secret": {"name": "default/pin"}}),
        FAKE_OUTPUT=f"{CLEAR} 123\nbasic {encoded}\n",
        FAKE_ERROR_OUTPUT=f"no line feed {CLEAR}",
    )
    await life.bench.until("moth", "completed")
    assert life.given["moth"] == {"TOKEN": CLEAR, "PIN": "123"}
    lines = await life.lines("moth")
    assert sorted(lines) == sorted(
        ["*** 123", lines[1] if "basic" in lines[1] else lines[-1], "no line feed ***"]
    )
    assert any(line.startswith("basic ") and "***" in line and len(line) < 20 for line in lines)
    async with asyncio.timeout(5):
        while await life.runs():
            await asyncio.sleep(0.005)


async def test_a_step_without_secrets_has_no_mask_at_all(life: Life, monkeypatch) -> None:
    monkeypatch.setattr(hidden, "Masks", None)
    monkeypatch.setattr(SecretRows, "run", None)
    monkeypatch.setattr(SecretRows, "forget_runs", None)
    await life.bench.create("moth", {"FAKE_OUTPUT": f"{CLEAR}\n"})
    await life.bench.until("moth", "completed")
    assert await life.lines("moth") == [CLEAR]


async def test_c064_a_secret_that_went_before_the_start_ends_the_step_and_names_it(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.bench.db.write(secrets.delete_secret, WORKSPACE, "token")
    await life.create("moth")
    job = await life.bench.until("moth", "error")
    assert job.reason == "secret_missing"
    assert "secret 'default/token' of variable TOKEN does not exist" in job.message
    assert not life.bench.place.world.works
    assert "default/token" in details(job.error_details)["message"]


async def test_c064_a_value_that_cannot_be_decrypted_ends_the_step_too(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.bench.db.write(lambda tx: tx.count(sa.text("UPDATE secret SET value = '1.AAAA'")))
    await life.create("moth")
    job = await life.bench.until("moth", "error")
    assert "can't be decrypted" in job.message
    assert not life.bench.place.world.works


async def test_a_database_that_is_away_is_waited_for(life: Life, monkeypatch) -> None:
    await life.put("token", CLEAR)
    real, tries = SecretRows.secrets, []

    async def away(self, wanted):
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("the database is away", retry_after=0.01)
        return await real(self, wanted)

    monkeypatch.setattr(SecretRows, "secrets", away)
    await life.create("moth")
    await life.bench.move_until("moth", "completed", step=0.1)
    assert life.given["moth"] == {"TOKEN": CLEAR}


async def test_a_read_that_hangs_is_given_up_and_tried_again(life: Life, monkeypatch) -> None:
    await life.put("token", CLEAR)
    monkeypatch.setattr(hidden, "RESOLVE_SECONDS", 0.05)
    real, tries = SecretRows.secrets, []

    async def hang(self, wanted):
        tries.append(1)
        if len(tries) == 1:
            await asyncio.sleep(60)
        return await real(self, wanted)

    monkeypatch.setattr(SecretRows, "secrets", hang)
    await life.create("moth")
    async with asyncio.timeout(5):
        while (job := await life.bench.job("moth")).reason != "secrets_unavailable":
            await asyncio.sleep(0.005)
    assert "could not be read within" in job.message
    await life.bench.move_until("moth", "completed")


async def test_after_a_restart_the_masks_are_there_before_a_line_is_stored(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT=f"one {CLEAR}\ntwo {CLEAR[:9]}")
    await life.bench.until("moth", "active")
    await life.until_lines("moth", "one ***")
    position = await life.until_read()
    # Half a value waits for the rest of its line: not even that is stored in clear.
    assert "sealed" not in position
    for text in (
        CLEAR[:9],
        base64.b64encode(CLEAR[:9].encode()).decode(),
        base64.b64encode(b"two ").decode()[:5],
    ):
        assert text not in position
    await life.crash()
    # It was changed and deleted meanwhile: the run still has the value it was started with.
    await life.bench.db.write(secrets.delete_secret, WORKSPACE, "token")
    life.writes(f"{CLEAR[9:]} three\n{CLEAR}\n")
    await life.start()
    await life.until_lines("moth", "one ***", "two *** three", "***")
    life.ends()
    await life.bench.until("moth", "completed")


async def test_a_changed_secret_is_still_masked_by_its_old_value_while_a_run_has_it(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT="begin\n")
    await life.bench.until("moth", "active")
    await life.change("token", "another-value")
    await life.crash()
    await life.start()
    life.writes(f"{CLEAR} another-value\n")
    await life.until_lines("moth", "begin", "*** another-value")


async def test_the_key_is_changed_while_a_step_waits_and_one_runs(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT=f"x {CLEAR[:6]}")
    await life.bench.until("moth", "active")
    await life.until_read()
    assert (await life.vault.rotate()).changed == 2  # the secret, and what the run was given
    life.writes(f"{CLEAR[6:]}\n")
    await life.until_lines("moth", "x ***")
    life.writes(f"y {CLEAR[:6]}")
    await life.until_read()
    await life.vault.rotate()
    await life.crash()
    await life.start()
    life.writes(f"{CLEAR[6:]}\n")
    await life.until_lines("moth", "x ***", "y ***")
    await life.create("wasp", FAKE_OUTPUT=f"{CLEAR}\n")
    await life.bench.until("wasp", "completed")
    assert await life.lines("wasp") == ["***"]


async def test_without_the_values_of_a_run_its_output_is_withheld(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT="begin\n")
    await life.bench.until("moth", "active")
    await life.until_lines("moth", "begin")
    await life.crash()
    await life.bench.db.write(lambda tx: tx.count(sa.text("DELETE FROM run_secret")))
    life.writes(f"{CLEAR}\n")
    await life.start()
    async with asyncio.timeout(5):
        while len(lines := await life.lines("moth")) < 2:
            await asyncio.sleep(0.005)
    assert lines[0] == "begin"
    assert "this output is withheld" in lines[1]
    life.writes(f"{CLEAR}\n")
    life.ends(3)
    await life.bench.until("moth", "error")
    assert len(await life.lines("moth")) == 2


async def test_error_texts_that_come_from_output_are_masked(life: Life, monkeypatch) -> None:
    await life.put("token", CLEAR)
    import dataclasses

    real = FakeBackend.observe

    async def observe(self, handles):
        seen = await real(self, handles)
        return {
            key: dataclasses.replace(
                found,
                tasks=tuple(
                    dataclasses.replace(task, error_stack=f"{CLEAR[-8:]} cut\nlast {CLEAR}")
                    for task in found.tasks
                ),
            )
            for key, found in seen.items()
        }

    monkeypatch.setattr(FakeBackend, "observe", observe)
    await life.create("moth", FAKE_EXIT_CODE="3")
    await life.bench.until("moth", "error")
    ((_, (task,)),) = (await life.bench.db.read(jobs.status_tree, WORKSPACE, "moth")).steps
    assert task.error_stack == "*** cut\nlast ***"


async def test_a_refusal_that_would_show_a_value_is_masked(life: Life, monkeypatch) -> None:
    await life.put("token", CLEAR)

    async def submit(self, plan):
        from nemo_jobs.backends.api import Rejected

        raise Rejected(f"no program in {plan.secret_env['TOKEN']}/bin")

    monkeypatch.setattr(FakeBackend, "submit", submit)
    await life.create("moth")
    job = await life.bench.until("moth", "error")
    assert job.message == "step-0: no program in ***/bin"
    assert CLEAR not in str(job)


async def test_a_log_without_line_feeds_and_with_redraws_shows_no_part_of_a_value(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT=f"10% {CLEAR}\r20% {CLEAR[:8]}")
    await life.bench.until("moth", "active")
    position = await life.until_read()
    assert not Masks([CLEAR]).hide(position.encode()).count(b"***")
    await asyncio.sleep(1.1)  # a redraw that stands is stored once a second
    life.writes(f"{CLEAR[8:]}\r30%\n")
    life.ends()
    await life.bench.until("moth", "completed")
    for line in await life.lines("moth"):
        assert CLEAR[:5] not in line, line


async def test_a_paused_step_forgets_what_it_was_given_and_gets_it_anew(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever")
    await life.bench.until("moth", "active")
    assert await life.runs() == 1
    await life.bench.ask("moth", Trigger.PAUSE)
    await life.bench.until("moth", "paused")
    async with asyncio.timeout(5):
        while await life.runs():
            await asyncio.sleep(0.005)
    await life.change("token", "another-value")
    await life.bench.ask("moth", Trigger.RESUME)
    await life.bench.until("moth", "active")
    assert life.given["moth"] == {"TOKEN": "another-value"}


async def test_values_that_no_program_could_be_started_with_end_the_step(life: Life) -> None:
    variables = []
    for n in range(17):
        await life.put(f"token-{n}", "x" * 65536)
        variables.append({"name": f"V{n}", "from_secret": {"name": f"token-{n}"}})
    await life.create("moth", *variables)
    job = await life.bench.until("moth", "error")
    assert "1114112 bytes together" in job.message
    assert not life.bench.place.world.works


async def test_unfinished_lines_of_withheld_output_are_not_shown_either(life: Life) -> None:
    await life.put("token", CLEAR)
    await life.create("moth", FAKE_RUN_SECONDS="forever", FAKE_OUTPUT=f"half {CLEAR[:9]}")
    await life.bench.until("moth", "active")
    await life.until_read()
    await life.crash()
    await life.bench.db.write(lambda tx: tx.count(sa.text("DELETE FROM run_secret")))
    await life.start()
    life.writes(CLEAR[9:])
    life.ends()
    await life.bench.until("moth", "completed")
    (line,) = await life.lines("moth")
    assert "withheld" in line
