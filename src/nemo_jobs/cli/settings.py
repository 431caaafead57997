"""Settings of the command: flag, then environment, then file, then default."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

DEFAULT_URL = "http://localhost:8080"
FORMATS = ("table", "json", "yaml", "markdown", "csv", "raw", "code")
TIMESTAMP_FORMATS = ("relative", "iso8601")
_FALSE = frozenset({"0", "false", "no", "off"})
_TRUE = frozenset({"1", "true", "yes", "on"})


class BadSettings(Exception):
    """Environment or file can't be used; the message says which value, where, and what is allowed."""


class Given(Protocol):
    """The flags that matter here."""

    @property
    def base_url(self) -> str | None: ...
    @property
    def context(self) -> str | None: ...
    @property
    def timestamp_format(self) -> str | None: ...
    @property
    def no_truncate(self) -> bool: ...
    @property
    def no_color(self) -> bool: ...


class Settings(NamedTuple):
    """`output_format`, `timestamp_format`: a preference, or None for the command's own default."""

    base_url: str = DEFAULT_URL
    context: str | None = None
    workspace: str = "default"
    token: str | None = None
    ca_file: str | None = None
    output_format: str | None = None
    timestamp_format: str | None = None
    truncate: bool = True
    colour: bool = True
    file: str | None = None


def config_path(environ: Mapping[str, str]) -> str:
    """Where the settings file is, whether it exists or not."""
    if named := environ.get("NHX_CONFIG_FILE"):
        return named
    base = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '/root'}/.config"
    return f"{base}/nhx/config.yaml"


def read_file(path: str) -> dict[str, Any]:
    """The settings file as a mapping; empty when there is none."""
    if not os.access(path, os.F_OK):
        return {}
    # pathlib and yaml take longer to import than the rest of a short command: only for a file.
    from pathlib import Path

    import yaml

    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: can't be read: {error}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise BadSettings(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadSettings(f"{path}: must hold a mapping with clusters, users and contexts")
    return content


def resolve(flags: Given, environ: Mapping[str, str]) -> Settings:
    """Everything in one frozen object. Raises `BadSettings`."""
    path = config_path(environ)
    content = read_file(path)
    if environ.get("NHX_CONFIG_FILE") and not os.access(path, os.F_OK):
        raise BadSettings(f"NHX_CONFIG_FILE names {path}, which doesn't exist")
    name = flags.context or environ.get("NHX_CURRENT_CONTEXT") or content.get("current_context")
    context = _named(content, "contexts", name, path) if name else {}
    cluster = _named(content, "clusters", context.get("cluster"), path) if context.get("cluster") else {}
    user = _named(content, "users", context.get("user"), path) if context.get("user") else {}
    preferences = {**_mapping(content.get("preferences")), **_mapping(context.get("preferences"))}
    address = _text(cluster, "base_url", f"{path}: cluster '{context.get('cluster')}'")
    place = _text(context, "workspace", f"{path}: context '{name}'")
    return Settings(
        base_url=flags.base_url or environ.get("NHX_BASE_URL") or address or DEFAULT_URL,
        context=name,
        workspace=environ.get("NHX_WORKSPACE") or place or environ.get("NEMO_JOB_WORKSPACE") or "default",
        token=environ.get("NHX_ACCESS_TOKEN")
        or token_of(user, f"{path}: user '{context.get('user')}'")
        or task_token(environ),
        ca_file=_text(cluster, "certificate_authority", f"{path}: cluster '{context.get('cluster')}'"),
        output_format=_choice("output_format", "NHX_OUTPUT_FORMAT", FORMATS, environ, preferences, path),
        timestamp_format=flags.timestamp_format
        or _choice("timestamp_format", "NHX_TIMESTAMP_FORMAT", TIMESTAMP_FORMATS, environ, preferences, path),
        truncate=not flags.no_truncate and _switch("truncate", "NHX_TRUNCATE", environ, preferences),
        colour=not flags.no_color
        and not environ.get("NO_COLOR")
        and _switch("color_output", "NHX_COLOR_OUTPUT", environ, preferences),
        file=path if content else None,
    )


def token_of(user: dict[str, Any], where: str) -> str | None:
    """The token of a user, whatever its type: `token`, `oauth`. A `no-auth` user has none."""
    if user.get("type") == "no-auth":
        return None
    return _text(user, "token", where) or _text(user, "access_token", where)


def task_token(environ: Mapping[str, str]) -> str | None:
    """The token that the service gives to a task, of which only the file is in the environment."""
    path = environ.get("NHX_WORKLOAD_IDENTITY_TOKEN_FILE")
    if not path:
        return None
    from pathlib import Path

    try:
        return Path(path).read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"NHX_WORKLOAD_IDENTITY_TOKEN_FILE: {path} can't be read: {error}") from error


def named_items(content: dict[str, Any], kind: str, path: str) -> list[dict[str, Any]]:
    """The clusters, users or contexts of a file."""
    items = content.get(kind) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadSettings(f"{path}: {kind} must be a list of objects with a name")
    return items


def _text(holder: dict[str, Any], key: str, where: str) -> str | None:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise BadSettings(f"{where}: {key} must be text, not {type(value).__name__}")
    return value or None


def _named(content: dict[str, Any], kind: str, name: Any, path: str) -> dict[str, Any]:
    items = named_items(content, kind, path)
    for item in items:
        if item.get("name") == name:
            return item
    known = ", ".join(str(item.get("name")) for item in items) or "none"
    raise BadSettings(f"{path}: {kind} has no '{name}'; known: {known}")


def _choice(
    key: str,
    variable: str,
    allowed: tuple[str, ...],
    environ: Mapping[str, str],
    preferences: dict[str, Any],
    path: str,
) -> str | None:
    value, where = environ.get(variable), variable
    if not value:
        value, where = preferences.get(key), f"{path}: preferences.{key}"
    if value and value not in allowed:
        raise BadSettings(f"{where} is '{value}'; allowed: {', '.join(allowed)}")
    return value or None


def _switch(key: str, variable: str, environ: Mapping[str, str], preferences: dict[str, Any]) -> bool:
    value = environ.get(variable)
    if not value:
        found = preferences.get(key)
        return found if isinstance(found, bool) else True
    if value.lower() in _FALSE | _TRUE:
        return value.lower() in _TRUE
    raise BadSettings(f"{variable} is '{value}'; allowed: true, false")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
