"""From the keeper's facts to an observation. Looks at the output of a failed task, no more."""

from typing import assert_never

from nemo_jobs.backends.api import Handle, Json, Observation, Phase, TaskObservation
from nemo_jobs.backends.subprocess_files import error_stack

_RESTARTED = "The host restarted while the process ran."
_UNKNOWN = "Nothing is known of the process: it was removed, or its keeper's files are gone."


def observation(handle: Handle, facts: Json | None, now: int, *, restarted: bool) -> Observation:
    """What the facts say; none, or an unfinished one from before a restart of the host, is LOST."""
    known = facts or {"state": "forgotten"}
    phase = _phase(known, restarted=restarted)
    code, signal = known.get("code"), known.get("signal")
    details: Json = {
        "subprocess_work_dir": handle.data["task_dir"],
        "subprocess_persistent_storage_path": f"{handle.data['attempt_dir']}/job-storage",
    }
    if (pid := known.get("pid") or handle.data.get("pid")) is not None:
        details |= {"pid": pid, "pgid": pid}
    if code is not None:
        details["exit_code"] = code
    task = TaskObservation(
        rank=0,
        name=handle.data["task"],
        phase=phase,
        native_id=str(pid or ""),
        node=handle.data.get("node", ""),
        exit_code=code,
        signal=signal,
        started_at=known.get("began"),
        ended_at=known.get("ended"),
        cpu_seconds=known.get("cpu"),
        peak_memory_bytes=known.get("rss"),
        error_stack=error_stack(handle.data["out"]) if phase is Phase.FAILED else None,
        details=details,
    )
    reason, message = _words(phase, known, restarted=restarted)
    return Observation(phase, (task,), reason, message, now)


def _phase(facts: Json, *, restarted: bool) -> Phase:
    match facts["state"]:
        case "exited":
            return Phase.SUCCEEDED if facts["code"] == 0 else Phase.FAILED
        case "stopped":
            return Phase.STOPPED
        case "running" if not restarted:
            return Phase.RUNNING
        case "starting" if not restarted:
            return Phase.WAITING
        case _:
            return Phase.LOST


def _words(phase: Phase, facts: Json, *, restarted: bool) -> tuple[str, str]:
    """Reason and sentence."""
    code, signal = facts.get("code"), facts.get("signal")
    match phase:
        case Phase.WAITING:
            return "starting", "The process is being started."
        case Phase.RUNNING:
            return "", f"The process is running with pid {facts['pid']}."
        case Phase.SUCCEEDED:
            return "", "The process finished with code 0."
        case Phase.FAILED if signal is not None:
            memory = " (possibly out of memory)" if signal == "SIGKILL" else ""
            return "signal", f"The process was killed by {signal}{memory}, code {code}."
        case Phase.FAILED:
            return "exit_nonzero", f"The process failed with code {code}."
        case Phase.STOPPED:
            how = f" by {signal}" if signal else ""
            return "", "The process was stopped" + how + (f", code {code}." if code is not None else ".")
        case Phase.LOST:
            if restarted:
                return "host_restarted", _RESTARTED
            return "lost", facts.get("message") or _UNKNOWN
        case _:
            assert_never(phase)
