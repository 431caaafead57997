"""One step, from its claim to its end: observe, decide, act, record, again."""

import logging
from dataclasses import replace
from typing import assert_never

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Backend, Finds, Handle, Observation, Plan, Preparing
from nemo_jobs.domain import decide as rules
from nemo_jobs.domain.model import Json, Reason, StepRecord, run_key
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.domain.states import TERMINAL, WAITING, State, Trigger
from nemo_jobs.engine import plans
from nemo_jobs.engine.around import Alarm, LeaseLost, Surroundings
from nemo_jobs.engine.collect import Collector
from nemo_jobs.engine.finish import Finish
from nemo_jobs.engine.hidden import Hidden, why_away
from nemo_jobs.engine.prepare import GaveUp, Start, still_wanted
from nemo_jobs.store.steps import LogBatch, Outcome

log = logging.getLogger(__name__)

#: How long the record of a start waits for the end that may follow at once, in seconds: a short
#: job then costs one transaction less.
SHORT_JOB = 0.008
#: From so many results on, in number or in bytes, the step tells that they are being stored.
MANY_FILES, MANY_BYTES = 100, 64 << 20
#: Looks at a step that is being prepared until its record is read again, and the seconds from which
#: on it is at each look.
LOOKS = 5
#: The longest pause between two tries to reach a backend, in seconds.
MAX_RETRY = 30.0


class Follower:
    """Looks after one held step. `poke` makes it look again at once."""

    def __init__(self, shared: Surroundings, step: StepRecord, profile: Profile, backend: Backend) -> None:
        self.step, self.profile, self.backend = step, profile, backend
        self._shared = shared
        self._records, self._clock = shared.records, shared.clock
        waiting = step.state in WAITING
        # A waiting step has no work of its own yet; a handle in it belongs to the run before.
        self.handle = Handle.from_json(step.handle) if step.handle and not waiting else None
        self._recorded = self.handle is not None
        self._generation = step.generation + (step.state is State.RESUMING)
        # Its last holder may have died between a start and its record.
        ending = step.state in (State.CANCELLING, State.PAUSING)
        self._uncertain = not waiting and (ending or self.handle is None)
        # What was found of such a start may have come to stand in the middle.
        self._half = False
        self._hidden = Hidden(shared.secrets, step)
        self._observation: Observation | None = None
        self._collector: Collector | None = None
        self._collected = False
        self._end = Finish(shared, profile, backend)
        self._alarm = Alarm(shared.clock)
        self._start = Start(shared, profile, backend, self._hidden, self._alarm)
        self._pending_since = step.since if step.state is State.PENDING else None
        self._looks = 0
        self._failures = 0

    @property
    def key(self) -> str:
        """The name of this run at its backend."""
        return self.handle.key if self.handle else run_key(self.step.id, self._generation)

    @property
    def log_problem(self) -> str | None:
        """Why the output can't be read now; None while it can."""
        return self._collector.failure if self._collector else None

    def poke(self, *, request: bool = False) -> None:
        self._alarm.ring(request=request)

    async def end_for_shutdown(self) -> None:
        """Ask the work to end because the service does; the next start records its end."""
        if self.handle is None:
            return
        reason, text = Reason.SERVICE_STOPPED, "ended because the service was stopped (on_shutdown: stop)"
        if self.step.state in (State.PENDING, State.ACTIVE):
            await self._apply(Outcome(reason=reason, message=text, stop_reason=reason), durable=True)
        await self.backend.stop(self.handle, self._limits().grace)

    async def run(self) -> None:
        """Until the step needs nobody any more, or somebody else holds it."""
        try:
            while not await self._turn():
                pass
            await self._hidden.end(self.backend, self.handle)
        except LeaseLost:
            log.info("step %s of %s is looked after by another service", self.step.name, self.step.job)
        finally:
            if self._collector is not None:
                await self._collector.aclose()

    async def _turn(self) -> bool:
        """One round; True when it was the last."""
        await self._hear()
        if self.step.state not in _HELD:
            await self._let_go()
            return True
        try:
            await self._look()
            return await self._act()
        except api.Unavailable as error:
            await self._backend_away(error)
            return False

    async def _hear(self) -> None:
        """Read the record again if somebody asked for that."""
        if self._alarm.requested:
            self._alarm.requested = False
            await self._reload()

    async def _act(self) -> bool:
        observation = self._observation
        limits = self._limits()
        view = plans.view_of(observation) if observation and not self._stands_still() else None
        since = self._since(await self._silent_since(limits))
        action = rules.decide(self.step, view, limits, self._clock.now(), since)
        match action:
            case rules.Submit():
                await self._submit(action.generation)
            case rules.Record():
                return await self._record(action)
            case rules.Stop():
                await self._stop(action)
            case rules.Wait():
                if not self._recorded and self.handle:
                    await self._apply(Outcome(), durable=False)
                await self._alarm.rest(action.look_at)
            case _:
                assert_never(action)
        return False

    async def _look(self) -> None:
        if self._uncertain:
            found = await self._find()
            if found is not None:
                self.handle, self._recorded, self._half = found, False, True
            self._uncertain = False
        if self.handle is None:
            self._observation = None
            return
        self._observation = (await self.backend.observe([self.handle]))[self.handle.key]
        self._failures = 0
        if self._collector is None and not self._collected:
            await self._hidden.look(self.handle.key, ended=self._observation.phase in api.ENDED)
            if self._hidden.known:
                self._collected = True
                self._collect(self.handle)

    def _stands_still(self) -> bool:
        """Whether nothing was begun but what a start makes first: to submit again is what goes on."""
        seen = self._observation
        waiting = seen is not None and seen.phase is api.Phase.WAITING
        return self._half and waiting and still_wanted(self.step) and not self.step.stop_reason

    async def _find(self) -> Handle | None:
        """A workload that was started without its handle being recorded."""
        generations = (self.step.generation + 1, self.step.generation)
        for generation in generations[: 1 if self._recorded else 2]:
            handle = await self._started(await self._start.plan(self.step, generation))
            if handle is not None:
                self._generation = generation
                return handle
        return None

    async def _started(self, plan: Plan) -> Handle | None:
        if isinstance(self.backend, Finds):
            return await self.backend.find(plan)
        async for handle in self.backend.handles():
            if handle.key == plan.key:
                return handle
        return None

    def _collect(self, handle: Handle) -> None:
        records, step_id = self._records, self.step.id

        async def store(batch: LogBatch) -> int | None:
            return await records.append(step_id, batch)

        cursor = self.step.log_cursor  # of this very run, or the collector drops it
        shared, cloak = self._shared, self._hidden.cloak
        self._collector = Collector(self.backend, handle, cursor, store, self._clock, shared.log_limit, cloak)
        if self._observation is not None and self._observation.phase not in api.ENDED:
            self._collector.start()

    async def _submit(self, generation: int) -> None:
        self._generation = generation
        plan = await self._start.plan(self.step, generation)
        try:
            found = await self._start.waits(self.step, plan) or await self._start.complete(self.step, plan)
            self._failures = 0
            if isinstance(found, Preparing):
                await self._wait_for(found)
            else:
                await self._hand_over(found)
        except api.Rejected as error:
            await self._refused(error)

    async def _wait_for(self, found: Preparing) -> None:
        await self._tell(found.reason, found.message)
        until = self._clock.now() + int(found.look_after * 1e6)
        deadline = rules.next_deadline(self.step, self._limits(), self._since())
        self._looks += 1
        # Reading the record at each look would cost more than the look.
        look = found.look_after >= LOOKS or self._looks % LOOKS == 0
        await self._alarm.rest(until if deadline is None else min(until, deadline), look=look)

    async def _hand_over(self, plan: Plan) -> None:
        try:
            self.handle, self._half = await self._start.submit(plan, self._go_on), False
        except GaveUp:
            self._uncertain = True
            return
        except api.Unavailable:
            self._uncertain = True
            raise
        await self._alarm.rest(self._clock.now() + int(SHORT_JOB * 1e6), look=False)

    async def _go_on(self, stage: str) -> bool:
        """While a start lasts: tell of it. False when nobody wants it any more."""
        await self._hear()
        deadline = rules.next_deadline(self.step, self._limits(), self._since())
        if not still_wanted(self.step) or (deadline is not None and self._clock.now() >= deadline):
            return False
        if stage:
            await self._tell(Reason.STARTING, stage)
        return still_wanted(self.step)

    async def _tell(self, reason: str, message: str) -> None:
        """Record what a start waits for. Its run has a number from now on, and no handle yet."""
        if reason == self.step.reason == Reason.WAITING_FOR_GPUS:
            return  # what is known of the pool says more
        begins = self.step.state in WAITING and reason != Reason.WAITING_FOR_GPUS
        if begins or (reason, message) != (self.step.reason, self.step.message):
            triggers = (Trigger.SUBMITTED,) if begins else ()
            generation = self._generation if self.step.state is State.PENDING or begins else None
            await self._apply(Outcome(triggers, reason, message, generation=generation), durable=False)

    async def _refused(self, error: api.Rejected) -> None:
        text = f"{self.step.name}: {error}"
        details: Json = {"message": text, "reason": error.reason}
        await self._apply(Outcome((Trigger.FAILED,), error.reason, text, error_details=details), durable=True)

    async def _record(self, action: rules.Record) -> bool:
        if action.ended:
            return await self._finish(action)
        observation = self._observation
        tasks = plans.task_changes(observation, None) if observation else ()
        outcome = Outcome(
            triggers=action.triggers,
            reason=action.reason,
            message=action.message,
            tasks=tasks,
            status_details=plans.step_details(observation) if observation else {},
            due_at=action.look_at,
        )
        await self._apply(outcome, durable=False)
        return False

    async def _let_go(self) -> None:
        """Somebody else ended or paused the step: its work must not go on."""
        if self.handle is not None and (
            self._observation is None or self._observation.phase not in api.ENDED
        ):
            await self.backend.stop(self.handle, self._limits().grace)

    async def _finish(self, action: rules.Record) -> bool:
        if self._collector is not None:
            await self._end.drain(self._collector)
            self._collector = None
        if not self._end.gathered:
            before = self.step
            grace = self._limits().grace
            await self._end.gather(self.step.id, self.handle, grace, self._tell_of_results)
            if self.step is not before:
                return False  # it took a while: the end is decided on what is true now
        await self._apply(self._end.outcome(action, self._observation), durable=True)
        return self.step.state not in _HELD

    async def _tell_of_results(self, files: int, size: int) -> None:
        """Say what takes a while; and a start that is not recorded yet must not wait for it."""
        if self._recorded and files < MANY_FILES and size < MANY_BYTES:
            return
        triggers = () if self._recorded else (Trigger.SUBMITTED, Trigger.STARTED)
        text = f"{self.step.name} has ended; its results are being stored: {files} files, {size} bytes"
        await self._apply(Outcome(triggers, Reason.RUNNING, text), durable=False)

    async def _stop(self, action: rules.Stop) -> None:
        changed = (str(action.reason), action.message) != (self.step.reason, self.step.message)
        if action.mark or changed or not self._recorded:
            outcome = Outcome(
                reason=action.reason,
                message=action.message,
                stop_reason=action.reason if action.mark else None,
                due_at=action.look_at,
            )
            await self._apply(outcome, durable=True)
        if self.handle is not None:
            await self.backend.stop(self.handle, action.grace)
        await self._alarm.rest(action.look_at)

    async def _apply(self, outcome: Outcome, *, durable: bool) -> None:
        """Write under the lease, together with a handle that is not recorded yet."""
        if self.handle is not None and not self._recorded:
            outcome = replace(
                outcome,
                handle=self.handle.to_json(),
                host=self._host(self.handle),
                generation=self._generation,
            )
        outcome = self._hidden.outcome(outcome)
        outcome = replace(outcome, expect=self.step.state, retention=self._shared.retention)
        applied = await self._records.apply(self.step.id, outcome, durable=durable)
        if applied is None:
            raise LeaseLost
        self._now_is(applied.step)
        self._recorded = self._recorded or (self.handle is not None and applied.written)

    def _host(self, handle: Handle) -> str | None:
        return self._shared.host if handle.data.get("host") else None

    async def _reload(self) -> None:
        step = await self._records.reload(self.step.id)
        if step is None:
            # An end or a pause that somebody wrote takes the lease away too.
            step = await self._records.peek(self.step.id)
            if step is None or step.state in _HELD:
                raise LeaseLost
        self._now_is(step)
        self._start.devices_may_be_back()

    def _now_is(self, step: StepRecord) -> None:
        """`step` is what is recorded now. Waiting for devices doesn't count as pending."""
        waited = Reason.WAITING_FOR_GPUS in (self.step.reason, step.reason)
        if step.state is not State.PENDING:
            self._pending_since = None
        elif self._pending_since is None or waited:
            self._pending_since = step.since
        self.step = step

    def _limits(self) -> rules.Limits:
        return plans.limits_of(self.step, self.profile)

    def _since(self, silent: int | None = None) -> rules.Since:
        return rules.Since(silent, self._pending_since)

    async def _silent_since(self, limits: rules.Limits) -> int | None:
        if not limits.staleness or self.step.state is not State.ACTIVE:
            return None
        return await self._records.last_report(self.step.id) or self.step.active_since

    async def _backend_away(self, error: api.Unavailable) -> None:
        self._failures += 1
        reason, text = why_away(self.step, error)
        if text != self.step.message:
            await self._apply(Outcome(reason=reason, message=text), durable=False)
        pause = min(error.retry_after * self._failures, MAX_RETRY)
        await self._alarm.rest(self._clock.now() + int(pause * 1e6))


_HELD = frozenset(State) - TERMINAL - {State.PAUSED}
