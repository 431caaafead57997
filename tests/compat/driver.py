"""Runs in the environment of the released client: its commands and its classes, many a process.

Importing the client takes seconds, so it is imported once; each request gets a forked child, which
begins as a fresh process after its imports. A request is a line of JSON on stdin: `argv` of a
command or `code` of a script, maybe `stdin` and `env`; the answer is a line of JSON on stdout.
"""

import ipaddress
import json
import os
import sys
import tempfile
import traceback
from typing import Any


def refuse_the_network(event: str, args: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto") and isinstance(args[1], tuple):
        host = args[1][0]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise RuntimeError(f"the client wanted to reach {host}; only loopback is allowed")


def child(request: dict[str, Any], files: list[Any]) -> None:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    os.environ.update(request.get("env", {}))
    code = 1
    try:
        if "code" in request:
            exec(compile(request["code"], "script", "exec"), {"__name__": "__main__"})
        else:
            from nemo_platform.cli.app import cli  # type: ignore[import-not-found]

            sys.argv = ["nemo", *request["argv"]]
            cli()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def warm_up() -> None:
    """One command for what is imported at the first one; nobody sees what it says."""
    kept = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "w") as nothing:
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    from nemo_platform.cli.app import cli

    sys.argv = ["nemo", "jobs", "list"]
    try:
        cli()
    except SystemExit:
        pass
    sys.stdout.flush()
    sys.stderr.flush()
    for number, file in enumerate(kept, 1):
        os.dup2(file, number)


def main() -> None:
    sys.addaudithook(refuse_the_network)
    import nemo_platform  # type: ignore[import-not-found]

    answers = os.fdopen(os.dup(1), "w")
    warm_up()
    print(json.dumps({"version": nemo_platform.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 - closed when they are dropped
        files[0].write(request.get("stdin", "").encode())
        files[0].seek(0)
        pid = os.fork()
        if pid == 0:
            child(request, files)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in files[1:]:
            file.seek(0)
        out, err = (file.read().decode() for file in files[1:])
        print(json.dumps({"code": status, "out": out, "err": err}), file=answers, flush=True)


if __name__ == "__main__":
    main()
