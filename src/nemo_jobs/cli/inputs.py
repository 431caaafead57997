"""JSON options and input files of the commands that send something."""

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from nemo_jobs.cli.text import given_text

Json = dict[str, Any]
_LARGEST = 8 << 20


def json_object(context: click.Context, parameter: click.Parameter, value: str | None) -> Json | None:
    """The value of an option as a JSON object."""
    if value is None:
        return None
    try:
        found = json.loads(given_text(value))
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter("must be a JSON object, like '{\"key\": 1}'")
    return found


def json_option(flag: str, **settings: Any) -> Callable[[Any], Any]:
    """An option whose value is a JSON object."""
    return click.option(flag, metavar="JSON", callback=json_object, **settings)


def input_options(command: Any) -> Any:
    """`--input-file` and `--input-data`."""
    command = click.option("--input-data", metavar="JSON|YAML", help="The fields as one object.")(command)
    return click.option(
        "--input-file", metavar="FILE", help="A JSON or YAML file with the fields; '-' reads standard input."
    )(command)


def read_input(file: str | None, data: str | None) -> Json:
    """The object from `--input-file` or `--input-data`; empty without both."""
    if file is not None and data is not None:
        raise click.UsageError("--input-file and --input-data can't go together")
    if file is not None:
        text, where = _read(file), "standard input" if file == "-" else file
    elif data is not None:
        text, where = given_text(data), "--input-data"
    else:
        return {}
    return parse_object(text, where)


def check_input(
    fields: Json,
    *,
    texts: tuple[str, ...] = (),
    objects: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
) -> None:
    """Refuse what no service would take, all problems at once."""
    problems = [f"{key}: required, but missing" for key in required if fields.get(key) is None]
    known = ", ".join(sorted((*texts, *objects)))
    for key, value in fields.items():
        if key not in texts and key not in objects:
            problems.append(f"{key}: unknown; known: {known}")
        elif value is None:
            continue
        elif key in objects and not isinstance(value, dict):
            problems.append(f"{key}: must be an object, not {type(value).__name__}")
        elif key in texts and not isinstance(value, str):
            problems.append(f"{key}: must be text, not {type(value).__name__} ({value!r}); put it in quotes")
    if problems:
        raise click.UsageError("the request can't be sent:\n  " + "\n  ".join(problems))


def parse_object(text: str, where: str) -> Json:
    """An object written as JSON or YAML; a key that is written twice is refused."""
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except ValueError:
        found = _yaml(text, where)
    if not isinstance(found, dict):
        raise click.UsageError(f"{where}: must be an object with the fields of the request")
    return found


def _read(file: str) -> str:
    try:
        if file == "-" and sys.stdin is None:
            raise click.UsageError("standard input is closed")
        if file == "-":
            raw = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            from pathlib import Path

            with Path(file).open("rb") as stream:
                raw = stream.read(_LARGEST + 1)
    except OSError as error:
        raise click.UsageError(f"{file}: can't be read: {error.strerror}") from error
    if len(raw) > _LARGEST:
        raise click.UsageError(f"{file}: is larger than 8 MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: isn't UTF-8 text: {error}") from error


def _yaml(text: str, where: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Keeps the writer from overriding a key by mistake."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        return _unique(loader.construct_pairs(node, deep=True), f"{where}:{node.start_mark.line + 1}")

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise click.UsageError(f"{place}: is neither JSON nor YAML: {problem}") from error


def _unique(pairs: list[tuple[Any, Any]], where: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise click.UsageError(f"{where}: the key '{key}' is written twice")
        found[key] = value
    return found
