"""The table of commands that clients of this interface have: each of ours takes what it says."""

import re

import click
import pytest

from nemo_jobs.cli.root import nemo
from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, scripted

#: command: its arguments and options; a star marks what is required. Everything but
#: `list-execution-profiles` takes --workspace, what shows something also -f.
INPUT = "--input-file --input-data"
TABLE = {
    "create [NAME]": f"--platform-spec* --source* --spec* --custom-fields --description --output-location "
    f"--ownership --project {INPUT} --wait --watch --timeout --poll-interval -f",
    "get NAME": "-f",
    "cancel NAME": "-f",
    "pause NAME": "-f",
    "resume NAME": "-f",
    "get-status NAME": "-f",
    "delete NAME": "",
    "list": "--page --page-size --sort --all-pages --filter --filter.name --filter.project --filter.source "
    "--filter.status --filter.workspace -f -c --output-columns --stream",
    "list-execution-profiles": "-f -c --output-columns --stream",
    "get-logs NAME": "--attempt-id --limit --page-cursor --step-id --tail --task-id --all-pages "
    "-f -c --output-columns --stream",
    "tail NAME": "-n --lines --attempt-id --step-id --task-id",
    "watch NAME": "--attempt-id --step-id --task-id --limit --timeout --poll-interval --history --no-history",
    "update-status-details NAME": f"--body* {INPUT}",
    "results create NAME": f"--job* --artifact-storage-type* --artifact-url* {INPUT} -f",
    "results download NAME": "--job* --output-file* -o",
    "results list NAME": "--sort -f -c --output-columns --stream",
    "results get NAME": "--job* -f",
    "steps list NAME": "--page --page-size --sort --all-pages --filter --filter.job --filter.source "
    "-f -c --output-columns --stream",
    "steps get NAME": "--job* -f",
    "steps update-status NAME": f"--job* --status* --error-details --status-details {INPUT} -f",
    "tasks create-or-update NAME": f"--job* --step* --status --status-details --error-details --error-stack "
    f"{INPUT} -f",
    "tasks list NAME": "--job* -f -c --output-columns --stream",
    "tasks get NAME": "--job* --step* -f",
}
GLOBALS = (
    "--base-url --context -c --output-format --output -f --timestamp-format --no-truncate --no-telemetry "
)
GLOBALS += "--verbose -v --version -V --help -h"

#: Ours take a filter in place of the name.
OR_FILTER = {"cancel NAME", "delete NAME"}


def found(words: list[str]) -> click.Command:
    command: click.Command = nemo
    for word in words:
        assert isinstance(command, click.Group)
        child = command.get_command(click.Context(command), word)
        assert child is not None, f"no command {' '.join(words)}"
        command = child
    return command


def spellings(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    options = [item for item in command.get_params(context) if isinstance(item, click.Option)]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("row", TABLE)
def test_a_command_takes_what_the_table_says(row: str) -> None:
    words = ["jobs", *(word for word in row.split() if word.islower())]
    command = found(words)
    wanted = {option.removesuffix("*") for option in TABLE[row].split()}
    if row != "list-execution-profiles":
        wanted.add("--workspace")
    assert wanted - spellings(command) == set()
    arguments = [item for item in command.params if isinstance(item, click.Argument)]
    names = re.findall(r"\[?NAME\]?", row)
    assert len(arguments) == len(names)
    if row not in OR_FILTER:
        assert [item.required for item in arguments] == ["[" not in name for name in names]


@pytest.mark.parametrize("row", sorted(OR_FILTER))
def test_a_name_or_a_filter_is_needed(row: str, nemo: Nemo) -> None:
    with scripted(Reply(500)) as server:
        ran = nemo("--base-url", server.url, "jobs", row.split()[0])
        assert ran.code == 2
        assert server.seen == []


@pytest.mark.parametrize("row", [row for row, options in TABLE.items() if "*" in options])
def test_what_the_table_requires_is_required(row: str, nemo: Nemo) -> None:
    """Nothing is sent without it, and the exit code is 2."""
    words = [word for word in row.split() if word.islower()]
    name = ["x"] if "NAME" in row else []
    with scripted(Reply(500)) as server:
        ran = nemo("--base-url", server.url, "jobs", *words, *name)
        assert ran.code == 2
        assert ran.err
        assert server.seen == []


def test_the_global_options_are_there() -> None:
    assert set(GLOBALS.split()) - spellings(found([])) == set()


def test_nothing_required_is_asked_beyond_the_table() -> None:
    for row in TABLE:
        command = found(["jobs", *(word for word in row.split() if word.islower())])
        required = {
            item.opts[-1] for item in command.params if isinstance(item, click.Option) and item.required
        }
        starred = {option.removesuffix("*") for option in TABLE[row].split() if option.endswith("*")}
        assert required <= starred | {"-o"}, row
