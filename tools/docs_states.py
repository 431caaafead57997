"""Write the tables of docs/states.md from the code; with `--check` only compare."""

import sys
from pathlib import Path

from nemo_jobs.domain.model import Reason
from nemo_jobs.domain.states import TERMINAL, TRANSITIONS, WRITABLE, State, Trigger

PAGE = Path(__file__).parent.parent / "docs" / "states.md"
BEGIN, END = "<!-- generated: make format -->", "<!-- end of generated -->"


def main(arguments: list[str]) -> int:
    old = PAGE.read_text()
    head, _, rest = old.partition(BEGIN)
    new = f"{head}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"
    if "--check" in arguments:
        return int(new != old)
    PAGE.write_text(new)
    return 0


def tables() -> str:
    return "\n\n".join(
        (
            "## What moves a step\n\n" + transitions(),
            "## What an outside writer may set\n\n" + writable(),
            "## Reasons\n\n" + ", ".join(f"`{reason}`" for reason in Reason) + ".",
        )
    )


def transitions() -> str:
    rows = [row("state", *Trigger), row("---", *["---"] * len(Trigger))]
    rows += [row(state, *(TRANSITIONS[state].get(trigger, ".") for trigger in Trigger)) for state in State]
    return "\n".join(rows)


def writable() -> str:
    rows = [row("from", "to"), row("---", "---")]
    rows += [
        row(state, ", ".join(target for target in State if target in WRITABLE[state]))
        for state in State
        if state not in TERMINAL
    ]
    return "\n".join(rows)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
