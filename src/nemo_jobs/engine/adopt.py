"""Steps that no follower holds: those an earlier run of the service left half done, and those that
wait for a profile that can't take them."""

import logging
import re
from collections.abc import Iterable, Mapping

from nemo_jobs.backends import api
from nemo_jobs.backends.api import Backend, Handle
from nemo_jobs.domain.clock import Clock
from nemo_jobs.domain.model import Json, Reason, StepRecord
from nemo_jobs.domain.profiles import ProfileSet
from nemo_jobs.domain.states import WAITING, State, Trigger
from nemo_jobs.engine.options import Options
from nemo_jobs.store import steps
from nemo_jobs.store.db import Database
from nemo_jobs.store.steps import Outcome

log = logging.getLogger(__name__)

_KEY = re.compile(r"nj-(.+)-(\d+)")


async def adopt_started(db: Database, backends: Iterable[Backend], clock: Clock, options: Options) -> None:
    """Record the handles of work that was started just before a crash.

    Between the start of a workload and the record of its handle the service may die. Such a step
    looks as if it were waiting, so a request could end it at once although its work runs.
    Therefore this happens before requests are served.
    """
    for backend in backends:
        handles: dict[str, Handle] = {}
        try:
            async for handle in backend.handles():
                handles[handle.key] = handle
        except api.Unavailable as error:
            log.warning("what runs on %s is looked for later: %s", backend.name, error)
            continue
        waiting = await db.read(steps.waiting_of, [_step_id(key) for key in handles])
        for step in waiting:
            await _adopt(db, step, handles, clock, options)


def _step_id(key: str) -> str:
    match = _KEY.fullmatch(key)
    return f"platform-job-step-{match[1]}" if match else ""


async def _adopt(
    db: Database, step: StepRecord, handles: Mapping[str, Handle], clock: Clock, options: Options
) -> None:
    generation = step.generation + (step.state is State.RESUMING)
    handle = handles.get(f"nj-{step.id.removeprefix('platform-job-step-')}-{generation}")
    if handle is None:
        return
    now = clock.now()
    held = await db.write(
        steps.claim_one, step.id, owner=options.owner, token=options.token, now=now, until=now + 30_000_000
    )
    if held is None or held.state not in WAITING:
        return
    log.info("step %s of %s was started before the restart and is taken up", step.name, step.job)
    outcome = Outcome(
        triggers=(Trigger.SUBMITTED,),
        reason=Reason.STARTING,
        message="taken up after a restart",
        handle=handle.to_json(),
        host=options.host if handle.data.get("host") else None,
        generation=generation,
    )
    await db.write(steps.apply, options.token, step.id, outcome, now)
    await db.write(steps.release, options.token, [step.id], now)


async def fail_steps_without_profile(
    db: Database, profiles: ProfileSet, clock: Clock, options: Options
) -> None:
    """End waiting steps whose profile is not configured any more: nothing would ever start them."""
    for (provider, name), count in (await db.read(steps.waiting_counts)).items():
        profile = profiles.get(provider, name)
        if profile is not None and not profile.unavailable:
            continue
        if (provider, name) in profiles.expected:
            await explain_waiting(db, (provider, name), profiles.left_out[provider, name], clock, options)
            continue
        why = profile.unavailable if profile is not None else "it is not in the configuration any more"
        text = f"profile {provider}/{name} can't run this step: {why}"
        log.warning("%d waiting steps end: %s", count, text)
        now = clock.now()
        found = await _claim_some(db, provider, name, now, options)
        error: Json = {"message": text, "reason": Reason.PROFILE_REMOVED}
        for step in found:
            outcome = Outcome(
                (Trigger.FAILED,),
                Reason.PROFILE_REMOVED,
                text,
                error_details=error,
                retention=options.retention,
                proven=False,
            )
            await db.write(steps.apply, options.token, step.id, outcome, now)


async def explain_waiting(
    db: Database, profile: tuple[str, str], why: str, clock: Clock, options: Options
) -> None:
    """Tell the oldest steps that wait for `profile` that its backend can't be used, and why."""
    now = clock.now()
    text = f"{'/'.join(profile)} can't be used now: {why}"
    found = await _claim_some(db, *profile, now, options)
    for step in found:
        if step.message != text:
            outcome = Outcome(reason=Reason.BACKEND_UNAVAILABLE, message=text)
            await db.write(steps.apply, options.token, step.id, outcome, now)
    await db.write(steps.release, options.token, [step.id for step in found], now + 5_000_000)


async def tell_absent(
    db: Database, step: StepRecord, profiles: ProfileSet, clock: Clock, options: Options, seconds: float
) -> None:
    """Say of a step that is held here that what runs it is not there, and let go of it until later."""
    name, now = f"{step.provider}/{step.profile}", clock.now()
    why = profiles.left_out.get((step.provider, step.profile), "this service has no backend for it")
    text = f"{name} can't be asked now: {why}"
    if step.message != text:
        outcome = Outcome(reason=Reason.BACKEND_UNAVAILABLE, message=text, expect=step.state)
        await db.write(steps.apply, options.token, step.id, outcome, now)
    await db.write(steps.release, options.token, [step.id], now + int(seconds * 1e6))


async def _claim_some(
    db: Database, provider: str, profile: str, now: int, options: Options
) -> list[StepRecord]:
    return await db.write(
        steps.claim_waiting,
        provider,
        profile,
        owner=options.owner,
        token=options.token,
        host=options.host,
        now=now,
        until=now + 30_000_000,
        limit=64,
        wanting=True,
    )
