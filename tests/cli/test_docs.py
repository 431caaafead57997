"""What README and docs say about the command is what it does."""

import re
import subprocess
import sys
from pathlib import Path

from nemo_jobs.cli.inputs import parse_object
from nemo_jobs.cli.jobs_create import check_fields
from nemo_jobs.domain.spec import JobSpec
from tests.cli.conftest import Nemo

ROOT = Path(__file__).parents[2]


def test_the_job_file_of_the_readme_is_a_job() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    fields = parse_object(text, "README.md")
    check_fields(fields)
    assert [step.name for step in JobSpec.model_validate(fields["platform_spec"]).steps] == [
        "collect",
        "report",
    ]


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    head = (ROOT / "README.md").read_text().split("## ", 1)[0]
    assert re.findall(r"^make \w+", head, re.M) == ["make demo", "make test"]


def test_the_overview_of_commands_is_that_of_the_code() -> None:
    checked = subprocess.run([sys.executable, "tools/docs_cli.py", "--check"], cwd=ROOT, timeout=30)
    assert checked.returncode == 0


def test_every_command_has_a_help_that_names_its_purpose(nemo: Nemo) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = re.findall(r"^### nemo ([a-z -]+?)(?: [A-Z[-].*)?$", page, re.M)
    assert len(commands) > 25
    for command in commands:
        ran = nemo(*command.split(), "--help")
        assert (ran.code, ran.err) == (0, ""), command
        assert ran.out.startswith(f"Usage: nemo {command}")


def test_the_version_is_told(nemo: Nemo) -> None:
    assert re.fullmatch(r"nemo \d+\.\d+\.\d+\S*\n", nemo("--version").out)
