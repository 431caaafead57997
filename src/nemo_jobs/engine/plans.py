"""From a step's record to the plan that a backend starts, and back from what it saw. Pure."""

from dataclasses import replace
from typing import Any

from nemo_jobs.backends.api import Earlier, Handle, Observation, Phase, Plan, PlatformInfo, TaskObservation
from nemo_jobs.domain.decide import Limits, TaskView, View
from nemo_jobs.domain.model import Json, StepRecord, run_key
from nemo_jobs.domain.names import task_name
from nemo_jobs.domain.profiles import Profile
from nemo_jobs.domain.states import State
from nemo_jobs.store.steps import TaskChange
from nemo_jobs.store.storage import Inheritance

_TASK_STATES = {
    Phase.WAITING: State.PENDING,
    Phase.RUNNING: State.ACTIVE,
    Phase.SUCCEEDED: State.COMPLETED,
    Phase.FAILED: State.ERROR,
    Phase.STOPPED: State.CANCELLED,
    Phase.LOST: State.ERROR,
}


def make_plan(step: StepRecord, generation: int, profile: Profile, platform: PlatformInfo) -> Plan:
    """The plan of one run of `step`."""
    key = run_key(step.id, generation)
    return Plan(
        key=key,
        provider=step.provider,
        profile=step.profile,
        config=profile.config,
        workspace=step.workspace,
        job=step.job,
        job_id=step.job_id,
        attempt_id=step.attempt_id,
        step=step.name,
        step_id=step.id,
        task=task_name(key),
        fileset=step.fileset,
        output_location=step.output_location,
        spec=step.spec,
        platform=platform,
        principal=step.auth_context,
    )


def with_storage(plan: Plan, found: Inheritance) -> Plan:
    """The plan of a later attempt, which takes over what earlier ones stored."""
    earlier = tuple(
        Earlier(
            source.attempt_id, None if source.handle is None else Handle.from_json(source.handle), source.own
        )
        for source in found.sources
    )
    return replace(plan, earlier=earlier, needs_storage=found.needed)


def limits_of(step: StepRecord, profile: Profile) -> Limits:
    """The limits that hold for `step` on `profile`."""
    lifecycle: Json = step.spec.get("lifecycle") or {}
    config = profile.config
    return Limits(
        before_active=config.ttl_seconds_before_active,
        active=config.ttl_seconds_active,
        step_timeout=lifecycle.get("timeout_seconds"),
        staleness=max(0, lifecycle.get("staleness_timeout_seconds") or 0),
        grace=_grace(config),
    )


def _grace(config: Any) -> float:
    """Seconds between SIGTERM and SIGKILL, by the name that the backend has for them."""
    for name in ("graceful_shutdown_timeout_seconds", "stop_timeout_seconds"):
        seconds = getattr(config, name, None)
        if seconds is not None:
            return float(seconds)
    return 30.0


def most_results(profile: Profile) -> int:
    """How many bytes of results a step may leave."""
    return int(getattr(profile.config, "results_max_bytes", 0))


def view_of(observation: Observation) -> View:
    tasks = [TaskView(task.exit_code, task.signal, task.oom_killed) for task in observation.tasks]
    return View(str(observation.phase), tasks, observation.reason, observation.message)


def task_changes(observation: Observation, error: Json | None) -> tuple[TaskChange, ...]:
    """What to write about each task; one that failed without a story gets the step's error."""
    return tuple(_task_change(task, error) for task in observation.tasks)


def _task_change(task: TaskObservation, error: Json | None) -> TaskChange:
    state = _TASK_STATES[task.phase]
    facts = {
        "exit_code": task.exit_code,
        "signal": task.signal,
        "cpu_seconds": task.cpu_seconds,
        "peak_memory_bytes": task.peak_memory_bytes,
        "node": task.node or None,
    }
    details = {**{name: value for name, value in facts.items() if value is not None}, **task.details}
    failed = error if state is State.ERROR else None
    return TaskChange(task.name, task.rank, state, details, failed, task.error_stack)


def step_details(observation: Observation) -> Json:
    """What the step itself shows: the facts of its first task, the useful ones first."""
    if not observation.tasks:
        return {}
    bad = next((task for task in observation.tasks if task.exit_code not in (0, None)), observation.tasks[0])
    return _task_change(bad, None).status_details
