"""The jobs of a storm: what each does, and what has to be true about it at the end."""

import random
import shlex
from dataclasses import dataclass, field
from pathlib import Path

SIGNALS = {"KILL": 9, "SEGV": 11, "USR1": 10, "ABRT": 6}


@dataclass(frozen=True)
class Job:
    """One job of the load with everything that is known about it beforehand."""

    name: str
    kind: str
    steps: tuple[list[str], ...]
    state: str = "completed"
    code: int | None = 0  # exit code of the last step; None: not checked
    lines: dict[str, int] = field(default_factory=dict)  # prefix -> how many numbered lines
    marked: bool = True  # writes start and end marks outside of the service's folders
    then: str = ""  # "cancel", "pause" or "rerun": what the driver does to it
    after: float = 0.0  # how long after the answer to create


def make(kind: str, name: str, marks: Path, rng: random.Random) -> Job:
    return KINDS[kind](name, marks, rng)


def pick(rng: random.Random) -> str:
    return rng.choices(list(KINDS), [WEIGHTS[kind] for kind in KINDS])[0]


def plain(name: str, marks: Path, rng: random.Random) -> Job:
    return Job(name, "plain", (["true"],), marked=False)


def marked(name: str, marks: Path, rng: random.Random) -> Job:
    return Job(name, "marked", (script(marks, name, "true"),))


def chained(name: str, marks: Path, rng: random.Random) -> Job:
    pauses = [rng.choice((0, 0, 0.1, 0.5)) for _ in range(3)]
    return Job(name, "chained", tuple(script(marks, name, f"sleep {pause}") for pause in pauses))


def broken_chain(name: str, marks: Path, rng: random.Random) -> Job:
    """The second step fails: the third must never start."""
    code = rng.randrange(1, 126)
    steps = (script(marks, name, "true"), script(marks, name, f"exit {code}"), script(marks, name, "true"))
    return Job(name, "broken_chain", steps, "error", code)


def printing(name: str, marks: Path, rng: random.Random) -> Job:
    """Many lines as fast as it can, on both streams, the last one perhaps without its end."""
    out, err = rng.randrange(1, 20_000), rng.randrange(0, 2_000)
    end = rng.choice(("", " | head -c -1"))
    body = f"{numbered('o', out)}{end}; {numbered('e', err)} >&2"
    return Job(name, "printing", (script(marks, name, body),), lines={"o": out, "e": err})


def talking(name: str, marks: Path, rng: random.Random) -> Job:
    """A few lines at a time for some seconds, so that kills fall between them."""
    count, burst = rng.randrange(20, 200), rng.randrange(5, 20)
    body = (
        f"i=0; while [ $i -lt {count} ]; do echo o $i; echo e $i >&2; i=$((i+1)); "
        f"[ $((i % {burst})) != 0 ] || sleep 0.2; done"
    )
    return Job(name, "talking", (script(marks, name, body),), lines={"o": count, "e": count})


def failing(name: str, marks: Path, rng: random.Random) -> Job:
    code, lines = rng.randrange(1, 126), rng.randrange(0, 50)
    body = f"{numbered('e', lines)} >&2; exit {code}"
    return Job(name, "failing", (script(marks, name, body),), "error", code, lines={"e": lines})


def killed(name: str, marks: Path, rng: random.Random) -> Job:
    signal, number = rng.choice(list(SIGNALS.items()))
    return Job(name, "killed", (script(marks, name, f"kill -{signal} $$"),), "error", 128 + number)


def sleeping(name: str, marks: Path, rng: random.Random) -> Job:
    return Job(name, "sleeping", (script(marks, name, f"sleep {rng.uniform(0.2, 5):.2f}"),))


def leaving(name: str, marks: Path, rng: random.Random) -> Job:
    """Ends at once and leaves a child that has left its session and ignores SIGTERM."""
    child = shlex.quote('trap "" TERM; sleep 300')
    return Job(name, "leaving", (script(marks, name, f"setsid sh -c {child} >/dev/null 2>&1 &"),))


def cancelled(name: str, marks: Path, rng: random.Random) -> Job:
    body = rng.choice(
        (
            "sleep 300",
            'trap "" TERM; sleep 300; sleep 300',
            "setsid sleep 300 >/dev/null 2>&1 & sleep 300",
        )
    )
    steps = (script(marks, name, body), script(marks, name, "true"))
    return Job(name, "cancelled", steps, "cancelled", None, then="cancel", after=rng.choice((0, 0.1, 1, 3)))


def paused(name: str, marks: Path, rng: random.Random) -> Job:
    """Paused and resumed once: it may run twice, never more."""
    body = f"sleep {rng.uniform(0.5, 2):.2f}"
    return Job(name, "paused", (script(marks, name, body),), then="pause", after=rng.choice((0.05, 0.3, 1)))


def again(name: str, marks: Path, rng: random.Random) -> Job:
    """Its second step fails in the first attempt alone, and runs again on what the first one stored."""
    kept = '"$NEMO_JOB_PERSISTENT_JOB_STORAGE_PATH/first"'
    steps = (
        script(marks, name, f'echo "$NEMO_JOB_ATTEMPT_ID" > {kept}'),
        script(
            marks, name, f'test -e {kept} || exit 6; [ "$(cat {kept})" != "$NEMO_JOB_ATTEMPT_ID" ] || exit 5'
        ),
    )
    return Job(name, "again", steps, then="rerun?from_step=step-2", after=rng.choice((0.1, 0.5, 2)))


def script(marks: Path, name: str, body: str) -> list[str]:
    """A shell that notes its start and its end in a file that only this job writes."""
    file = shlex.quote(str(marks / name))
    note = 'echo "{} $NEMO_JOB_STEP $$ $(date +%s%N)" >>' + file
    return ["sh", "-c", f"{note.format('start')}; {body}\ncode=$?; {note.format('end')}; exit $code"]


def numbered(prefix: str, count: int) -> str:
    return f"awk 'BEGIN {{ for (i = 0; i < {count}; i++) print \"{prefix}\", i }}'"


KINDS = {
    make.__name__: make
    for make in (
        *(plain, marked, chained, broken_chain, printing, talking, failing, killed, sleeping),
        *(leaving, cancelled, paused, again),
    )
}
WEIGHTS = {
    "plain": 6,
    "marked": 6,
    "chained": 5,
    "broken_chain": 2,
    "printing": 4,
    "talking": 5,
    "failing": 3,
    "killed": 3,
    "sleeping": 5,
    "leaving": 2,
    "cancelled": 4,
    "paused": 2,
    "again": 3,
}
