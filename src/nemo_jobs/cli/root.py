"""The command `nemo` itself: its groups, and what becomes of errors.

Groups and commands are imported when they are called: a short command must not pay for the others.
"""

import os
import signal
import sys

import click

from nemo_jobs.cli.lazy import LazyGroup
from nemo_jobs.cli.options import global_options
from nemo_jobs.cli.session import CommandError, Done, OutputLost, Session, Terminated, flush

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"nemo {version('nemo-jobs')}")
        context.exit()


@click.group(
    "nemo",
    cls=LazyGroup,
    context_settings=SETTINGS,
    lazy={
        "jobs": "nemo_jobs.cli.jobs:jobs",
        "workspaces": "nemo_jobs.cli.workspaces:workspaces",
        "projects": "nemo_jobs.cli.projects:projects",
        "secrets": "nemo_jobs.cli.secrets:secrets",
        "gpus": "nemo_jobs.cli.gpus:gpus",
        "services": "nemo_jobs.cli.services:services",
        "config": "nemo_jobs.cli.config:config",
        "db": "nemo_jobs.cli.db:db",
        "auth": "nemo_jobs.cli.auth:auth",
        "completion": "nemo_jobs.cli.completion:completion",
    },
)
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Version."
)
@global_options(root=True)
def nemo() -> None:
    """Send jobs, follow them to their end, keep their logs and results."""


def run(args: list[str] | None) -> int:
    """Run the command; returns the exit code. Nothing but asked-for data goes to stdout."""
    prepare_streams()
    session = Session()
    try:
        with session:
            code = _guarded(args, session)
        flush()
    except OutputLost as error:
        # What is still in the buffer must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if str(error):
            session.note(f"error: output can't be written: {error}")
        return 1
    return code


def _guarded(args: list[str] | None, session: Session) -> int:
    try:
        result = nemo.main(args, prog_name="nemo", obj=session, standalone_mode=False)
    except Done:
        return 0
    except click.Abort:
        return _interrupted(session, 130)
    except KeyboardInterrupt:
        return _interrupted(session, 130)
    except Terminated:
        return _interrupted(session, 143)
    except click.UsageError as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        session.note(f"error: {error.format_message()}")
        return error.exit_code
    except CommandError as error:
        session.note(f"error: {error}")
        return error.code
    except OutputLost:
        raise
    except Exception as error:
        from nemo_jobs.cli.failures import report

        return report(error, session)
    return result if isinstance(result, int) else 0


def _interrupted(session: Session, code: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if session.hint:
        session.note(session.hint)
    return code


def prepare_streams() -> None:
    """Text that the locale can't show is replaced; it never stops the output."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
