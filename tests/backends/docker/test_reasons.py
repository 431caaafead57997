import pytest

from nemo_jobs.backends.api import Rejected, Unavailable
from nemo_jobs.backends.docker.errors import EngineError
from nemo_jobs.backends.docker.reasons import explained, fleeting

NO_DRIVER = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
NO_PROGRAM = (
    "failed to create shim: OCI runtime create failed: runc create failed: container_linux.go:380: exec: "
    '"/none": stat /none: no such file or directory: unknown'
)
NOT_FOUND = 'OCI runtime create failed: exec: "tool": executable file not found in $PATH: unknown'


@pytest.mark.parametrize(
    ("status", "text", "phase", "words"),
    [
        (500, NO_DRIVER, "starting", ("GPU", "image:1", "could not select")),
        (400, NO_PROGRAM, "starting", ("'/none'", "image:1")),
        (400, NOT_FOUND, "starting", ("'tool'", "image:1")),
        (404, "network none-such not found", "starting", ("none-such", "job_container_network")),
        (500, "write /x: no space left on device", "creating", ("disk is full", "image:1")),
        (400, "invalid mount config", "creating", ("created", "image:1", "invalid mount config")),
        (500, "something nobody knows", "starting", ("started", "something nobody knows")),
    ],
)
def test_a_refusal_names_phase_image_and_reason(
    status: int, text: str, phase: str, words: tuple[str, ...]
) -> None:
    error = explained(EngineError(status, text), phase, "image:1")
    assert isinstance(error, Rejected)
    for word in words:
        assert word in str(error)


def test_a_program_that_is_not_there_is_a_reason_of_its_own() -> None:
    error = explained(EngineError(400, NOT_FOUND), "starting", "image:1")
    assert isinstance(error, Rejected)
    assert error.reason == "program_not_found"


@pytest.mark.parametrize(
    ("status", "text"), [(404, "No such image: image:1"), (503, "the engine is shutting down")]
)
def test_what_may_be_there_later_is_no_refusal(status: int, text: str) -> None:
    assert isinstance(explained(EngineError(status, text), "creating", "image:1"), Unavailable)


def test_what_is_tried_again() -> None:
    assert fleeting(EngineError(500, "fork/exec: resource temporarily unavailable"))
    assert not fleeting(EngineError(400, "try again"))
    assert not fleeting(EngineError(500, NO_DRIVER))
