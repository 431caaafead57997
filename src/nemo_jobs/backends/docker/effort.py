"""One pull from its beginning to its end, with all the tries that it takes."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker.auth import Login, Logins
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.disk import Disk, Place, measure
from nemo_jobs.backends.docker.errors import EngineAway, EngineError, one_line
from nemo_jobs.backends.docker.progress import Progress, size
from nemo_jobs.backends.docker.refusals import PERMANENT, Meaning, meaning
from nemo_jobs.backends.docker.registry import ImageName
from nemo_jobs.backends.docker.stream import JsonStream

_log = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 3.0, 60.0  # between tries, in seconds
_MEASURE = 2.0  # seconds between looks at the disk
_UNPACK_PATIENCE = 6  # times `stalled`: not every engine tells how far it is in unpacking
_QUEUED = "waiting for a place among the pulls"
_OTHER_TRIES = 2  # of what isn't known to pass by itself


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Times are seconds."""

    at_once: int = 3  # pulls of one engine
    least_free: int = 1 << 30  # bytes of the engine's disk below which no pull begins
    unreachable_tries: int = 4  # while nothing answers under the registry's name
    unreachable: float = 45.0  # the same, in seconds
    failing: float = 600.0  # while the registry answers with errors and no byte more comes
    limited: float = 3600.0  # while it says that it was asked too often
    stalled: float = 300.0  # without any progress until a pull is broken off and begun again
    unwanted: float = 60.0  # until a pull that nobody asks for is given up


@dataclass(frozen=True, slots=True)
class Pulling:
    """A pull that is under way: `message` is for people. `done` and `total` are bytes to be moved, as
    far as they are known yet."""

    message: str
    done: int = 0
    total: int = 0

    @property
    def percent(self) -> int | None:
        """At most 99: the rest is the unpacking."""
        return min(99, self.done * 100 // self.total) if self.total else None


class PullFailed(Exception):
    """The image can't be had: the sentence names the image, what was tried and the engine's reason."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all pulls of an engine have in common."""

    engine: DockerEngine
    logins: Logins
    limits: PullLimits
    places: asyncio.Semaphore
    monotonic: Callable[[], float]


class _Refusal(Exception):
    """One try failed."""

    def __init__(self, meaning: Meaning, text: str) -> None:
        super().__init__(text)
        self.meaning, self.text = meaning, text


class Effort:
    """Pulls an image until it is there, can't be had, or nobody asks any more. `ended` is called then."""

    def __init__(
        self, image: str, name: ImageName, shared: Shared, ended: "Callable[[Effort], None]"
    ) -> None:
        self.image, self.keys = image, set[str]()
        self.failure: Exception | None = None
        self._name, self._shared, self._limits = name, shared, shared.limits
        self._tell = ended
        self._progress = Progress()
        self._best = (0, 0, 0)  # the farthest that a try came
        self._login = Login()
        self._note = _QUEUED if shared.places.locked() else ""  # what is told instead of progress
        self._asked_at = shared.monotonic()
        self._task = asyncio.create_task(self._run())
        self._watch = asyncio.create_task(self._give_up_when_unwanted())

    def ask(self, key: str) -> Pulling:
        """How far it is; `key` waits for the end."""
        self._asked_at = self._shared.monotonic()
        self.keys.add(key)
        progress = self._progress
        return Pulling(f"pulling {self.image}: {self._note or progress}", progress.done, progress.total)

    async def aclose(self) -> None:
        self._watch.cancel()
        self._task.cancel()
        await asyncio.wait((self._task, self._watch))

    async def _run(self) -> None:
        try:
            await self._try_until_it_ends()
        except asyncio.CancelledError:
            self.failure = EngineAway(f"the pull of {self.image} was given up")
            raise
        except (PullFailed, EngineAway) as error:
            self.failure = error
        except Exception as error:  # a fault of ours ends the pull, not those who wait for it
            _log.exception("the pull of %s failed", self.image)
            self.failure = PullFailed(f"the image {self.image} can't be pulled: {one_line(repr(error))}")
        finally:
            self._watch.cancel()
            self._tell(self)

    async def _try_until_it_ends(self) -> None:
        patience = _Patience(self._limits)
        while True:
            before = self._best
            try:
                async with self._shared.places:
                    began = self._shared.monotonic()
                    await self._try()
                return
            except _Refusal as refusal:
                if self._best > before:
                    patience = _Patience(self._limits)
                wait = patience.wait(refusal.meaning, began, self._shared.monotonic())
                if wait is None:
                    raise PullFailed(self._sentence(refusal, patience.tries)) from None
                self._progress = Progress()
                self._note = f"{refusal.meaning.value}: {refusal.text}; trying again in {wait:.0f} s"
                _log.info("pull of %s: %s", self.image, self._note)
            await asyncio.sleep(wait)
            self._note = _QUEUED

    async def _try(self) -> None:
        """One call to the engine, from the look at its disk to the image; raises _Refusal."""
        self._note = ""
        engine = self._shared.engine
        try:
            places = await Disk(engine).places()
            self._check_least(places)
            self._login = await self._shared.logins.find(self._name.registry)
            await self._listen(places)
            if await engine.image(self.image) is None:
                raise _Refusal(Meaning.OTHER, "it says that it has the image, and hasn't")
        except EngineError as error:
            raise _Refusal(meaning(error.status, error.message, self._name), error.message) from error

    async def _listen(self, places: tuple[Place, ...]) -> None:
        """Follow the engine's news to their end."""
        now = self._shared.monotonic
        mark, moved_at, measured_at = self._progress.mark, now(), now()
        stream = self._shared.engine.pull(
            self._name.source, self._login.header, tag=self._name.version, seconds=None
        )
        try:
            while (news := await self._next(stream, moved_at)) is not None:
                self._progress.hear(news)
                if self._progress.mark != mark:
                    mark, moved_at = self._progress.mark, now()
                    self._best = max(self._best, mark)
                if now() - measured_at >= _MEASURE:
                    measured_at = now()
                    await self._check_rest(places)
        finally:
            await stream.aclose()

    async def _next(self, stream: JsonStream, moved_at: float) -> Json | None:
        """The engine's next news; None at their end. Raises _Refusal, also when nothing moves."""
        patience = self._limits.stalled * (_UNPACK_PATIENCE if self._progress.unpacking else 1)
        try:
            async with asyncio.timeout(max(0.0, moved_at + patience - self._shared.monotonic())):
                news = await stream.__anext__()
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise _Refusal(Meaning.FAILING, f"nothing moved for {patience:.0f} s") from None
        if isinstance(text := news.get("error"), str):
            text = one_line(text)
            raise _Refusal(meaning(0, text, self._name), text)
        return news

    def _check_least(self, places: tuple[Place, ...]) -> None:
        room = measure(places)
        if room.free is not None and room.free < self._limits.least_free:
            raise _Refusal(
                Meaning.SPACE,
                f"{size(room.free)} are free in {room.folder}, and no pull begins below "
                f"{size(self._limits.least_free)}",
            )

    async def _check_rest(self, places: tuple[Place, ...]) -> None:
        """What is still to come must fit, else the disk is full at the end for all others too."""
        rest = self._progress.total - self._progress.done
        room = await asyncio.to_thread(measure, places)
        if room.free is not None and rest > room.free:
            text = f"{size(room.free)} are free in {room.folder}, and {size(rest)} are still to come"
            raise _Refusal(Meaning.SPACE, text)

    def _sentence(self, refusal: _Refusal, tries: int) -> str:
        """Everything that helps to put it right."""
        text = f"the image {self.image} can't be pulled: {refusal.meaning.value}: {refusal.text}"
        if refusal.meaning in (Meaning.DENIED, Meaning.MISSING, Meaning.LIMITED):
            text += f" ({self._asked_as()})"
        if tries > 1:
            text += f" (tried {tries} times)"
        return text

    def _asked_as(self) -> str:
        login = self._login
        if login.header:
            return f"asked with the login for {self._name.registry} from {login.source}"
        return f"asked without a login for {self._name.registry}" + (
            f": {login.trouble}" if login.trouble else ""
        )

    async def _give_up_when_unwanted(self) -> None:
        now = self._shared.monotonic
        while True:
            rest = self._asked_at + self._limits.unwanted - now()
            if rest <= 0:
                break
            await asyncio.sleep(rest)
        _log.info("pull of %s: given up, nobody asks for it any more", self.image)
        self._task.cancel()


class _Patience:
    """How often and how long what may pass by itself is tried again, since something moved."""

    def __init__(self, limits: PullLimits) -> None:
        self._limits = limits
        self._counts: dict[Meaning, int] = {}
        self._since: dict[Meaning, float] = {}
        self.tries = 0

    def wait(self, meaning: Meaning, began: float, now: float) -> float | None:
        """Seconds until the next try, after one that began and ended then; None: there is to be none."""
        self.tries += 1
        count = self._counts[meaning] = self._counts.get(meaning, 0) + 1
        since = self._since.setdefault(meaning, began)
        most, seconds = self._most(meaning)
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(count - 1, 10))
        return None if count >= most or now + wait > since + seconds else wait

    def _most(self, meaning: Meaning) -> tuple[int, float]:
        limits = self._limits
        if meaning in PERMANENT:
            return 1, 0.0
        if meaning is Meaning.UNREACHABLE:
            return limits.unreachable_tries, limits.unreachable
        if meaning is Meaning.LIMITED:
            return 10_000, limits.limited
        return _OTHER_TRIES if meaning is Meaning.OTHER else 10_000, limits.failing
