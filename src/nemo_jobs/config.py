"""Settings from the configuration file and the environment, with all that is wrong at once.

Per value: environment, then file, then default. Flags are the caller's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nemo_jobs.config_environment import overlay
from nemo_jobs.config_model import Database, Files, Host, Jobs, Platform, Service, Settings
from nemo_jobs.config_problems import (
    describe,
    host_mounts,
    repeated_profiles,
    unclear_values,
    unknown_sections,
)
from nemo_jobs.config_tree import Entry
from nemo_jobs.config_yaml import read_yaml

DEFAULT_FILE = Path("/etc/nhx/config.yaml")
FILE_VARIABLE = "NHX_CONFIG_FILE_PATH"
_SIZE_LIMIT = 4 * 2**20


class ConfigError(Exception):
    """The configuration can't be used. `problems` holds a line for each thing that is wrong,
    `warnings` one for each that is only odd."""

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.warnings = warnings


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, what is odd about them, and the file they come from, if any."""

    settings: Settings
    warnings: list[str]
    source: Path | None


def load_settings(config_file: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Read file and environment. Raises `ConfigError` with every problem that can be seen."""
    problems: list[str] = []
    warnings: list[str] = []
    source = _source(config_file, environ)
    root = Entry({}, "configuration")
    if source is not None:
        root = _read(source, problems, warnings) or root
    unknown_sections(root, problems, warnings)
    overlay(root, environ, problems, warnings)
    repeated_profiles(root, problems)
    unclear_values(root, problems)
    host_mounts(root, warnings)
    settings = Settings()
    try:
        settings = Settings.model_validate(root.plain())
    except ValidationError as error:
        problems += describe(error, root)
    if environ.get("NHX_CONFIG_WARNINGS_DISABLED", "").lower() in ("1", "true", "yes"):
        warnings = []
    warnings = _in_order(warnings, source)
    if problems:
        raise ConfigError(_in_order(problems, source), warnings)
    return LoadedSettings(settings, warnings, source)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Where the service keeps its data unless told otherwise: `$XDG_DATA_HOME/nemo-jobs`."""
    base = environ.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        base = str((Path(home) if home.startswith("/") else Path.home()) / ".local" / "share")
    return Path(base) / "nemo-jobs"


def _in_order(texts: list[str], source: Path | None) -> list[str]:
    """Each once, in the order of the file; what is not in it comes first."""
    before = f"{source}:"

    def line(text: str) -> int:
        number = text.removeprefix(before).partition(":")[0] if text.startswith(before) else ""
        return int(number) if number.isdecimal() else 0

    return [_one_line(text) for text in sorted(dict.fromkeys(texts), key=line)]


def _one_line(text: str) -> str:
    """Nothing that a terminal or a log would act on."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _source(config_file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if config_file is not None:
        return config_file
    named = environ.get(FILE_VARIABLE, "")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _read(source: Path, problems: list[str], warnings: list[str]) -> Entry | None:
    try:
        with source.open("rb") as file:
            raw = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        problems.append(f"{source}: can't be read: {error.strerror or error}")
        return None
    if len(raw) > _SIZE_LIMIT:
        problems.append(f"{source}: is larger than {_SIZE_LIMIT // 2**20} MiB, which no configuration is")
        return None
    return read_yaml(raw, str(source), problems, warnings)


__all__ = [
    "ConfigError",
    "Database",
    "Files",
    "Host",
    "Jobs",
    "LoadedSettings",
    "Platform",
    "Service",
    "Settings",
    "default_data_dir",
    "load_settings",
]
