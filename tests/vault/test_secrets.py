"""The vault over real databases: one service, several, a change of the key under way."""

import asyncio
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.model import Conflict, NotFound, Unavailable
from nemo_jobs.domain.secrets import KeyState, Reference, Sealed, SealedRow
from nemo_jobs.store import secret_keys, secrets, workspaces
from nemo_jobs.store.db import Database
from nemo_jobs.store.secret_rows import SecretRows
from nemo_jobs.store.sql import Tx
from nemo_jobs.vault import rotation
from nemo_jobs.vault.keyring import WrongKey
from nemo_jobs.vault.keys import Key, Keys
from nemo_jobs.vault.secrets import SecretMissing, Secrets

CLEAR = "hunter22-in-clear"


@dataclass
class Service:
    """The secrets of one service: its database connection and its data directory."""

    db: Database
    secrets: Secrets
    keys: Keys
    clock: ManualClock = field(default_factory=ManualClock)

    async def put(self, name, value=CLEAR, workspace="default"):
        at = Reference(workspace, name)

        async def store(sealed):
            return await self.db.write(secrets.create_secret, at, None, sealed, self.clock.now(), "me")

        return await self.secrets.storing(("secret", *at), value, store)

    async def get(self, name, workspace="default"):
        return await self.secrets.reveal(Reference(workspace, name))

    async def state(self) -> KeyState:
        found = await self.db.read(secret_keys.key_state)
        assert found is not None
        return found


@pytest.fixture
async def services(url, tmp_path):
    """Makes services of one database; those of one `home` share a data directory."""
    opened: list[Service] = []
    shared: list[Database] = []

    async def make(home="a", given=None, start=True) -> Service:
        if url.startswith("sqlite") and shared:
            db = shared[0]  # one process, one connection: services of it differ in their keys alone
        else:
            db = Database.open(url)
            await db.start()
            shared.append(db)
            await db.write(workspaces.ensure_defaults, 1)
        (tmp_path / home).mkdir(exist_ok=True)
        keys = Keys(tmp_path / home / "secrets.key", given)
        clock = ManualClock()
        service = Service(db, Secrets(SecretRows(db), keys, clock), keys, clock)
        opened.append(service)
        if start:
            await service.secrets.start()
            db.on_wake(service.secrets.woken)
        return service

    yield make
    for service in opened:
        await service.secrets.aclose()
    for db in shared:
        await db.aclose()


async def settled(service):
    while service.secrets._tasks:
        await asyncio.gather(*service.secrets._tasks)


async def test_a_value_comes_back_and_is_nowhere_in_clear(services, tmp_path):
    one = await services()
    assert not one.keys.path.exists()
    await one.put("token")
    assert one.keys.path.exists()
    assert await one.get("token") == CLEAR
    with pytest.raises(NotFound, match="no secret 'other' in workspace 'default'"):
        await one.get("other")
    again = await services()
    assert await again.get("token") == CLEAR
    rows = await one.db.read(lambda tx: tx.run(sa.text("SELECT * FROM secret")))
    assert CLEAR not in repr(rows)


async def test_a_ciphertext_that_was_moved_to_another_name_does_not_open(services):
    one = await services()
    await one.put("mine", "value-of-mine")
    await one.put("yours", "value-of-yours")
    move = "UPDATE secret SET value = (SELECT value FROM secret WHERE name = 'mine') WHERE name = 'yours'"
    await one.db.write(lambda tx: tx.count(sa.text(move)))
    with pytest.raises(SecretMissing, match="changed or moved"):
        await one.get("yours")


async def test_a_service_with_another_key_refuses_to_start_and_says_what_to_do(services, tmp_path):
    one = await services("a")
    await one.put("token")
    other = await services("b", start=False)
    with pytest.raises(WrongKey, match=r"copy secrets.key from a service that has it.*b/secrets.key"):
        await other.secrets.start()
    wrong = await services("c", given=Key.new().text(), start=False)
    with pytest.raises(WrongKey):
        await wrong.secrets.start()
    right = await services("d", given=one.keys.load()[0].text())
    assert await right.get("token") == CLEAR


async def test_two_services_that_need_a_first_key_at_once_agree_on_one(services):
    many = [await services(home) for home in "abcd"]
    ends = await asyncio.gather(
        *(service.put(f"token-{n}") for n, service in enumerate(many)), return_exceptions=True
    )
    stored = [n for n, end in enumerate(ends) if not isinstance(end, BaseException)]
    assert stored
    state = await many[0].state()
    for n, end in enumerate(ends):
        if n in stored:
            assert await many[n].get(f"token-{n}") == CLEAR
            assert many[n].keys.load()[0].id == state.key
        else:
            assert isinstance(end, WrongKey)
            assert many[n].keys.load() == ()  # no key is left that nothing was encrypted with
            assert many[n].secrets.problem


async def test_a_run_keeps_the_values_it_was_started_with(services):
    one = await services()
    await one.put("token", "first-value")
    await _step(one.db)
    wanted = {"TOKEN": Reference("default", "token")}
    assert await one.secrets.values_of("nj-x-1") is None
    assert await one.secrets.resolve("nj-x-1", "step-x", wanted) == {"TOKEN": "first-value"}
    await one.db.write(secrets.delete_secret, "default", "token")
    assert await one.secrets.resolve("nj-x-1", "step-x", wanted) == {"TOKEN": "first-value"}
    assert await (await services()).secrets.values_of("nj-x-1") == {"TOKEN": "first-value"}
    with pytest.raises(SecretMissing, match="'default/token' of variable TOKEN does not exist"):
        await one.secrets.resolve("nj-x-2", "step-x", wanted)
    await one.secrets.forget("step-x")
    async with asyncio.timeout(5):  # it need not survive a crash, so it is not waited for
        while await one.secrets.values_of("nj-x-1") is not None:
            await asyncio.sleep(0.01)


async def test_what_a_crash_left_of_ended_runs_goes_with_the_next_start(services):
    one = await services()
    await one.put("token")
    await _step(one.db)
    await one.secrets.resolve("nj-x-1", "step-x", {"TOKEN": Reference("default", "token")})
    assert await (await services()).secrets.values_of("nj-x-1")
    await one.db.write(lambda tx: tx.count(sa.text("UPDATE step SET state = 'completed'")))
    assert await (await services()).secrets.values_of("nj-x-1") is None


async def test_the_key_is_changed_while_values_are_read_written_and_run(services, monkeypatch):
    monkeypatch.setattr(rotation, "BATCH", 7)
    one = await services("a")
    await one.put("token-0", f"{CLEAR}-0")
    other = await _copy(services, one, "b")
    for n in range(1, 40):
        await one.put(f"token-{n}", f"{CLEAR}-{n}")
    await _step(one.db)
    await one.secrets.resolve("nj-x-1", "step-x", {"T": Reference("default", "token-1")})
    before = await one.state()
    stop = asyncio.Event()

    async def work(service, start):
        n = start
        while not stop.is_set():
            await service.put(f"token-{n}", f"{CLEAR}-{n}")
            assert await service.get(f"token-{n - 1 if n > start else 0}")
            assert await service.secrets.values_of("nj-x-1") == {"T": f"{CLEAR}-1"}
            n += 1
        return n

    workers = [asyncio.create_task(work(one, 1000)), asyncio.create_task(work(other, 2000))]
    await asyncio.sleep(0.05)
    done = await one.secrets.rotate()
    stop.set()
    ends = await asyncio.gather(*workers)
    assert done.finished
    assert done.changed >= 41
    after = await one.state()
    assert after.key == done.key_id != before.key
    assert after.old is None
    for n in (*range(40), *range(1000, ends[0]), *range(2000, ends[1])):
        assert await one.get(f"token-{n}") == await other.get(f"token-{n}") == f"{CLEAR}-{n}"
    assert await one.db.read(secret_keys.count_stale, after.key) == 0
    # Each has the new key in its own file, in front of the old one.
    assert [key.id for key in one.keys.load()] == [after.key, before.key]
    assert [key.id for key in other.keys.load()] == [after.key, before.key]


async def test_a_service_that_was_away_takes_the_new_key_over_for_a_day(services):
    one = await services("a")
    await one.put("token")
    away, late = await _copy(services, one, "b", start=False), await _copy(services, one, "c", start=False)
    await one.secrets.rotate()
    await away.secrets.start()
    assert await away.get("token") == CLEAR
    one.clock.advance(rotation.HANDED_OVER + 1)
    tidying = Secrets(SecretRows(one.db), one.keys, one.clock)
    await tidying.start()
    while tidying._tasks:
        await asyncio.gather(*tidying._tasks)
    assert await one.state() == KeyState((await one.state()).key)
    with pytest.raises(WrongKey):
        await late.secrets.start()


async def test_a_key_that_became_known_is_changed_without_handing_the_new_one_over(services):
    one = await services("a")
    await one.put("token")
    thief = await _copy(services, one, "b", start=False)
    done = await one.secrets.rotate(hand_over=False)
    assert done.finished
    assert (await one.state()).wrapped is None
    with pytest.raises(WrongKey):
        await thief.secrets.start()


async def test_a_service_that_shares_the_directory_reads_the_new_key_there(services):
    one, two = await services("a"), await services("a")
    await one.put("token")
    await one.secrets.rotate(hand_over=False)
    assert await two.get("token") == CLEAR
    await two.put("more")
    assert await one.get("more") == CLEAR


async def test_a_key_of_the_environment_is_changed_by_putting_the_new_one_in_front(services, tmp_path):
    old, new = Key.new().text(), Key.new().text()
    one = await services("a", given=old)
    await one.put("token")
    with pytest.raises(Conflict, match="NHX_SECRETS_KEY"):
        await one.secrets.rotate()
    two = await services("a", given=f"{new},{old}")
    assert await two.get("token") == CLEAR
    done = await two.secrets.rotate()
    assert done.finished
    assert done.changed == 1
    three = await services("a", given=new)
    assert await three.get("token") == CLEAR
    assert not one.keys.path.exists()


class Crash(Exception):
    """The service ends here."""


@pytest.mark.parametrize("at", ["key written", "key named", "batch stored", "before the end"])
async def test_a_rotation_that_a_crash_interrupted_goes_on_with_the_next_start(services, monkeypatch, at):
    monkeypatch.setattr(rotation, "BATCH", 3)
    one = await services()
    for n in range(10):
        await one.put(f"token-{n}", f"{CLEAR}-{n}")
    before = await one.state()
    rows = one.secrets._rows
    name = {
        "key written": "change",
        "key named": "stale",
        "batch stored": "reseal",
        "before the end": "finish",
    }[at]
    real = getattr(SecretRows, name)

    async def crash(self, *args):
        if at == "batch stored":
            await real(self, *args)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(SecretRows, name, crash)
        with pytest.raises(Crash):
            await one.secrets.rotate()
    assert rows is not None
    again = await services()
    for n in range(10):
        assert await again.get(f"token-{n}") == f"{CLEAR}-{n}"
    await again.put("more")
    await asyncio.gather(*[task for task in again.secrets._tasks if "go_on" in repr(task)])
    async with asyncio.timeout(10):
        while at != "key written" and (await again.state()).old is not None:
            await asyncio.sleep(0.01)
    if at == "key written":
        assert (await again.state()).key == before.key
        assert (await again.secrets.rotate()).finished
    after = await again.state()
    assert after.key != before.key
    assert await again.db.read(secret_keys.count_stale, after.key) == 0
    last = await services()
    for n in range(10):
        assert await last.get(f"token-{n}") == f"{CLEAR}-{n}"


async def test_two_rotations_at_once_are_one_after_the_other_or_refused(services):
    one = await services("a")
    await one.put("token")
    two = await _copy(services, one, "b")
    ends = await asyncio.gather(one.secrets.rotate(), two.secrets.rotate(), return_exceptions=True)
    assert all(isinstance(end, rotation.Rotation | Conflict) for end in ends), ends
    assert await one.get("token") == await two.get("token") == CLEAR


async def test_what_cannot_be_decrypted_keeps_a_rotation_open_and_is_named(services):
    one = await services()
    await one.put("good")
    await one.put("bad")
    await one.db.write(lambda tx: tx.count(sa.text("UPDATE secret SET value = '1.AAAA' WHERE name = 'bad'")))
    done = await one.secrets.rotate()
    assert not done.finished
    assert done.unreadable == ("default/bad",)
    assert done.left == 1
    assert await one.get("good") == CLEAR
    await one.db.write(secrets.delete_secret, "default", "bad")
    done = await one.secrets.rotate()
    assert done.finished
    assert (await one.state()).old is None


async def test_there_is_nothing_to_change_before_the_first_secret(services):
    with pytest.raises(Conflict, match="first secret"):
        await (await services()).secrets.rotate()


async def test_a_value_that_was_set_while_it_was_walked_over_stays(services, monkeypatch):
    one = await services()
    await one.put("token", "before")
    real = SecretRows.reseal

    async def meddle(self, rows: list[tuple[SealedRow, Sealed]]):
        at = Reference("default", "token")

        async def store(sealed):
            return await self._db.write(secrets.update_secret, at, {}, sealed, 5, "me")

        await one.secrets.storing(("secret", *at), "set-meanwhile", store)
        return await real(self, rows)

    monkeypatch.setattr(SecretRows, "reseal", meddle)
    assert (await one.secrets.rotate()).finished
    assert await one.get("token") == "set-meanwhile"


async def test_a_removed_key_file_does_not_lose_the_key_of_a_running_service(services):
    one = await services()
    await one.put("token")
    one.keys.path.unlink()
    assert (await one.secrets.rotate()).finished
    assert len(one.keys.load()) == 2
    assert await (await services()).get("token") == CLEAR


async def test_without_a_usable_key_nothing_is_stored_and_the_problem_is_told(services):
    one = await services()
    one.keys.path.write_text("x")
    one.keys.path.chmod(0o644)
    with pytest.raises(Unavailable, match="chmod 600"):
        await one.put("token")
    assert "chmod 600" in (one.secrets.problem or "")
    one.keys.path.unlink()
    await one.put("token")
    assert one.secrets.problem is None


async def _copy(services, service, home, start=True):
    """A service on another host that was given the same key file."""
    copied = await services(home, start=False)
    for key in reversed(service.keys.load()):
        copied.keys.put_first(key)
    if start:
        await copied.secrets.start()
        copied.db.on_wake(copied.secrets.woken)
    return copied


async def _step(db):
    """A step row for runs to belong to."""
    from nemo_jobs.store import jobs
    from tests.store.kit import new_job

    await db.write(jobs.create_job, new_job("moth"), 1, "me")

    def rename(tx: Tx):
        return tx.count(sa.text("UPDATE step SET id = 'step-x'"))

    await db.write(rename)
