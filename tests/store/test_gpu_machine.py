"""Random claims, ends, crashes, reservations and changes of the host's GPUs: whatever happens, no card
has two users, none is lost, and nobody is passed who could have been served."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.gpus import Device
from nemo_jobs.domain.model import Conflict, Invalid, StepRecord
from nemo_jobs.domain.states import TERMINAL, State, Trigger
from nemo_jobs.store import gpu_reservations, gpu_stock, gpu_waiting, gpus, jobs, steps, workspaces
from nemo_jobs.store.db import Database, Tx
from nemo_jobs.store.gpu_reservations import Asked
from nemo_jobs.store.gpu_rows import RESERVATION, DeviceRow, devices, queue
from nemo_jobs.store.steps import Outcome
from tests.bed.postgres import PostgresServer
from tests.store.conftest import TEMPLATE
from tests.store.gpu_kit import POOL, found, gpu_step, restock
from tests.store.kit import LEASE, SECOND, Store, handle_of, new_job
from tests.store.test_machine import _empty
from tests.store.test_reports import patch

OWNERS = ("o1", "o2")
CARDS = 4


@dataclass
class Held:
    """A step that a service looks after. With `cards` its work runs, on these."""

    step: StepRecord
    owner: str
    recorded: bool = False
    cards: frozenset[str] = frozenset()


@dataclass
class World:
    """What is true outside of the database: the work that runs, by step id, on which cards."""

    runs: dict[str, frozenset[str]] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OWNERS, 0))

    def token(self, owner: str) -> str:
        """A service has a new one at each start."""
        return f"token-{owner}-{self.lives[owner]}"


class Pools(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.db = Database.open(self.url)
        self.store = Store(self.db, self.clock)
        self.world = World()
        self.number = 0
        self.cards = [f"GPU-{n}" for n in range(CARDS)]
        self.ill: set[str] = set()
        self.run(self.db.start())
        self.run(self.db.write(_empty))
        self.run(self.db.write(_empty_pools))
        self.run(self.db.write(workspaces.ensure_defaults, self.clock.now()))
        for owner in OWNERS:
            self.look(owner)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        try:
            self.nothing_is_lost()
        finally:
            self.run(self.db.aclose())
            self.loop.close()

    def rows(self) -> list[DeviceRow]:
        found: list[DeviceRow] = self.run(self.db.read(devices, POOL))
        return found

    def look(self, owner: str) -> None:
        told = tuple(
            Device(str(place), card, str(place), trouble="ill" if card in self.ill else "")
            for place, card in enumerate(self.cards)
        )
        self.run(restock(self.store, found(*told), owner=owner, token=self.world.token(owner)))

    # -- what people and services do

    @rule(number=st.integers(1, CARDS + 1), many=st.booleans(), at_once=st.booleans())
    def create(self, number: int, many: bool, at_once: bool) -> None:
        self.number += 1
        specs = [gpu_step("main", number), *([gpu_step("next", 1)] if many else [])]
        new = new_job(f"job-{self.number}", steps=specs)
        self.run(self.db.write(jobs.create_job, new, self.store.now(), "t"))
        if at_once:
            self.claim(OWNERS[self.number % 2], 9)
            for one in self.waiting():
                self.begin(one)

    @rule(owner=st.sampled_from(OWNERS), places=st.integers(1, 9))
    def claim(self, owner: str, places: int) -> None:
        expected = self.expected()
        now = self.store.now()
        by = gpus.Claim(
            owner, self.world.token(owner), "h1", now + LEASE, {("subprocess", "default"): places}
        )
        claimed = self.run(self.db.write(gpus.claim, POOL, by, now)).steps
        got = [step.id for step in claimed]
        new = [step_id for step_id in got if step_id not in self.had]
        assert new == expected[: len(new)], (new, expected)
        assert len(got) == places or len(new) == len(expected)
        for step in claimed:
            before = self.world.held.get(step.id)
            if before is None or before.owner != owner:  # else it goes on as it was
                self.world.held[step.id] = Held(step, owner)

    def expected(self) -> list[str]:
        """Whom a claim has to serve, in this order, if there are places: told once more, plainly."""
        rows = self.rows()
        self.had = {row.holder for row in rows if row.holder is not None}
        usable = [row for row in rows if row.in_pool and not row.trouble]
        free = sum(row.holder is None for row in usable)
        possible = sum(not (row.holder or "").startswith(RESERVATION) for row in usable)
        served = []
        for asking in self.run(self.db.read(queue, POOL, self.clock.now())):
            if asking.holder in self.had or asking.count > possible:
                continue
            if asking.count > free:
                break
            free -= asking.count
            if asking.holder.startswith(RESERVATION):
                possible -= asking.count
            elif asking.step is not None and (asking.step[6] or 0) <= self.clock.now():
                served.append(asking.holder)
        return served

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        """Take what was claimed, and begin; the record may come later, or never."""
        self.begin(data.draw(st.sampled_from(self.waiting())))

    def begin(self, one: Held) -> None:
        has = self.run(
            self.db.write(gpus.take_devices, POOL, self.world.token(one.owner), one.step.id, self.store.now())
        )
        if has is None:
            return
        cards = frozenset(row.uuid for row in self.rows() if row.holder == one.step.id)
        assert len(has) == len(cards) == one.step.spec["executor"]["resources"]["num_gpus"]
        for step_id, others in self.world.runs.items():
            if step_id == one.step.id:
                assert cards == others  # its backend finds it there
                continue
            assert not cards & others, f"{step_id} and {one.step.id} are both on {cards & others}"
        one.cards = self.world.runs[one.step.id] = cards

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def record(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.running()))
        self.apply(one, Trigger.SUBMITTED, Trigger.STARTED, handle=handle_of(one.step))
        one.recorded = True

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def prepare(self, data: Any) -> None:
        """What is needed isn't there yet: others may have the devices meanwhile."""
        one = data.draw(st.sampled_from(self.waiting()))
        self.run(self.db.write(gpus.release_devices, self.world.token(one.owner), one.step.id))
        self.apply(one, Trigger.SUBMITTED)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), how=st.sampled_from([Trigger.SUCCEEDED, Trigger.FAILED, Trigger.STOPPED]))
    def end(self, data: Any, how: Trigger) -> None:
        """The work has ended, or there was none, and its service saw that."""
        one = data.draw(st.sampled_from(list(self.world.held.values())))
        state = self.state(one.step.id)
        if how is Trigger.SUCCEEDED and not one.recorded:
            how = Trigger.FAILED
        if how is Trigger.STOPPED and state not in (State.CANCELLING, State.PAUSING):
            return
        self.world.runs.pop(one.step.id, None)
        self.apply(one, how)
        if self.state(one.step.id) in (*TERMINAL, State.PAUSED):
            self.world.held.pop(one.step.id, None)
            assert not any(row.holder == one.step.id for row in self.rows())
        one.cards, one.recorded = frozenset(), False

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), trigger=st.sampled_from([Trigger.CANCEL, Trigger.PAUSE, Trigger.RESUME]))
    def request(self, data: Any, trigger: Trigger) -> None:
        self.run(self.store.request(data.draw(st.sampled_from(self.alive())), trigger))
        self.let_go_of_ended()

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), state=st.sampled_from([State.ERROR, State.CANCELLED]))
    def somebody_else_ends_it(self, data: Any, state: State) -> None:
        """The work may go on; a removal brings it down if it was recorded."""
        name = data.draw(st.sampled_from(self.alive()))
        tree = self.run(self.db.read(jobs.status_tree, "default", name))
        with contextlib.suppress(Conflict):
            self.run(patch(self.store, state, name, tree.steps[-1][0].name))
        self.let_go_of_ended()

    @rule()
    def remove(self) -> None:
        for one in self.run(self.db.read(steps.due_removals, "h1", self.store.now(), 10)):
            step_id = f"platform-job-step-{one.key.split('-')[1]}"
            running = self.world.held.get(step_id)
            if running is None:  # a run of its own that goes on has another key
                self.world.runs.pop(step_id, None)
            self.run(self.db.write(steps.forget_removal, one.key))

    @rule(owner=st.sampled_from(OWNERS))
    def crash(self, owner: str) -> None:
        """The service is gone, and starts again: all that it held lapses."""
        self.run(self.db.write(steps.void_leases, owner))
        for step_id in [one.step.id for one in self.world.held.values() if one.owner == owner]:
            del self.world.held[step_id]
        self.world.lives[owner] += 1
        self.look(owner)

    @rule(owner=st.sampled_from(OWNERS))
    def take_up(self, owner: str) -> None:
        """Steps at work that nobody looks after; those of which something runs are found there."""
        for step in self.run(self.store.claim_due(owner=owner, token=self.world.token(owner))):
            cards = self.world.runs.get(step.id, frozenset())
            self.world.held[step.id] = Held(step, owner, bool(cards), cards)
        for step_id in [id for id in self.world.runs if id not in self.world.held]:
            now = self.store.now()
            token = self.world.token(owner)
            lease: Any = {"owner": owner, "token": token, "now": now, "until": now + LEASE}
            step = self.run(self.db.write(steps.claim_one, step_id, **lease))
            if step is not None:
                self.world.held[step_id] = Held(step, owner, False, self.world.runs[step_id])

    @rule(owner=st.sampled_from(OWNERS))
    def settle(self, owner: str) -> None:
        token, now = self.world.token(owner), self.store.now()
        doubts = self.run(self.db.read(gpu_stock.doubts, POOL, token, now))
        over = [
            one.step_id
            for one in doubts
            if not one.elsewhere and one.step_id not in self.world.held and one.step_id not in self.world.runs
        ]
        self.run(self.db.write(gpu_stock.settle, POOL, over, now))

    @rule(name=st.sampled_from(["llama", "moth"]), count=st.integers(1, CARDS), wait=st.booleans())
    def reserve(self, name: str, count: int, wait: bool) -> None:
        with contextlib.suppress(Conflict, Invalid):
            asked = Asked(name, count, "me", wait=wait)
            self.run(self.db.write(gpu_reservations.reserve, asked, self.store.now()))

    @rule(name=st.sampled_from(["llama", "moth"]))
    def release(self, name: str) -> None:
        with contextlib.suppress(Exception):
            self.run(self.db.write(gpu_reservations.release, name))

    @rule(cards=st.permutations([f"GPU-{n}" for n in range(CARDS)]), number=st.integers(1, CARDS))
    def other_cards(self, cards: list[str], number: int) -> None:
        """After a restart of the host, say: fewer, and with other numbers."""
        self.cards = cards[:number]
        self.look(OWNERS[0])

    @rule(ill=st.sets(st.sampled_from([f"GPU-{n}" for n in range(CARDS)]), max_size=2))
    def health(self, ill: set[str]) -> None:
        self.ill = ill
        self.look(OWNERS[0])

    @rule()
    def tell(self) -> None:
        self.run(self.db.write(gpu_waiting.tell_waiting, POOL, self.store.now()))
        self.let_go_of_ended()

    @rule(seconds=st.sampled_from([1, LEASE // SECOND + 1, 700]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    # -- what holds at all times

    @invariant()
    def no_card_is_there_twice(self) -> None:
        rows = self.rows()
        assert len({row.uuid for row in rows}) == len(rows)
        for step_id, cards in self.world.runs.items():
            mine = {row.uuid for row in rows if row.holder == step_id}
            assert cards <= mine, f"{step_id} runs on {cards} and has {mine}"

    @invariant()
    def nobody_has_some_of_what_it_asked_for(self) -> None:
        by: dict[str, int] = {}
        for row in self.rows():
            if row.holder is not None:
                by[row.holder] = by.get(row.holder, 0) + 1
        sizes = {row[0]: row[1] for row in self.run(self.db.read(_sizes))}
        for holder, number in by.items():
            assert sizes[holder] == number

    def nothing_is_lost(self) -> None:
        """When everything has ended, all is free."""
        for owner in OWNERS:
            self.crash(owner)
        self.world.runs.clear()
        self.clock.advance(LEASE / SECOND + 1)
        for name in ("llama", "moth"):
            self.release(name)
        for number in range(1, self.number + 1):
            tree = self.run(self.db.read(jobs.status_tree, "default", f"job-{number}"))
            with contextlib.suppress(Conflict):  # it has ended, or is paused and has nothing
                self.run(patch(self.store, State.ERROR, f"job-{number}", tree.steps[-1][0].name))
        self.remove()
        self.settle(OWNERS[0])
        assert [row for row in self.rows() if row.holder is not None] == []

    # -- helpers

    def alive(self) -> list[str]:
        """Jobs that have not ended, by name."""
        found, _, _ = self.run(self.db.read(jobs.list_jobs, jobs.JobQuery("default", page_size=1000)))
        return [job.name for job in found if State(job.state) not in TERMINAL]

    def state(self, step_id: str) -> State | None:
        found = self.run(self.db.read(steps.peek, step_id))
        return found.state if found else None

    def waiting(self) -> list[Held]:
        """Held steps that may start, and have not."""
        may = (State.CREATED, State.RESUMING, State.PENDING)
        held = self.world.held.values()
        return [one for one in held if not one.cards and self.state(one.step.id) in may]

    def running(self) -> list[Held]:
        return [one for one in self.world.held.values() if one.cards and not one.recorded]

    def apply(self, one: Held, *triggers: Trigger, **outcome: Any) -> None:
        made = Outcome(triggers, generation=one.step.generation, claim_next=False, **outcome)
        token = self.world.token(one.owner)
        if self.run(self.db.write(steps.apply, token, one.step.id, made, self.store.now())) is None:
            self.world.held.pop(one.step.id, None)

    def let_go_of_ended(self) -> None:
        """A service learns that its step was ended, and looks after it no longer."""
        for step_id in list(self.world.held):
            if self.state(step_id) in (*TERMINAL, State.PAUSED, None):
                del self.world.held[step_id]


def _empty_pools(tx: Tx) -> None:
    import sqlalchemy as sa

    for table in ("gpu_pool", "gpu_server", "gpu_device", "gpu_request"):
        tx.count(sa.text(f"DELETE FROM {table}"))


def _sizes(tx: Tx) -> list[tuple[str, int]]:
    import sqlalchemy as sa

    result: list[tuple[str, int]] = tx.run(
        sa.text("SELECT id, gpus FROM step UNION SELECT holder, count FROM gpu_request")
    )
    return result


@pytest.fixture(params=["sqlite", "postgresql"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[Pools]]:
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = server.new_database(TEMPLATE)
        yield type("OnThisDatabase", (Pools,), {"url": url})


@pytest.mark.time_limit(180)
def test_random_histories_keep_the_pool_exact(machine: type[Pools]) -> None:
    quick = settings(
        max_examples=25 if "sqlite" in machine.url else 8,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=quick)
