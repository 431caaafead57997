"""One way to speak to both clients, so that each test is about what they promise and not about how."""

import asyncio
import inspect
from typing import Any, Self

from nemo_jobs.client import AsyncJobsClient, AsyncTransport, JobsClient, Retry, Transport

KINDS = ("sync", "async")


class Pauses(list[float]):
    """A sleep that takes no time, for both clients."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)

    async def awaited(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


class Both:
    """A client of either kind; async calls are run to their end."""

    def __init__(
        self, kind: str, url: str, *, repeats: int = 2, workspace: str = "default", **settings: Any
    ) -> None:
        self.kind = kind
        self.pauses = Pauses()
        self.warnings: list[str] = []
        retry = Retry(repeats=repeats, sleep=self.pauses, warn=self.warnings.append)
        if kind == "sync":
            self.client: Any = JobsClient(
                transport=Transport(url, retry=retry, **settings), workspace=workspace
            )
        else:
            self.loop = asyncio.new_event_loop()
            transport = AsyncTransport(url, retry=retry, sleep=self.pauses.awaited, **settings)
            self.client = AsyncJobsClient(transport=transport, workspace=workspace)

    def __getattr__(self, name: str) -> Any:
        """A call, or a walk whose items come as a list."""
        return Asked(self, getattr(self.client, name))

    def done(self, answer: Any) -> Any:
        """The result of whatever a method gave back."""
        if inspect.isawaitable(answer):
            return self.loop.run_until_complete(_awaited(answer))
        if hasattr(answer, "__aiter__") and not hasattr(answer, "about"):
            return self.loop.run_until_complete(_collected(answer))
        return list(answer) if hasattr(answer, "__next__") else answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.kind == "sync":
            self.client.close()
        else:
            self.loop.run_until_complete(self.client.aclose())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


class Asked:
    """A method, or a group of them."""

    def __init__(self, both: Both, value: Any) -> None:
        self._both, self._value = both, value

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self._both.done(self._value(*args, **fields))

    def __getattr__(self, name: str) -> Any:
        return Asked(self._both, getattr(self._value, name))


async def _awaited(answer: Any) -> Any:
    return await answer


async def _collected(items: Any) -> list[Any]:
    return [item async for item in items]
