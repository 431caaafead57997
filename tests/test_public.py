"""What others may rely on: names, version, and what is in the wheel."""

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (file,) = target.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_version_is_the_same_everywhere() -> None:
    import nemo_jobs

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert declared
    assert nemo_jobs.__version__ == importlib.metadata.version("nemo-jobs") == declared[1]


def test_the_package_itself_has_no_public_names() -> None:
    """What is public has a module of its own, such as `nemo_jobs.client`."""
    import nemo_jobs

    modules = {file.stem for file in (ROOT / "src" / "nemo_jobs").iterdir()}
    assert {name for name in vars(nemo_jobs) if not name.startswith("_")} <= modules


def test_the_wheel_has_every_module_the_type_marker_and_the_license(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    sources = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert sources <= names
    assert "nemo_jobs/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    outside = {name for name in names if not name.startswith(("nemo_jobs/", "nemo_jobs-"))}
    assert not outside


def test_the_wheel_installs_the_nemo_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "nemo = nemo_jobs.cli.main:main" in wheel.read(entry_points).decode()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, nemo_jobs; print(*{'fastapi', 'pydantic', 'sqlalchemy', 'click'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == []


def test_locks_have_hashes_and_name_no_host() -> None:
    for lock in ("dev.lock", "requirements.lock", "build.lock"):
        text = (ROOT / lock).read_text()
        assert "://" not in text
        assert not re.search(r"^--?(i|index|extra|find)", text, re.M)
        pins = re.findall(r"^\S+==.*?(?=^\S|\Z)", text, re.M | re.S)
        assert pins
        assert all("--hash=sha256:" in pin for pin in pins)
