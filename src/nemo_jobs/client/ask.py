"""Calls described once and sent by either client.

A method marked with `Call` only says what to ask; `Flow` is for those that ask several times, as
a generator that yields `Ask` and `Pause` and is handed the answers; `Walk` for those that also
hand out items, a list at a time. Read through `JobsClient` such a method works at once; read
through `AsyncJobsClient` it is awaited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from nemo_jobs.client.errors import BadAnswer, ClientError

if TYPE_CHECKING:
    from nemo_jobs.client.aio_transfer import AsyncDownload
    from nemo_jobs.client.transfer import Download

P = ParamSpec("P")
T = TypeVar("T")
Query = Sequence[tuple[str, Any]]


class Ask(Generic[T]):
    """One request. `kind` is what its JSON answer must be; None: the answer is of no interest.

    `key` makes a request that creates something safe to repeat: the service knows it again.
    """

    __slots__ = ("body", "headers", "key", "kind", "method", "path", "query")

    def __init__(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        kind: type | None = dict,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> None:
        self.method, self.path, self.query, self.body = method, path, query, body
        self.kind = kind
        self.key = key
        self.headers: Mapping[str, str] = headers or {}
        if key:
            self.headers = {**self.headers, "idempotency-key": key}

    def checked(self, answer: Any) -> T:
        """The answer as what was promised. Raises `BadAnswer`."""
        if self.kind is None:
            answer = None
        elif not isinstance(answer, self.kind):
            got, wanted = type(answer).__name__, self.kind.__name__
            raise BadAnswer(f"{self.method} {self.path} was answered with {got}, not {wanted}")
        found: T = answer
        return found


class Pause:
    """A rest of some seconds between two requests."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


#: What a flow yields: a request, a rest, or items to hand out.
Step: TypeAlias = "Ask[Any] | Pause | list[Any]"
Steps: TypeAlias = "Generator[Step, Any, T]"


#: What became of a step: its answer, or why there is none.
Outcome: TypeAlias = "tuple[Any, ClientError | None]"


class End:
    """The steps are done; `value` is their result."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def advanced(steps: Steps[Any], outcome: Outcome) -> Step | End:
    """The next step, after what became of the last one."""
    answer, error = outcome
    try:
        return steps.send(answer) if error is None else steps.throw(error)
    except StopIteration as end:
        return End(end.value)


class Sync:
    """A client whose methods work at once."""

    def send(self, ask: Ask[T]) -> T:
        raise NotImplementedError

    def run_steps(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def walk_steps(self, steps: Steps[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def fetch(self, ask: Ask[Any]) -> Download:
        raise NotImplementedError


class Async:
    """A client whose methods are awaited."""

    async def send(self, ask: Ask[T]) -> T:
        raise NotImplementedError

    async def run_steps(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def walk_steps(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        raise NotImplementedError

    async def fetch(self, ask: Ask[Any]) -> AsyncDownload:
        raise NotImplementedError


class _Described:
    """Name, text and signature of the method, for `help()`."""

    _way = "send"

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build
        self.__doc__ = build.__doc__
        self.__name__ = build.__name__
        told = str(build.__annotations__.get("return", ""))
        build.__annotations__["return"] = told.partition("[")[2].removesuffix("]")

    def _bound(self, owner: Any) -> Callable[..., Any]:
        build, way = self._build, getattr(owner, self._way)

        def call(*args: Any, **fields: Any) -> Any:
            return way(build(owner, *args, **fields))

        call.__doc__, call.__name__, call.__qualname__ = self.__doc__, self.__name__, build.__qualname__
        call.__wrapped__ = build.__get__(owner)  # type: ignore[attr-defined]
        return call


class Call(_Described, Generic[P, T]):
    """A method of one request."""

    def __init__(self, build: Callable[Concatenate[Any, P], Ask[T]]) -> None:
        super().__init__(build)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Sync, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Async, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner)


class Flow(_Described, Generic[P, T]):
    """A method of several requests that ends with one result."""

    _way = "run_steps"

    def __init__(self, build: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        super().__init__(build)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Sync, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Async, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner)


class Walk(_Described, Generic[P, T]):
    """A method that hands out items while it asks on."""

    _way = "walk_steps"

    def __init__(self, build: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        super().__init__(build)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Sync, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: Async, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner)


class Fetch(_Described, Generic[P]):
    """A method that opens content for reading."""

    _way = "fetch"

    def __init__(self, build: Callable[Concatenate[Any, P], Ask[Download]]) -> None:
        super().__init__(build)

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Sync, kind: type) -> Callable[P, Download]: ...
    @overload
    def __get__(self, owner: Async, kind: type) -> Callable[P, Coroutine[Any, Any, AsyncDownload]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner)
