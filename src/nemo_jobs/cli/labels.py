"""`--label K=V`: labels to give to a job, or to look for."""

from collections.abc import Callable
from typing import Any

import click

from nemo_jobs.cli.text import given_text

Labels = dict[str, str]


def label_option(help: str) -> Callable[[Any], Any]:
    """`--label`, repeatable; the command gets `labels`, a dict. What a label may be, the service says."""
    return click.option("--label", "labels", multiple=True, metavar="K=V", callback=read_labels, help=help)


def read_labels(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> Labels:
    """The labels of `K=V` words; everything behind the first `=` is the value."""
    found: Labels = {}
    for pair in pairs:
        try:
            key, equals, value = given_text(pair).partition("=")
        except ValueError as error:
            raise click.BadParameter("isn't valid UTF-8") from error
        if not key or not equals:
            raise click.BadParameter(f"'{pair}' must look like KEY=VALUE")
        if key in found:
            raise click.BadParameter(f"the key '{key}' is given twice")
        found[key] = value
    return found


def with_labels(fields: dict[str, Any], labels: Labels) -> dict[str, Any]:
    """The fields of a new job with these labels, beside those that they have already."""
    if not labels:
        return fields
    custom = fields.get("custom_fields") or {}
    known = {} if custom.get("labels") is None else custom["labels"]
    if not isinstance(known, dict):
        raise click.UsageError("custom_fields.labels must be an object to be joined with --label")
    return {**fields, "custom_fields": {**custom, "labels": {**known, **labels}}}
