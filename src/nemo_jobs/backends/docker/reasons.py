"""What the engine's refusals mean for a plan, in sentences."""

import re

from nemo_jobs.backends.api import BackendError, Rejected, Unavailable
from nemo_jobs.backends.docker.errors import EngineError

_PROGRAM = re.compile(
    r"executable file not found|no such file or directory: unknown|exec .*: permission denied"
    r"|exec: \"[^\"]*\": (?:stat|permission|is a dir)|not a directory: unknown"
)
_QUOTED = re.compile(r"exec: \\?\"([^\"\\]*)\\?\"")
_GPU = re.compile(r"could not select device driver|nvidia-container|unknown device|CDI device|cdi device")
_NETWORK = re.compile(r"network (\S+) not found")
#: What may be over in a moment.
_FLEETING = re.compile(
    r"resource temporarily unavailable|deadline exceeded|device or resource busy|try again|timed? ?out"
    r"|connection (?:reset|refused)|shutting down|context canceled|transport is closing"
)


def fleeting(error: EngineError) -> bool:
    """Whether the same call may well succeed in a while."""
    return error.status >= 500 and _FLEETING.search(error.message) is not None


def explained(error: EngineError, phase: str, image: str) -> BackendError:
    """Why work can't be started: the phase, the image, and the engine's reason."""
    reason = error.message
    if phase == "creating" and error.missing and "image" in reason.lower():
        return Unavailable(f"the image {image} was removed from the engine meanwhile", retry_after=0.5)
    if error.status == 503:
        return Unavailable(f"the engine is not ready: {reason}")
    what = "the container can't be created" if phase == "creating" else "the container can't be started"
    if _GPU.search(reason):
        hint = "the engine has no GPU runtime, or not these devices"
        return Rejected(f"{what} from image {image}: {hint} ({reason})")
    if _PROGRAM.search(reason):
        named = _QUOTED.search(reason)
        program = f"the program {named[1]!r}" if named else "the program"
        text = f"{program} can't be run in image {image}: it isn't there, or is no program ({reason})"
        return Rejected(text, "program_not_found")
    if found := _NETWORK.search(reason):
        return Rejected(f"{what}: the engine has no network {found[1]} (networking.job_container_network)")
    if "no space left" in reason:
        return Rejected(f"{what} from image {image}: the engine's disk is full ({reason})")
    return Rejected(f"{what} from image {image}: {reason}")
