"""YAML read with the place and the text of every value, and without its surprises.

PyYAML composes the nodes; the values are made here, so that a key that stands twice, a tag, or
a plain value that YAML 1.1 and 1.2 read differently is seen and not silently resolved.
"""

import re
from typing import Any

import yaml

from nemo_jobs.config_tree import Entry, Unclear, Value

_TAG = "tag:yaml.org,2002:"
_DEPTH_LIMIT = 40
_ENTRY_LIMIT = 20_000
_TRUE = frozenset({"yes", "true", "on"})
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
_OCTAL = re.compile(r"[-+]?0o?[0-7_]+")
_HEXADECIMAL = re.compile(r"[-+]?0x[0-9a-fA-F_]+")
_DECIMAL = re.compile(r"[-+]?[0-9][0-9_]*")
_FRACTION = re.compile(r"[-+]?[0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?")


def read_yaml(raw: bytes, name: str, problems: list[str], warnings: list[str]) -> Entry | None:
    """The tree of a file; None when it can't be read at all. Problems and warnings are added."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        problems.append(f"{name}:{line}: is not UTF-8 text (byte {raw[error.start]:#04x})")
        return None
    try:
        node = yaml.compose(text, Loader=_loader())
    except yaml.YAMLError as error:
        problems.append(_syntax(error, name))
        return None
    except RecursionError:
        problems.append(f"{name}: is nested too deeply")
        return None
    reader = _Reader(name, problems, warnings)
    root = Entry({}, f"{name}:1") if node is None else reader.entry(node, node.start_mark.line + 1, "", 0)
    if root.value is None:
        return Entry({}, root.where)
    if not isinstance(root.value, dict):
        problems.append(f"{root.where}: the file must hold a mapping of sections such as platform: and jobs:")
        return None
    return root


def _loader() -> Any:
    """libyaml where it is there: it reads five times as fast."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _syntax(error: yaml.YAMLError, name: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = " ".join(
        str(part) for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part
    )
    at = f"{name}:{mark.line + 1}: column {mark.column + 1}" if mark else name
    return f"{at}: not valid YAML: {what or str(error).splitlines()[0]}"


class _Reader:
    """Turns nodes into entries."""

    def __init__(self, name: str, problems: list[str], warnings: list[str]) -> None:
        self._name = name
        self._problems = problems
        self._warnings = warnings
        self._count = 0

    def entry(self, node: yaml.Node, line: int, path: str, depth: int) -> Entry:
        where = f"{self._name}:{line}"
        self._count += 1
        if depth > _DEPTH_LIMIT or self._count > _ENTRY_LIMIT:
            if self._count <= _ENTRY_LIMIT + 1:
                self._problem(line, path, "nested too deeply, or too large (anchors that repeat each other?)")
                self._count = _ENTRY_LIMIT + 1
            return Entry(None, where)
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, "map", line, path)
            return Entry(self._mapping(node, line, path, depth), where)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq", line, path)
            items = [
                self.entry(item, item.start_mark.line + 1, f"{path}[{index}]", depth + 1)
                for index, item in enumerate(node.value)
            ]
            return Entry(items, where)
        return Entry(self._scalar(node, line, path), where, _written(node))

    def _problem(self, line: int, path: str, text: str) -> None:
        self._problems.append(f"{self._name}:{line}: {path + ': ' if path else ''}{text}")

    def _check_tag(self, node: yaml.Node, expected: str, line: int, path: str) -> None:
        if node.tag != _TAG + expected:
            self._problem(line, path, f"tag {_short(node.tag)} is not supported")

    def _mapping(self, node: yaml.MappingNode, line: int, path: str, depth: int) -> dict[str, Entry]:
        if len(node.value) == 1 and node.value[0][0].value == "..." and node.value[0][1].value == "":
            text = (
                f"{self._name}:{line}: {path or 'the file'}: '{{...}}' is a placeholder; it counts as empty"
            )
            self._warnings.append(text)
            return {}
        found: dict[str, Entry] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if key_node.tag == _TAG + "merge":
                merged = {**self._merge(value_node, at, path, depth), **merged}
                continue
            key = self._key(key_node, at, path)
            if key is None:
                continue
            below = f"{path}.{key}" if path else key
            if key in found:
                text = f"the key stands twice, first on line {lines[key]}; the two must become one"
                self._problem(at, below, text)
                continue
            lines[key] = at
            found[key] = self.entry(value_node, at, below, depth + 1)
        return {**merged, **found}

    def _merge(self, node: yaml.Node, line: int, path: str, depth: int) -> dict[str, Entry]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Entry] = {}
        for item in nodes:
            if not isinstance(item, yaml.MappingNode):
                self._problem(line, path, "'<<' takes an alias of a mapping")
                continue
            value = self.entry(item, item.start_mark.line + 1, path, depth + 1).value
            if isinstance(value, dict):
                merged = {**value, **merged}
        return merged

    def _key(self, node: yaml.Node, line: int, path: str) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(line, path, "a key must be text")
            return None
        value = self._scalar(node, line, path)
        if isinstance(value, str):
            return value
        self._problem(
            line, path, f"the key {_written(node)} is read as {reading(value)}; {_quote(node.value)}"
        )
        return None

    def _scalar(self, node: yaml.Node, line: int, path: str) -> Value:
        kind = node.tag.removeprefix(_TAG)
        text = str(node.value)
        if kind in ("str", "value", "merge"):
            return _text(text) if kind == "str" and not getattr(node, "style", None) else text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in _TRUE
        if kind in ("int", "float"):
            return _number(text)
        if kind == "timestamp":
            return Unclear(text, "a date")
        self._problem(line, path, f"tag {_short(node.tag)} is not supported")
        return None


def _text(text: str) -> Value:
    """A plain value that PyYAML takes for text, but newer readers for a number."""
    if _EXPONENT.fullmatch(text):
        return float(text)
    return Unclear(text, "an octal number or text") if _OCTAL.fullmatch(text) and "o" in text else text


def _number(text: str) -> Value:
    bare = text.replace("_", "")
    if ":" in text:
        return Unclear(text, "a time or a number of base 60")
    if _HEXADECIMAL.fullmatch(text):
        return int(bare, 16)
    if _OCTAL.fullmatch(text) and bare.lstrip("+-") != "0":
        return Unclear(text, "a number, of base 8 or of base 10")
    if _DECIMAL.fullmatch(text) and len(bare) <= 40:
        return int(bare)
    if _FRACTION.fullmatch(text) and any(char.isdigit() for char in text):
        return float(bare)
    return Unclear(text, "a number")


def reading(value: object) -> str:
    """What YAML takes a value for, in words."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, Unclear):
        return value.reading
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else "text"


def _quote(text: str) -> str:
    return f'write it in quotes: "{text}"'


def _written(node: yaml.Node) -> str:
    text = str(node.value)
    style = getattr(node, "style", None)
    return f"{style}{text}{style}" if style in ("'", '"') else text


def _short(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag
