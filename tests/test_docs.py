"""The docs say what is true: generated facts, links, and the commands of the Makefile."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_generated_facts_are_those_of_the_code() -> None:
    result = subprocess.run([sys.executable, "tools/check_docs.py"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_links_between_pages_lead_somewhere() -> None:
    dead = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not dead


def test_every_make_command_of_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(), re.M)
        for target in target
        if target
    }
    assert {(page, target) for page, target in named if target not in targets} == set()


@pytest.mark.parametrize(("page", "least"), [("cases", 60), ("compatibility", 120)])
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    named = re.findall(r"`(\S+\.py)::(test_\w+)`", (ROOT / "docs" / f"{page}.md").read_text())
    assert len(named) > least
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text())
    ]
    assert missing == []


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    command = ["make", "--no-print-directory", "help"]
    helped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in helped.splitlines()} == targets
