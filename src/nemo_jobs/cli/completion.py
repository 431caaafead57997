"""`nemo completion`: a script that teaches a shell the command's words."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from nemo_jobs.cli.options import pass_session
from nemo_jobs.cli.session import CommandError, Session

if TYPE_CHECKING:
    from nemo_jobs.client import JobsClient

VARIABLE = "_NEMO_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")
#: A person waits for it: seconds until it gives up, and names that still help.
_PATIENCE = 1.0
_MOST_NAMES, _MOST_WORKSPACES = 50, 1000


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@pass_session
def completion(session: Session, shell: str) -> None:
    """Print the completion script of a shell; load it with: eval "$(nemo completion bash)",
    eval "$(nemo completion zsh)" or: nemo completion fish | source"""
    from click.shell_completion import get_completion_class

    from nemo_jobs.cli.root import nemo

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    session.data(found(nemo, {}, "nemo", VARIABLE).source().strip())


def job_names(context: click.Context, incomplete: str) -> list[str]:
    """Names of jobs that begin so, from the service; none when it doesn't answer quickly."""
    wanted = {"name": {"$startsWith": incomplete}} if incomplete else None
    return _names(context, lambda client: client.list_jobs(page_size=_MOST_NAMES, filter=wanted)["data"])


def workspace_names(context: click.Context, incomplete: str) -> list[str]:
    """Names of workspaces that begin so, likewise."""
    found = _names(context, lambda client: client.list_workspaces(page_size=_MOST_WORKSPACES)["data"])
    return [name for name in found if name.startswith(incomplete)]


def _names(context: click.Context, ask: "Callable[[JobsClient], Sequence[Mapping[str, Any]]]") -> list[str]:
    from nemo_jobs.client import ClientError, Retry

    session = context.find_object(Session)
    if session is None:
        return []
    try:
        client = session.client(Retry(repeats=0))
        client.transport.timeout = _PATIENCE
        return [found["name"] for found in ask(client)]
    except (ClientError, CommandError):
        return []
