"""What a new attempt takes over from the details of the one before. Pure."""

from typing import Any

from nemo_jobs.domain.model import Json

#: Numbers that tell of the processes that ran, not of how far the work has come.
_OF_A_RUN = frozenset({"pid", "pgid", "exit_code", "signal", "cpu_seconds", "peak_memory_bytes", "restarts"})
_CLOCKS = ("_at", "_time", "_timestamp", "timestamp")
_POD_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})


def carried_over(details: Json) -> Json:
    """The part that holds for the work as a whole: its metrics, its numbers and its phase, and the
    image with which its storage was written. A run that called itself not resumable leaves a
    warning with its reason."""
    kept = {key: value for key, value in details.items() if _stays(key, value)}
    if details.get("resumable") is False:
        kept["rerun_warning"] = _warning(details.get("non_resumable_reason"))
    return kept


def _stays(key: str, value: Any) -> bool:
    if key == "metrics":
        return isinstance(value, dict)
    if key == "image_digest_at_save":
        return True
    if key == "phase":
        return isinstance(value, str) and value not in _POD_PHASES
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and key not in _OF_A_RUN and not key.endswith(_CLOCKS)


def _warning(reason: Any) -> str:
    why = f": {reason}" if isinstance(reason, str) and reason else ""
    return f"the attempt before said that it can't be resumed{why}"
