"""The settings file as something to change: clusters, users, contexts and preferences."""

import os
from typing import Any

from nemo_jobs.cli.session import CommandError, Session
from nemo_jobs.cli.settings import BadSettings, config_path, named_items, read_file

Content = dict[str, Any]
KINDS = ("clusters", "users", "contexts")
#: What is never shown, wherever a file has it.
SECRET = ("token", "access_token", "refresh_token", "id_token", "password", "client_secret")
_HIDDEN = "(set)"


def load(session: Session) -> tuple[str, Content]:
    """The path of the file and what is in it. Raises `CommandError` (2) when it can't be used."""
    path = config_path(session.environ)
    try:
        content = read_file(path)
        for kind in KINDS:
            named_items(content, kind, path)
    except BadSettings as error:
        raise CommandError(str(error), 2) from error
    return path, content


def item(content: Content, kind: str, name: str) -> dict[str, Any]:
    """A cluster, user or context by its name; a new one when there is none."""
    items: list[dict[str, Any]] = content.get(kind) or []
    content[kind] = items
    for found in items:
        if found.get("name") == name:
            return found
    items.append({"name": name})
    return items[-1]


def context_named(content: Content, name: str, path: str) -> dict[str, Any]:
    """A context that must be there. Raises `CommandError` (2)."""
    items: list[dict[str, Any]] = content.get("contexts") or []
    for found in items:
        if found.get("name") == name:
            return found
    known = ", ".join(str(found.get("name")) for found in items) or "none"
    raise CommandError(f"{path}: contexts has no '{name}'; known: {known}", 2)


def shown(value: Any) -> Any:
    """The content without what nobody should read over a shoulder."""
    if isinstance(value, dict):
        return {key: _HIDDEN if key in SECRET and part else shown(part) for key, part in value.items()}
    return [shown(part) for part in value] if isinstance(value, list) else value


def write(path: str, content: Content) -> None:
    """Replace the file in one step; it may hold a token, so only its owner reads it."""
    from pathlib import Path

    import yaml

    target = Path(path).resolve()  # a link stays one
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CommandError(f"{path}: can't be written: {error.strerror}") from error
