"""What a container draws on a line that has no end yet, such as a progress bar.

The engine stores a line when it ends (or at 16 KiB), so a bar that is redrawn by carriage returns for
an hour is in no log until then. It is seen by attaching, which gives bytes as they are written, from
then on and once: good for a look, not for a log. So a screen gives the last redraw as a picture, which
the real bytes replace when they come.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.log_entries import Entry
from nemo_jobs.backends.docker.log_windows import Stream
from nemo_jobs.backends.docker.stream import Demultiplexer

#: The longest picture, in bytes.
MOST = 512
#: Bytes in a second from which on nothing is looked at: that is output, and it will be in the log.
FLOOD = 256 << 10
#: Seconds for which it is left alone then; doubled each time, up to `LONGEST`.
LEFT_ALONE, LONGEST = 15.0, 600.0
#: Seconds without a line until it is looked, and between two pictures.
SILENT, EVERY = 1.0, 0.4
#: Seconds that lines get to come by the log before what is drawn behind them is shown.
SETTLED = 0.5


class Line:
    """The unfinished line of one stream."""

    def __init__(self) -> None:
        self._text = b""
        self._whole = False  # it is known from its beginning on
        self.began = 0.0

    def feed(self, data: bytes, now: float) -> None:
        cut = data.rfind(b"\n") + 1
        if cut or not self.began:
            self._text, self._whole, self.began = b"", bool(cut), now
        self._text += data[cut:]
        if len(self._text) > 4 * MOST:
            self._text, self._whole = self._text[-4 * MOST :], False

    def picture(self) -> bytes:
        """What the last redraw shows; empty when nothing was redrawn."""
        first, *redraws = self._text.split(b"\r")
        if redraws and self._whole:
            redraws.insert(0, first)
        shown = next((text for text in reversed(redraws) if text.strip()), b"")
        return shown if len(shown) <= MOST else b""


class OpenLines:
    """The unfinished lines as far as they were given on, and which of them a picture was drawn over: then
    the line begins anew with the next bytes, as on a terminal."""

    def __init__(self, state: Json | None) -> None:
        self._tails = {int(s): text.encode("latin-1") for s, (text, _) in (state or {}).items()}
        self._drawn = {int(s) for s, (_, drawn) in (state or {}).items() if drawn}

    def to_json(self) -> Json:
        return {
            str(stream): [tail.decode("latin-1"), stream in self._drawn]
            for stream, tail in self._tails.items()
            if tail or stream in self._drawn
        }

    def passed(self, stream: int, data: bytes) -> bytes:
        """The bytes to give on for these, which were stored."""
        tail = self._tails.get(stream, b"")
        given = b"\r" + tail + data if stream in self._drawn else data
        self._drawn.discard(stream)
        rest = data[data.rfind(b"\n") + 1 :]
        rest = rest if len(rest) < len(data) else tail + data
        self._tails[stream] = rest[_last_shown(rest) :][: MOST + 1]
        return given

    def draw(self, stream: int, picture: bytes) -> bytes:
        """The bytes to give on for a picture; empty when it would hide what can't be written again."""
        if len(self._tails.setdefault(stream, b"")) > MOST:
            return b""
        self._drawn.add(stream)
        return b"\r" + picture + b"\r" + picture


def _last_shown(text: bytes) -> int:
    """Where the last redraw begins that shows something."""
    end = len(text.rstrip())
    return text.rfind(b"\r", 0, end) + 1 if end else text.rfind(b"\r") + 1


class Glances:
    """Waits for entries, and looks at the screen while none come. Without an engine it only waits."""

    def __init__(self, engine: DockerEngine | None, container: str) -> None:
        self._engine, self._container = engine, container
        self._screen: Screen | None = None
        self._limit: asyncio.Timeout | None = None

    async def next(self, stream: Stream) -> list[Entry] | None:
        """Entries, as of `Stream.next`; None when there may be pictures instead."""
        if self._engine is None:
            return await stream.next()
        try:
            async with asyncio.timeout(self._patience()) as self._limit:
                return await stream.next()
        except TimeoutError:
            if self._screen is None:
                self._screen = Screen(self._engine, self._container, self._hurry)
            return None
        finally:
            self._limit = None

    def pictures(self) -> list[tuple[int, bytes]]:
        return self._screen.pictures() if self._screen is not None else []

    async def aclose(self) -> None:
        if self._screen is not None:
            await self._screen.aclose()

    def _patience(self) -> float | None:
        if self._screen is None:
            return SILENT
        return EVERY if self._screen.pending else None

    def _hurry(self) -> None:
        if self._limit is not None and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + EVERY)


class Screen:
    """Looks at one running container. `drawn` is called when there may be a new picture."""

    def __init__(self, engine: DockerEngine, container: str, drawn: Callable[[], None]) -> None:
        self._engine, self._container, self._drawn = engine, container, drawn
        self._lines: dict[int, Line] = {}
        self._shown: dict[int, bytes] = {}
        self._task = asyncio.create_task(self._look())

    @property
    def pending(self) -> bool:
        """Whether there is another picture than the last time, or soon will be."""
        return any(picture != self._shown.get(stream) for stream, picture, _ in self._drawn_now())

    def pictures(self) -> list[tuple[int, bytes]]:
        """The stream and what it shows, where that is another picture than the last time."""
        until = asyncio.get_running_loop().time() - SETTLED
        found = [
            (stream, picture)
            for stream, picture, began in self._drawn_now()
            if began <= until and picture != self._shown.get(stream)
        ]
        self._shown.update(found)
        return found

    def _drawn_now(self) -> Iterator[tuple[int, bytes, float]]:
        for stream, line in self._lines.items():
            if picture := line.picture():
                yield stream, picture, line.began

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        pause = LEFT_ALONE
        while True:
            with contextlib.suppress(EngineAway, EngineError):
                if await self._attached():
                    return
            self._lines.clear()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST)

    async def _attached(self) -> bool:
        """Read until there is too much of it; True when the container has ended."""
        now, frames = asyncio.get_running_loop().time, Demultiplexer()
        begun, size = now(), 0
        async with self._engine.attach(self._container) as pieces:
            async for data in pieces:
                if now() > begun + 1.0:
                    begun, size = now(), 0
                size += len(data)
                if size > FLOOD:
                    return False
                for stream, text in frames.feed(data):
                    self._lines.setdefault(stream, Line()).feed(text, now())
                if self.pending:
                    self._drawn()
        return True
