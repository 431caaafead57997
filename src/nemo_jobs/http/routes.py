"""Which handler a request belongs to.

Paths are matched on their raw segments, split before they are decoded: an encoded slash stays
part of a name and can't turn one route into another. A lookup is one dict access a segment.
A last value written `{name...}` takes the rest of the path, slashes included; it is decoded once,
and its handler checks what is in it.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from nemo_jobs.http.errors import Refused
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import Request
from nemo_jobs.http.wire import Reply

Handler = Callable[[Api, Request], Awaitable[Reply | None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method on a path, with what the API document says about it.

    `query`, `filter`, `body` and `answer` name models of `nemo_jobs.http.documents`, which is loaded only
    when somebody asks for the document. `returns` is the success status, `also` a further one with its
    model, `body_media` the content types
    of a body; of those that are not JSON the document says that they are bytes.
    `scope` is what a caller needs while authentication is on, see `nemo_jobs.http.rules`; without it
    read to look and write to change.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: str | None = None
    returns: int = 200
    query: str | None = None
    filter: str | None = None
    body: str | None = None
    errors: tuple[int, ...] = ()
    also: tuple[int, str] | None = None
    media: str = "application/json"
    body_media: tuple[str, ...] = ("application/json",)
    scope: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """What the document calls it: `name`, which is needed where routes share a handler."""
        return self.name or self.handler.__name__


@dataclass(slots=True)
class _Node:
    children: dict[bytes, "_Node"] = field(default_factory=dict)
    any: "_Node | None" = None
    rest: "_Node | None" = None
    methods: dict[str, Operation] = field(default_factory=dict)


class Routes:
    """All operations, found by method and raw path."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self._root = _Node()
        self._names: dict[Operation, list[str]] = {}
        for operation in operations:
            self._add(operation)

    def find(self, method: str, raw_path: bytes) -> tuple[Operation, dict[str, str]]:
        """The operation and its decoded path values. Raises Refused (404, 405)."""
        node, values = self._root, []
        segments = raw_path[1:].split(b"/")
        for at, segment in enumerate(segments):
            child = node.children.get(segment)
            if child is None:
                if node.rest is not None:
                    node = node.rest
                    values.append(_decoded_rest(b"/".join(segments[at:])))
                    break
                child = node.any
                if child is None or not segment:
                    raise _unknown(raw_path)
                values.append(segment.decode("ascii") if segment.isalnum() else _decoded(segment, raw_path))
            node = child
        operation = node.methods.get(method)
        if operation is None:
            raise _not_allowed(method, node, raw_path)
        return operation, dict(zip(self._names[operation], values, strict=True))

    def _add(self, operation: Operation) -> None:
        node = self._root
        for segment in operation.path[1:].split("/"):
            if segment.endswith("...}"):
                node.rest = node.rest or _Node()
                node = node.rest
            elif segment.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.children.setdefault(segment.encode(), _Node())
        if operation.method in node.methods:
            raise ValueError(f"{operation.method} {operation.path} is there twice")
        self._names[operation] = re.findall(r"\{(\w+)(?:\.\.\.)?\}", operation.path)
        node.methods[operation.method] = operation


def _decoded(segment: bytes, raw_path: bytes) -> str:
    """One level of percent-decoding; what is no text is no name either."""
    try:
        text = unquote_to_bytes(segment).decode() if b"%" in segment else segment.decode()
    except UnicodeDecodeError:
        raise _unknown(raw_path) from None
    if "\0" in text:
        raise _unknown(raw_path)
    return text


def _decoded_rest(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Refused(422, f"the path {_shown(raw)} is not UTF-8 text") from None


def _unknown(raw_path: bytes) -> Refused:
    return Refused(404, f"there is nothing at {_shown(raw_path)}")


def _not_allowed(method: str, node: _Node, raw_path: bytes) -> Refused:
    if not node.methods:
        return _unknown(raw_path)
    allowed = ", ".join(sorted(node.methods))
    does = "does" if len(node.methods) == 1 else "do"
    text = f"{method} does not work on {_shown(raw_path)}; {allowed} {does}"
    return Refused(405, text, (b"allow", allowed.encode()))


def _shown(raw_path: bytes) -> str:
    text = raw_path.decode("ascii", "replace")
    return text if len(text) <= 200 else text[:200] + "…"
