"""Errors of the client, told to a person: kind, number, detail, and what to do."""

from nemo_jobs.cli.session import Session
from nemo_jobs.client.errors import (
    BadAnswer,
    BadRequest,
    ClientError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HttpError,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unprocessable,
)

_KINDS: tuple[tuple[type[ClientError], str], ...] = (
    (BadRequest, "bad request"),
    (Unauthorized, "not signed in"),
    (Forbidden, "not allowed"),
    (NotFound, "not found"),
    (Conflict, "conflict"),
    (Unprocessable, "refused value"),
    (TooManyRequests, "too many requests"),
    (ServerError, "server error"),
    (HttpError, "refused"),
    (TimedOut, "time-out"),
    (ConnectionFailed, "connection error"),
    (BadAnswer, "unexpected answer"),
)


def describe(error: ClientError, base_url: str) -> str:
    """The error as text; its first line stands for itself."""
    if isinstance(error, ConnectionFailed) and error.refused:
        return f"no service is running at {base_url}; start one with: nemo services run"
    kind = next((name for cls, name in _KINDS if isinstance(error, cls)), "error")
    if isinstance(error, HttpError):
        return f"{kind} ({error.status}): {error}"
    return f"{kind}: {error}"


def report(error: Exception, session: Session) -> int:
    """Print an error that nobody handled, and give the exit code."""
    if isinstance(error, ClientError):
        session.note("error: " + describe(error, session.settings.base_url))
        if isinstance(error, HttpError) and session.flags.verbose:
            session.note(f"request: {error.method} {error.target}")
        if isinstance(error, Unauthorized):
            session.note(_sign_in(session))
        if session.hint and isinstance(error, ConnectionFailed) and not error.refused:
            session.note(session.hint)
        return 3
    import traceback

    session.note(f"error: unexpected {type(error).__name__}: {error}")
    if session.flags.verbose:
        session.note("".join(traceback.format_exception(error)))
    else:
        session.note("run it again with -v to see where")
    return 1


def _sign_in(session: Session) -> str:
    """What to do about a 401."""
    if session.settings.token:
        return "the token isn't valid here; give another one: nemo config set --token-file FILE"
    return "no token was sent; set NHX_ACCESS_TOKEN, or keep one: nemo config set --token-file FILE"
