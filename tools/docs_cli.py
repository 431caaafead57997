"""Write the command overview of docs/cli.md from the commands; with `--check` only compare."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from nemo_jobs.cli.root import nemo

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
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
    """A section for each command: what it does, its arguments, its options."""
    return "\n\n".join(section(context) for context in leaves(nemo, None, "nemo"))


def leaves(command: click.Command, parent: click.Context | None, name: str) -> Iterator[click.Context]:
    context = click.Context(command, parent=parent, info_name=name)
    if not isinstance(command, click.Group):
        yield context
        return
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        if found is not None:
            yield from leaves(found, context, child)


def section(context: click.Context) -> str:
    command = context.command
    arguments = [item for item in command.params if isinstance(item, click.Argument)]
    words = " ".join(item.make_metavar(context) for item in arguments)
    text = f"### {context.command_path} {words}".rstrip() + f"\n\n{' '.join((command.help or '').split())}"
    rows = [
        f"| `{', '.join(item.opts + item.secondary_opts)}` | {escaped(item.help or '')} |"
        for item in command.params
        if isinstance(item, click.Option) and not item.hidden
    ]
    return text + ("\n\n| option | |\n|---|---|\n" + "\n".join(rows) if rows else "")


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
