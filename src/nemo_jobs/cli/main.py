"""Where the program `nemo` begins."""

import os
import signal
import sys
from types import FrameType


def main(args: list[str] | None = None) -> int:
    """Run the command; returns the exit code. Nothing but asked-for data goes to stdout."""
    words = sys.argv[1:] if args is None else args
    if [word for word in words if not word.startswith("-")][:2] == ["services", "run"]:
        # Before anything slow is imported: whoever starts a service may stop it at any moment.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop_at_once)
    from nemo_jobs.cli.root import run

    return run(args)


def stop_at_once(number: int, frame: FrameType | None) -> None:
    """A signal before the service has its own handlers: nothing is running yet.

    An exception could be raised in a place that swallows it, such as the end of an import.
    """
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
