"""Write the table of methods of docs/client.md from the client; with `--check` only compare."""

import sys
from pathlib import Path

from nemo_jobs.client.ask import Call, Fetch, Flow, Walk
from nemo_jobs.client.sync import AllCalls, JobsClient, OlderSpelling

PAGE = Path(__file__).parent.parent / "docs" / "client.md"
BEGIN, END = "<!-- generated: make format -->", "<!-- end of generated -->"


def main(arguments: list[str]) -> int:
    old = PAGE.read_text()
    head, _, rest = old.partition(BEGIN)
    new = f"{head}{BEGIN}\n\n{overview()}\n\n{END}{rest.partition(END)[2]}"
    if "--check" in arguments:
        return int(new != old)
    PAGE.write_text(new)
    return 0


def overview() -> str:
    """A row for each group of calls: what it is about, and its methods in the order of the code."""
    rows = ["| about | methods |", "|---|---|"]
    for group in AllCalls.__mro__[1:]:
        found = vars(group).items() if group is not OlderSpelling else ()
        names = [f"`{name}`" for name, value in found if isinstance(value, Call | Flow | Walk | Fetch)]
        if names:
            about = " ".join((group.__doc__ or "").split()).partition(".")[0]
            rows.append(f"| {about} | {', '.join(names)} |")
    streams = [f"`{name}`" for name in ("follow_logs", "stream_job_logs") if hasattr(JobsClient, name)]
    return "\n".join([*rows, f"| Output as it is written | {', '.join(streams)} |"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
