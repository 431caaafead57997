"""Programs that are started beside the service, and never outlive what they were started for."""

import asyncio
import os
import signal
from collections.abc import Mapping

_END_SECONDS = 5.0  # for a killed program to be gone


async def start(
    command: list[str], environ: Mapping[str, str], *, stdin: int, stdout: int, stderr: int
) -> asyncio.subprocess.Process:
    """Start a program as the leader of its own group; raises OSError. When the caller is cancelled
    meanwhile it is killed: the library itself hangs then, with the program running."""
    creating = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(environ), start_new_session=True
        )
    )
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        creating.add_done_callback(_kill)
        await asyncio.wait((creating,))  # the caller closes files that it may still need
        if not creating.cancelled() and creating.exception() is None:
            await end(creating.result())
        raise


async def end(process: asyncio.subprocess.Process, *, read: bool = False) -> None:
    """Kill a program with all that it started, if it hasn't ended, and wait for its end; `read`: the
    caller goes on reading what it writes."""
    if process.returncode is None:
        _kill_group(process)
        try:
            async with asyncio.timeout(_END_SECONDS):
                if read:
                    await process.wait()
                else:
                    await process.communicate()  # read to its end, else its pipes stay open
        except TimeoutError:
            pass  # it hangs in the kernel, or a child that left its group has its pipes


def _kill(creating: asyncio.Future[asyncio.subprocess.Process]) -> None:
    if not creating.cancelled() and creating.exception() is None:
        _kill_group(creating.result())


def _kill_group(process: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended this moment
