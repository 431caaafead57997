"""`nemo config`: the command's own settings, and a check of a service's configuration."""

from pathlib import Path
from typing import Any

import click

from nemo_jobs.cli.options import global_options, pass_session
from nemo_jobs.cli.render import show_object
from nemo_jobs.cli.session import CommandError, Session
from nemo_jobs.cli.settings import BadSettings, config_path, read_file


@click.group()
def config() -> None:
    """Settings of this command, and checking those of a service."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@global_options()
@pass_session
def check(session: Session, file: Path) -> None:
    """Check a service's configuration file: exit 0 if a service could start with it, else 2."""
    from nemo_jobs.config import ConfigError, load_settings
    from nemo_jobs.domain.profiles import resolve_profiles

    try:
        loaded = load_settings(file, session.environ)
    except ConfigError as error:
        count = len(error.problems)
        _warn(session, error.warnings)
        session.note("\n".join(error.problems))
        raise CommandError(f"{file}: {count} problem{'s' * (count != 1)}", 2) from error
    _warn(session, loaded.warnings)
    profiles = resolve_profiles(loaded.settings, docker=False)
    listed = ", ".join(f"{profile.provider}/{profile.profile}" for profile in profiles.listed())
    session.data(f"{file}: fine; profiles without Docker: {listed or 'none'}")


def _warn(session: Session, warnings: list[str]) -> None:
    for warning in warnings:
        session.note(f"warning: {warning}")


@config.command("set")
@click.option("--workspace", metavar="NAME", help="Workspace of the context.")
@click.option("--activate", is_flag=True, help="Make the context the current one.")
@global_options()
@pass_session
def set_values(session: Session, workspace: str | None, activate: bool) -> None:
    """Write --base-url and --workspace into a context of the settings file."""
    path = config_path(session.environ)
    try:
        content = read_file(path)
    except BadSettings as error:
        raise CommandError(str(error), 2) from error
    name = session.flags.context or content.get("current_context") or "default"
    if session.flags.base_url:
        from nemo_jobs.client import BadAddress
        from nemo_jobs.client.connection import parse_address

        try:
            parse_address(session.flags.base_url)
        except BadAddress as error:
            raise CommandError(str(error), 2) from error
    elif not workspace and not activate:
        raise click.UsageError("nothing to set; give --base-url, --workspace or --activate")
    _change(content, name, session.flags.base_url, workspace)
    if activate or not content.get("current_context"):
        content["current_context"] = name
    _write(Path(path), content)
    session.note(f"wrote context '{name}' to {path}")


@config.command()
@global_options()
@pass_session
def show(session: Session) -> None:
    """Show the settings in force and where they come from."""
    chosen = session.settings
    show_object(
        session,
        {
            "base_url": chosen.base_url,
            "workspace": chosen.workspace,
            "context": chosen.context,
            "token": "set" if chosen.token else None,
            "output_format": chosen.output_format,
            "timestamp_format": chosen.timestamp_format,
            "truncate": chosen.truncate,
            "color_output": chosen.colour,
            "file": chosen.file or config_path(session.environ),
            "file_exists": chosen.file is not None,
        },
    )


def _change(content: dict[str, Any], name: str, base_url: str | None, workspace: str | None) -> None:
    context = _item(content, "contexts", name)
    context.setdefault("cluster", name)
    if base_url:
        _item(content, "clusters", context["cluster"])["base_url"] = base_url
    else:
        _item(content, "clusters", context["cluster"]).setdefault("base_url", "http://localhost:8080")
    context.setdefault("user", "anonymous")
    _item(content, "users", context["user"]).setdefault("type", "no-auth")
    if workspace:
        context["workspace"] = workspace


def _item(content: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = content.setdefault(kind, [])
    for item in items:
        if item.get("name") == name:
            return item
    items.append({"name": name})
    return items[-1]


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file in one step; it may hold a token, so only its owner reads it."""
    import os

    import yaml

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(
            os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CommandError(f"{path}: can't be written: {error.strerror}") from error
