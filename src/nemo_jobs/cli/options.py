"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from nemo_jobs.cli.session import Session
from nemo_jobs.cli.settings import FORMATS, TIMESTAMP_FORMATS
from nemo_jobs.cli.text import given_text

#: The states of jobs, attempts, steps and tasks.
STATES = (
    *("active", "cancelled", "cancelling", "completed", "created"),
    *("error", "paused", "pausing", "pending", "resuming"),
)

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]
_FORMATS = click.Choice(FORMATS)
_FORMAT_NAMES = ("--output-format", "--output")
_TIMESTAMPS = click.Choice(TIMESTAMP_FORMATS)
_ATTEMPT_ID = "platform-job-attempt-"
_TIMES_HELP = "How tables show times."
_CONTEXT_HELP = "Context of the settings file."
_TELEMETRY_HELP = "Accepted, without effect: the command reports to nobody."
pass_session = click.make_pass_decorator(Session)


def global_options(
    *, root: bool = False, format_letter: bool = True, context_letter: bool = True
) -> Callable[[Any], Any]:
    """The options that stand before or after the sub-command. Below the root only the format
    shows up in the help; a command that uses the letter itself has just the long names."""
    hidden = not root
    form = ("-f",) if format_letter else ()
    context = ("-c",) if context_letter else ()

    def decorate(command: Command) -> Command:
        for option in (
            _flag("no_color", "--no-color", is_flag=True, hidden=hidden, help="No colours."),
            _flag(
                "no_truncate", "--no-truncate", is_flag=True, hidden=hidden, help="Whole values in tables."
            ),
            _flag(
                "timestamp_format", "--timestamp-format", type=_TIMESTAMPS, hidden=hidden, help=_TIMES_HELP
            ),
            _flag(
                "verbose",
                "-v",
                "--verbose",
                count=True,
                hidden=hidden,
                help="Show each request; twice: heads of answers too.",
            ),
            click.option(
                "--no-telemetry", is_flag=True, hidden=hidden, expose_value=False, help=_TELEMETRY_HELP
            ),
            _flag("base_url", "--base-url", metavar="URL", hidden=hidden, help="Address of the service."),
            _flag("context", *context, "--context", metavar="NAME", hidden=hidden, help=_CONTEXT_HELP),
            _flag("output_format", *form, *_FORMAT_NAMES, type=_FORMATS, help="Output format."),
        ):
            command = option(command)
        return command

    return decorate


def workspace_option(command: Command) -> Command:
    """`--workspace`, kept in the session."""

    def keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(Session).workspace = nonempty(context, parameter, value)

    decorate: Decorator[Command] = click.option(
        "-w",
        "--workspace",
        metavar="NAME",
        expose_value=False,
        callback=keep,
        shell_complete=complete_workspace,
        help="Workspace; else NHX_WORKSPACE, the context's, or 'default'.",
    )
    return decorate(command)


def nonempty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name (it would address something else) and undo the locale's decoding."""
    if value is None:
        return None
    try:
        text = given_text(value)
    except ValueError as error:
        raise click.BadParameter("isn't valid UTF-8") from error
    if not text.strip():
        raise click.BadParameter("is empty")
    return text


def name_argument(name: str = "name", metavar: str = "NAME") -> Callable[[Any], Any]:
    """A required name."""
    return click.argument(name, metavar=metavar, callback=nonempty)


def complete_job(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """What a shell offers where a job is named."""
    from nemo_jobs.cli.completion import job_names

    return [*job_names(context, incomplete)]


def complete_workspace(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """What a shell offers where a workspace is named."""
    from nemo_jobs.cli.completion import workspace_names

    return [*workspace_names(context, incomplete)]


def complete_status(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """What a shell offers where a state is named; others are taken too, and match nothing."""
    return [state for state in STATES if state.startswith(incomplete)]


def job_argument(name: str = "name", metavar: str = "NAME", *, required: bool = True) -> Callable[[Any], Any]:
    """A job, by name or id."""
    shown = metavar if required else f"[{metavar}]"
    return click.argument(
        name, metavar=shown, required=required, callback=nonempty, shell_complete=complete_job
    )


def job_option(command: Any) -> Any:
    """`--job`, required."""
    return click.option(
        "--job", required=True, callback=nonempty, shell_complete=complete_job, metavar="JOB", help="The job."
    )(command)


def attempt_option(help: str) -> Callable[[Any], Any]:
    """`--attempt-id`: a number counts the attempts from 0; everything else is an id or `current`."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
        text = nonempty(context, parameter, value)
        if text is None or text == "current" or text.startswith(_ATTEMPT_ID):
            return text
        if not (text.isascii() and text.isdecimal()):
            raise click.BadParameter(
                f"'{text}' is neither a number from 0 nor '{_ATTEMPT_ID}…' nor 'current'"
            )
        return int(text)

    return click.option("--attempt-id", metavar="N|ID", callback=read, help=help)


def job_command(**choices: bool) -> Callable[[Any], Any]:
    """What nearly every command below `jobs` has: the session, the workspace, the globals."""

    def decorate(command: Any) -> Any:
        return global_options(**choices)(workspace_option(pass_session(command)))

    return decorate


def paging_options(sorts: tuple[str, ...]) -> Callable[[Any], Any]:
    """Page, sorting, columns: what a list has."""

    def decorate(command: Any) -> Any:
        for option in (
            columns_option,
            click.option("--stream", is_flag=True, help="One JSON object per line (json, raw)."),
            click.option("--all-pages", is_flag=True, help="Fetch every page."),
            click.option("--sort", type=click.Choice(sorts), help="Order; '-' in front: descending."),
            click.option("--page-size", type=click.IntRange(1), metavar="N", help="Items per page."),
            click.option("--page", type=click.IntRange(1), metavar="N", help="Number of the page."),
        ):
            command = option(command)
        return command

    return decorate


def columns_option(command: Any) -> Any:
    """`-c/--output-columns`."""
    return click.option(
        "-c",
        "--output-columns",
        "columns",
        default="default",
        metavar="default|all|A,B",
        help="Columns of table, csv and markdown.",
    )(command)


def _flag(field: str, *names: str, **settings: Any) -> Callable[[Any], Any]:
    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        flags = context.ensure_object(Session).flags
        if field == "verbose":
            flags.verbose += value or 0
        elif value:
            setattr(flags, field, value)

    return click.option(*names, expose_value=False, callback=keep, **settings)
