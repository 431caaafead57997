"""Write docs/api.md from the API document; with `--check` only compare."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_jobs.http.app import OPERATIONS
from nemo_jobs.http.openapi import document

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
BEGIN, END = "<!-- generated: make format -->", "<!-- end of generated -->"
Json = dict[str, Any]
_REFERENCE = "#/components/schemas/"
#: What a person looks for, in this order: the first pattern that a path matches names its section.
_SECTIONS = (
    ("GPUs", r"/gpus"),
    ("Results", r"/results"),
    ("Attempts", r"/attempts"),
    ("Tasks", r"/tasks"),
    ("Steps", r"/steps"),
    ("Logs", r"/logs"),
    ("Jobs", r"/apis/jobs/.*/jobs|execution-profiles"),
    ("Workspaces and projects", r"/apis/entities/"),
    ("Secrets", r"/apis/secrets/"),
    ("Filesets and files", r"/apis/files/"),
    ("Tokens", r"/apis/auth/"),
    ("The service", r""),
)
_ORDER = (
    *("Jobs", "Attempts", "Steps", "Tasks", "Logs", "Results", "Filesets and files"),
    "GPUs",
    *("Workspaces and projects", "Secrets", "Tokens", "The service"),
)
#: Models that stand for query parameters are shown with their route.
_QUERY = re.compile(r"Query$")


def main(arguments: list[str]) -> int:
    old = PAGE.read_text()
    head, _, rest = old.partition(BEGIN)
    api = document(OPERATIONS, "")
    new = f"{head}{BEGIN}\n\n{routes(api)}\n\n{objects(api)}\n\n{END}{rest.partition(END)[2]}"
    if "--check" in arguments:
        return int(new != old)
    PAGE.write_text(new)
    return 0


def routes(api: Json) -> str:
    """A section for each subject, with its routes."""
    found: dict[str, list[str]] = {name: [] for name in _ORDER}
    for path, methods in api["paths"].items():
        section = next(name for name, pattern in _SECTIONS if re.search(pattern, path))
        found[section] += [route(method.upper(), path, said) for method, said in methods.items()]
    return "\n\n".join(f"## {name}\n\n" + "\n\n".join(texts) for name, texts in found.items() if texts)


def route(method: str, path: str, said: Json) -> str:
    """One route: what it does, takes and gives."""
    lines = [f"### `{method} {path}`", said["summary"] + "."]
    if "requestBody" in said:
        lines.append("Body: " + contents(said["requestBody"]["content"]) + ".")
    answers = [answer(status, about) for status, about in said["responses"].items() if status < "400"]
    problems = [status for status in said["responses"] if status >= "400"]
    lines.append(
        "Answer: " + "; ".join(answers) + ("" if not problems else f". Errors: {', '.join(problems)}") + "."
    )
    query = [item for item in said.get("parameters", ()) if item["in"] != "path"]
    text = "\n\n".join([lines[0], " ".join(lines[1:])])
    return text + ("\n\n" + table("parameter", map(parameter, query)) if query else "")


def answer(status: str, about: Json) -> str:
    return status + (f" {contents(about['content'])}" if about.get("content") else "")


def contents(found: Json) -> str:
    """The kinds of a body, each with its model."""
    texts = []
    for media, about in found.items():
        model = kind(about.get("schema", {}))
        texts.append(
            model if media == "application/json" else f"`{media}`" + ("" if model == "bytes" else f" {model}")
        )
    return ", ".join(dict.fromkeys(texts))


def parameter(item: Json) -> tuple[str, str, str]:
    schema = item["schema"]
    note = (
        "one header" if item["in"] == "header" else item.get("description") or schema.get("description") or ""
    )
    if item.get("required"):
        note = "required; " + note if note else "required"
    return f"`{item['name']}`", kind(schema), note + default(schema)


def objects(api: Json) -> str:
    """The fields of every object that a body or an answer holds."""
    texts = ["## Objects", "A `*` marks fields that a request must have, or that an answer always has."]
    for name, schema in sorted(api["components"]["schemas"].items()):
        if _QUERY.search(name) or ("properties" not in schema and "enum" not in schema):
            continue
        texts.append(f"### {name}")
        if schema.get("description"):
            texts.append(" ".join(schema["description"].split()))
        if "enum" in schema:
            texts.append(kind(schema))
            continue
        required = schema.get("required", ())
        rows = (
            (f"`{field}`" + ("\\*" if field in required else ""), kind(about), note(about))
            for field, about in schema["properties"].items()
        )
        texts.append(table("field", rows))
    return "\n\n".join(texts)


def note(schema: Json) -> str:
    return " ".join((schema.get("description") or "").split()) + default(schema)


def default(schema: Json) -> str:
    value = schema.get("default")
    return "" if value in (None, {}, []) else f" [`{json.dumps(value, ensure_ascii=False)}`]"


def table(head: str, rows: Iterator[tuple[str, str, str]] | Any) -> str:
    lines = [f"| {head} | kind | |", "|---|---|---|"]
    lines += ["| " + " | ".join(escaped(cell.strip()) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def kind(schema: Json) -> str:
    """What values a schema takes, in a few words."""
    if "$ref" in schema:
        return linked(schema["$ref"].removeprefix(_REFERENCE))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(kind(part) for part in schema[key]))
    if len(schema.get("allOf", ())) == 1:
        return kind(schema["allOf"][0])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    plain = schema.get("type", "any")
    if plain == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if plain == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind(schema['additionalProperties'])}"
    if plain == "string":
        return {"date-time": "time", "binary": "bytes"}.get(schema.get("format", ""), "text") + bounds(schema)
    return str(plain) + bounds(schema)


def bounds(schema: Json) -> str:
    words = {
        "minimum": "≥ {}",
        "exclusiveMinimum": "> {}",
        "maximum": "≤ {}",
        "exclusiveMaximum": "< {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
    }
    found = [text.format(schema[key]) for key, text in words.items() if key in schema]
    return f" ({', '.join(found)})" if found else ""


def linked(name: str) -> str:
    return name if _QUERY.search(name) else f"[{name}](#{name.lower()})"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
