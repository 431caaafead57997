"""What the client raises. `str()` of each is a sentence for people."""

from typing import Any


class ClientError(Exception):
    """Base of everything that the client raises on purpose."""


class BadAddress(ClientError):
    """The base URL can't be used; nothing was sent."""


class ConnectionFailed(ClientError):
    """No answer came: the server can't be reached, or the connection broke.

    `refused` is true when nothing listens at the address, so nothing can have been done.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class TimedOut(ConnectionFailed):
    """The server didn't answer within the time-out."""


class BadAnswer(ClientError):
    """The answer isn't what the interface promises."""


class HttpError(ClientError):
    """The server refused or failed. `detail` is its own explanation.

    `tries` counts the requests sent: more than one means that an earlier one may have worked.
    `retry_after` is the pause in seconds that the server asks for, if it does.
    """

    retry_after: float | None = None

    def __init__(
        self, status: int, detail: str, *, code: str = "", method: str = "", target: str = "", tries: int = 1
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.method = method
        self.target = target
        self.tries = tries


class BadRequest(HttpError):
    """400: parameters that contradict each other, or a filter that can't be read."""


class JobFailed(ClientError):
    """A job that was waited for ended as `error`, `cancelled` or `paused`. `job` is the job then."""

    def __init__(self, message: str, job: Any) -> None:
        super().__init__(message)
        self.job = job


class WaitExpired(ClientError):
    """A job hasn't ended within the time given; it goes on."""


class Unauthorized(HttpError):
    """401: no valid token."""


class Forbidden(HttpError):
    """403: the token doesn't allow this."""


class NotFound(HttpError):
    """404: the thing named doesn't exist."""


class Conflict(HttpError):
    """409: the request doesn't fit the present state."""


class Unprocessable(HttpError):
    """422: a value isn't allowed."""


class TooManyRequests(HttpError):
    """429: slow down."""


class ServerError(HttpError):
    """5xx: the server failed or something below it is away."""


_BY_STATUS: dict[int, type[HttpError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Unprocessable,
    429: TooManyRequests,
}


def error_for(status: int, body: bytes, *, method: str, target: str, tries: int) -> HttpError:
    """The error for an answer of 400 or above, with the most readable text the body offers."""
    import json

    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else HttpError)
    detail = _detail(payload) or body[:500].decode("utf-8", "replace").strip() or f"HTTP status {status}"
    return kind(status, detail, code=_code(payload), method=method, target=target, tries=tries)


def _detail(payload: Any) -> str:
    if not isinstance(payload, dict):
        return ""
    detail = payload.get("detail", payload.get("message", ""))
    if isinstance(detail, list):
        return "\n".join(_problem(item) for item in detail)
    return detail if isinstance(detail, str) else str(detail)


def _problem(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    path = ""
    place = item.get("loc")
    for part in place if isinstance(place, list) else ():
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = str(item.get("msg", item)).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _code(payload: Any) -> str:
    """The machine-readable code, in any of the three places where servers put it."""
    if not isinstance(payload, dict):
        return ""
    for holder in (payload, payload.get("detail"), payload.get("error")):
        if isinstance(holder, dict) and isinstance(holder.get("code"), str):
            return str(holder["code"])
    return ""
