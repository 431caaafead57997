"""Say which modules, functions and classes are larger than the house allows.

A module has at most 400 lines, a function 40 (its docstring included), a class 10 public
methods. Tests are free. Exit code 1 when anything is over.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULE_LINES, FUNCTION_LINES, PUBLIC_METHODS = 400, 40, 10
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    files = [file for folder in ("src", "tools", "bench") for file in sorted((ROOT / folder).rglob("*.py"))]
    offenders = [line for file in files for line in oversized(file)]
    print("\n".join(offenders) or f"sizes: {len(files)} modules, none too large")
    return 1 if offenders else 0


def oversized(file: Path) -> Iterator[str]:
    name, text = file.relative_to(ROOT), file.read_text()
    if (lines := text.count("\n")) > MODULE_LINES:
        yield f"{name}: {lines} lines (at most {MODULE_LINES})"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and (length := height(node)) > FUNCTION_LINES:
            yield f"{name}:{node.lineno}: {node.name}() has {length} lines (at most {FUNCTION_LINES})"
        if isinstance(node, ast.ClassDef) and (methods := public_methods(node)) > PUBLIC_METHODS:
            yield f"{name}:{node.lineno}: {node.name} has {methods} public methods (at most {PUBLIC_METHODS})"


def height(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def public_methods(node: ast.ClassDef) -> int:
    """Properties are read like attributes and don't count."""
    return sum(
        isinstance(item, Function)
        and not item.name.startswith("_")
        and not any("property" in ast.unparse(decorator) for decorator in item.decorator_list)
        for item in node.body
    )


if __name__ == "__main__":
    sys.exit(main())
