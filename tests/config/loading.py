"""Loading a configuration from text, for the tests beside this file."""

from pathlib import Path
from textwrap import dedent

import pytest

from nemo_jobs.config import ConfigError, LoadedSettings, load_settings


def load(text: str, folder: Path, **environ: str) -> LoadedSettings:
    """The settings of a file with this text, and of these variables."""
    file = folder / "config.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    return load_settings(file, environ)


def problems(text: str, folder: Path, **environ: str) -> list[str]:
    """The problems of a file with this text, without its folder in front."""
    with pytest.raises(ConfigError) as caught:
        load(text, folder, **environ)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def problem(text: str, folder: Path, **environ: str) -> str:
    """The only problem."""
    (only,) = problems(text, folder, **environ)
    return only


def environment(**environ: str) -> LoadedSettings:
    """The settings of these variables alone."""
    return load_settings(None, environ)


def environment_problem(**environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, environ)
    (only,) = caught.value.problems
    return only
