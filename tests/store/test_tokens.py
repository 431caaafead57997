"""Tokens in both databases."""

import json

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import jobs, tokens, workspaces
from tests.store.kit import SECOND, Store

ALL = {"*": ["admin"]}


async def make(store: Store, grants=None, principal="ann", **given):
    shown = tokens.new_token()
    record = await store.write(
        tokens.add,
        tokens.hash_of(shown),
        principal,
        grants or ALL,
        **{"description": None, "expires_at": None, "now": store.now(), "actor": "test", **given},
    )
    return shown, record


async def find(store: Store, shown: str):
    return await store.read(tokens.find, tokens.hash_of(shown))


async def test_a_token_is_found_by_its_hash_with_all_that_is_known(store: Store) -> None:
    shown, record = await make(store, {"default": ["write", "read"]}, description="d", expires_at=2**60)
    found = await find(store, shown)
    assert (found.record, found.attempt_id, found.task) == (record, None, None)
    assert json.loads(found.record.grants) == {"default": ["read", "write"]}
    assert await find(store, tokens.new_token()) is None
    assert await store.read(tokens.count) == 1


async def test_what_can_not_be_is_not_stored(store: Store) -> None:
    for given in (
        {"grants": {"nowhere": ["read"]}},
        {"grants": {"default": ["root"]}},
        {"principal": "service:x"},
        {"expires_at": 1},
    ):
        with pytest.raises(Invalid):
            await make(store, **given)
    assert await store.read(tokens.count) == 0


async def test_there_is_an_end_to_tokens(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    await make(store)
    await make(store)
    with pytest.raises(Conflict, match="2 tokens already"):
        await make(store)


async def test_the_newest_are_listed_first_and_only_those_within(store: Store) -> None:
    for name in ("lab", "more"):
        await store.write(workspaces.create_workspace, name, None, store.now(), "test")
    made = [
        (await make(store, grants, principal=f"p{number}"))[1]
        for number, grants in enumerate([ALL, {"lab": ["read"]}, {"lab": ["read"], "more": ["read"]}])
    ]
    found, total = await store.read(tokens.list_tokens, None, 1, 2)
    assert ([record.id for record in found], total) == ([made[2].id, made[1].id], 3)
    found, total = await store.read(tokens.list_tokens, None, 2, 2)
    assert ([record.id for record in found], total) == ([made[0].id], 3)
    found, total = await store.read(tokens.list_tokens, frozenset({"lab"}), 1, 10)
    assert ([record.id for record in found], total) == ([made[1].id], 1)


async def test_a_revocation_is_told_and_stays(store: Store) -> None:
    shown, record = await make(store)
    woken: list[tuple[str, str]] = []
    store.db.on_wake(lambda topic, key: woken.append((topic, key)))
    gone = await store.write(tokens.revoke, record.id, None, 5)
    again = await store.write(tokens.revoke, record.id, None, 9)
    assert gone == again
    assert (await find(store, shown)).record.revoked_at == 5
    assert ("token", record.id) in woken
    for within, token_id in ((frozenset({"lab"}), record.id), (None, "token-none")):
        with pytest.raises(NotFound, match=token_id):
            await store.write(tokens.revoke, token_id, within, 9)


async def test_the_token_of_a_task_lives_as_long_as_its_attempt(store: Store) -> None:
    step = await store.running("moth")
    shown = tokens.new_token(tokens.TASK_PREFIX)
    await store.write(
        tokens.add_for_attempt, tokens.hash_of(shown), step.attempt_id, "task:moth", store.now()
    )
    task = (await find(store, shown)).task
    assert task == tokens.TaskOf(step.attempt_id, step.job_id, "moth", "default", "job-fileset-moth", None)
    assert await store.read(tokens.count) == 0
    assert (await store.read(tokens.list_tokens, None, 1, 10))[1] == 0
    assert await store.write(tokens.purge, store.now()) == 0
    await store.request("moth", Trigger.PAUSE)
    assert (await find(store, shown)).task is not None
    await store.apply(step, Trigger.STOPPED)
    assert (await store.job("moth")).state == "paused"
    assert (await find(store, shown)).task is not None
    await store.request("moth", Trigger.CANCEL)
    (step,) = await store.claim_due()
    await store.apply(step, Trigger.STOPPED)
    found = await find(store, shown)
    assert (found.task, found.attempt_id) == (None, step.attempt_id)
    assert await store.write(tokens.purge, store.now()) == 1
    assert await find(store, shown) is None


async def test_the_token_of_a_deleted_job_is_nobodys(store: Store) -> None:
    job = await store.ended("moth")
    shown = tokens.new_token(tokens.TASK_PREFIX)
    await store.write(tokens.add_for_attempt, tokens.hash_of(shown), job.attempt_id, "task:moth", store.now())
    assert (await find(store, shown)).task is None
    await store.write(jobs.delete_job, "default", "moth", store.now())
    found = await find(store, shown)
    assert (found.task, found.attempt_id) == (None, job.attempt_id)
    assert await store.write(tokens.purge, store.now()) == 1


async def test_old_revoked_and_expired_tokens_go_and_others_stay(store: Store) -> None:
    now = store.now()
    kept = await make(store)
    expired = await make(store, expires_at=now + 10 * SECOND)
    revoked = await make(store)
    await store.write(tokens.revoke, revoked[1].id, None, now)
    assert await store.write(tokens.purge, now + tokens.KEPT) == 0
    assert await store.write(tokens.purge, now + tokens.KEPT + 5 * SECOND) == 1
    assert await store.write(tokens.purge, now + tokens.KEPT + 11 * SECOND) == 1
    assert await find(store, kept[0]) is not None
    assert await find(store, expired[0]) is None


async def test_the_secrets_of_an_attempt_are_those_that_its_spec_names(store: Store) -> None:
    variables = [
        {"name": "A", "value": "x", "from_secret": None},
        {"name": "B", "value": None, "from_secret": {"name": "one"}},
        {"name": "C", "value": None, "from_secret": {"name": "other/two"}},
    ]
    spec = {
        "name": "main",
        "environment": variables,
        "config": {},
        "executor": {"provider": "subprocess", "profile": "default", "command": ["true"]},
        "lifecycle": {"staleness_timeout_seconds": 0},
    }
    job = await store.create("moth", steps=[spec])
    found = await store.read(tokens.secrets_of_attempt, job.attempt_id, "default")
    assert found == {("default", "one"), ("other", "two")}
    assert await store.read(tokens.secrets_of_attempt, "attempt-none", "default") == frozenset()


async def test_a_workspace_that_goes_is_taken_out_of_grants(store: Store) -> None:
    for name in ("a_b", "axb"):
        await store.write(workspaces.create_workspace, name, None, store.now(), "test")
    both = await make(store, {"a_b": ["read"], "axb": ["write"]})
    alone = await make(store, {"a_b": ["admin"]})
    other = await make(store, {"axb": ["admin"]})
    everywhere = await make(store)
    await store.write(workspaces.delete_workspace, "a_b")
    assert json.loads((await find(store, both[0])).record.grants) == {"axb": ["write"]}
    assert await find(store, alone[0]) is None
    assert json.loads((await find(store, other[0])).record.grants) == {"axb": ["admin"]}
    assert await find(store, everywhere[0]) is not None


async def test_a_look_up_is_one_by_key(store: Store) -> None:
    def plan(tx):
        sql = tokens._FIND.prepared(tx.dialect).sql.replace("?", "'x'").replace("%s", "'x'")
        word = "EXPLAIN QUERY PLAN" if tx.dialect == "sqlite" else "EXPLAIN"
        return " ".join(str(row) for row in tx.run(sa.text(f"{word} {sql}")))

    found = await store.read(plan)
    assert "SCAN " not in found.upper().replace("INDEX SCAN ", "").replace("BITMAP HEAP SCAN ", "")
