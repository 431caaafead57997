"""Check that the generated facts in the docs are those of the code; `--write` renews them.

Each fact has a generator of its own, `tools/docs_*.py`, which does the work when it is called
without arguments and only compares when it is called with `--check`.
"""

import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent


def main(arguments: list[str]) -> int:
    option = [] if "--write" in arguments else ["--check"]
    generators = sorted(TOOLS.glob("docs_*.py"))
    stale = [file.name for file in generators if subprocess.run([sys.executable, file, *option]).returncode]
    if stale:
        print(f"docs: not up to date: {', '.join(stale)}; run: make format")
        return 1
    print(f"docs: {len(generators)} generators agree")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
