"""What is known of the containers of an engine, from its events, lists and answers. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nemo_jobs.backends.api import Json
from nemo_jobs.backends.docker import labels

#: How many containers that are gone are remembered: the code of one may have been seen before.
MOST_GONE = 2000
ENDED = frozenset({"exited", "dead"})
_EVENTS = frozenset({"create", "start", "die", "oom", "kill", "pause", "unpause", "rename", "destroy"})
_STATES = {"create": "created", "start": "running", "pause": "paused", "unpause": "running", "die": "exited"}
_ZERO_YEAR = "0001-"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Seen:
    """One container. Times are microseconds of the engine's clock, 0 when they aren't known."""

    id: str
    name: str
    marks: Mapping[str, str]  # its labels
    image: str = ""
    state: str = "created"  # the engine's word, or "gone"
    started_at: int = 0
    ended_at: int = 0
    code: int | None = None
    oom: bool = False
    error: str = ""
    #: Whether there is nothing more to learn from asking for this container alone.
    certain: bool = True
    #: The signal that was sent to it last in this run, by whomever.
    signal: str = ""
    #: The last words of work that failed; None while they weren't read.
    stack: str | None = None
    changed: int = 0  # when its last event happened, in nanoseconds
    #: Somebody made it end, and may be about to start it again: its end doesn't count yet.
    doubtful: bool = False

    @property
    def run(self) -> labels.Run:
        return labels.run_of(self.name, self.marks)

    @property
    def ended(self) -> bool:
        return self.state in ENDED and not self.doubtful

    @property
    def gone(self) -> bool:
        return self.state == "gone"


class Table:
    """All containers that carry our labels, of this and of other services."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._gone: dict[str, Seen] = {}

    def get(self, container: str) -> Seen | None:
        return self._seen.get(container) or self._gone.get(container)

    def here(self) -> list[Seen]:
        return list(self._seen.values())

    def began(self, container: str, name: str, marks: Mapping[str, str], image: str, at: int) -> None:
        """It was just started: its event may have come already, or come later."""
        seen = self._seen.get(container)
        if seen is None and container not in self._gone:
            seen = self._seen[container] = Seen(container, name, marks, image)
        if seen is not None and seen.state not in ENDED and seen.state != "running":
            seen.state, seen.started_at = "running", seen.started_at or at

    def event(self, event: Json) -> Seen | None:
        """Learn from an event; the container if it may have another answer now."""
        actor = event.get("Actor") or {}
        action, container, marks = event.get("Action"), actor.get("ID"), actor.get("Attributes") or {}
        if action not in _EVENTS or not container:
            return None
        at = int(event.get("timeNano") or 0)
        seen = self._seen.get(container)
        if seen is None:
            if container in self._gone or action not in ("create", "start"):
                return None  # the end of what was removed, or the next list tells of it
            seen = self._seen[container] = Seen(
                container, marks.get("name", ""), marks, marks.get("image", "")
            )
        if at < seen.changed:
            return None  # told again after a gap
        seen.changed = at
        self._apply(seen, action, marks, at // 1000)
        return seen

    def _apply(self, seen: Seen, action: str, marks: Mapping[str, str], at: int) -> None:
        seen.state = _STATES.get(action, seen.state)
        seen.doubtful = seen.doubtful and action not in ("start", "destroy")
        match action:
            case "start":
                seen.started_at, seen.ended_at, seen.code = at, 0, None
                seen.oom, seen.signal, seen.error, seen.stack, seen.certain = False, "", "", None, True
            case "die":
                seen.ended_at, seen.code = at, _number(marks.get("exitCode"))
                seen.certain = seen.code == 0  # of a bad end the engine knows more
            case "oom":
                seen.oom = True
            case "kill":
                seen.signal = marks.get("signal", "")
            case "rename":
                seen.name = marks.get("name", seen.name)
            case "destroy":
                self.lose(seen.id)

    def listed(self, items: Iterable[Json], before: frozenset[str]) -> list[Seen]:
        """Learn from a list of all containers; those that may have another answer now. `before` are
        the ids that were known when the list was asked for: those of them that aren't in it are gone."""
        changed, found = [], set()
        for item in items:
            container = item["Id"]
            found.add(container)
            seen = self._seen.get(container)
            if seen is None:
                if container in self._gone:
                    continue
                seen = self._seen[container] = _of_list(item)
                changed.append(seen)
            elif self._differs(seen, item):
                changed.append(seen)
        for container in before - found:
            if (seen := self._seen.get(container)) is not None:
                self.lose(container)
                changed.append(seen)
        return changed

    @staticmethod
    def _differs(seen: Seen, item: Json) -> bool:
        seen.name = _name(item) or seen.name
        state = item.get("State", "")
        if state == seen.state:
            return False
        if seen.state in ENDED and state == "running":  # lists lag behind events, or it was started again
            seen.certain = False
        else:
            seen.state, seen.certain = state, False
        return True

    def inspected(self, answer: Json) -> Seen:
        """Learn from the engine's whole answer about one container."""
        container, state = answer["Id"], answer["State"]
        if container in self._gone and state.get("Status") == "removing":
            return self._gone[container]  # its end was told while this answer was on its way
        marks = (answer.get("Config") or {}).get("Labels") or {}
        seen = self._seen.get(container)
        if seen is None:
            self._gone.pop(container, None)
            seen = self._seen[container] = Seen(container, "", marks)
        seen.name = answer.get("Name", seen.name).removeprefix("/")
        seen.image = (answer.get("Config") or {}).get("Image") or seen.image
        began = micros(state.get("StartedAt"))
        status = state.get("Status", "")
        seen.certain = True
        if seen.state in ENDED and status == "running" and began <= seen.ended_at:
            return seen  # its end was told, and is being recorded
        seen.state, seen.started_at = status, began
        if status in ENDED:
            seen.ended_at, seen.code = micros(state.get("FinishedAt")), state.get("ExitCode")
            seen.oom = seen.oom or bool(state.get("OOMKilled"))
        else:
            seen.ended_at, seen.code = 0, None
        seen.error = state.get("Error") or ""
        return seen

    def lose(self, container: str) -> None:
        """It isn't there any more."""
        seen = self._seen.pop(container, None)
        if seen is None:
            return
        seen.state = "gone"
        self._gone[container] = seen
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def forget(self, container: str) -> None:
        """Nobody will ask for it again."""
        self._seen.pop(container, None)
        self._gone.pop(container, None)


def _of_list(item: Json) -> Seen:
    state = item.get("State", "")
    return Seen(
        item["Id"],
        _name(item),
        item.get("Labels") or {},
        item.get("Image", ""),
        state,
        certain=state == "created",
    )


def _name(item: Json) -> str:
    names = item.get("Names") or [""]
    return str(names[0]).removeprefix("/")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None


def micros(text: str | None) -> int:
    """The engine's time, with up to nine decimals, as microseconds since 1970; 0 for none."""
    if not text or text.startswith(_ZERO_YEAR):
        return 0
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1)
