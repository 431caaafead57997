"""Our API document holds everything that existing clients were generated from."""

import json
from pathlib import Path

import pytest

from nemo_jobs.http.app import OPERATIONS
from nemo_jobs.http.openapi import document

THEIRS = json.loads((Path(__file__).parent / "data" / "openapi-compat.json").read_text())
OURS = document(OPERATIONS, "0")
#: Alternatives that may be missing: never listed in a form that older clients can't read.
OPTIONAL = {"OpenShellJobExecutionProfile"}
CASES = [(path, method) for path, methods in THEIRS["paths"].items() for method in methods]


class Walk:
    """Compares two schemas, following references on both sides."""

    def __init__(self):
        self.missing: list[str] = []
        self._under_way = set()

    def schema(self, theirs, ours, at):
        key = (json.dumps(theirs, sort_keys=True), json.dumps(ours, sort_keys=True))
        if key in self._under_way:
            return
        self._under_way.add(key)
        if "x-schema-default" in theirs:
            self.equal(theirs["x-schema-default"], ours.get("x-schema-default"), f"{at} default")
        if "default" in theirs:
            self.equal(theirs["default"], ours.get("default", "nothing"), f"{at} default")
        theirs, ours = resolved(theirs, THEIRS), resolved(ours, OURS)
        alternatives = theirs.get("anyOf") or theirs.get("oneOf")
        if alternatives and "properties" not in theirs:
            for one in alternatives:
                if one.get("$ref", "").rsplit("/", 1)[-1] not in OPTIONAL:
                    self.any_of(one, ours, at)
        elif ours.get("anyOf") or ours.get("oneOf"):
            self.any_of(theirs, ours, at)
        else:
            self.plain(theirs, ours, at)

    def any_of(self, theirs, ours, at):
        best: list | None = None
        for choice in ours.get("anyOf") or ours.get("oneOf") or [ours]:
            attempt = Walk()
            attempt.schema(theirs, choice, at)
            if best is None or len(attempt.missing) < len(best):
                best = attempt.missing
        self.missing += best or []

    def plain(self, theirs, ours, at):
        if "type" in theirs:
            self.equal(theirs["type"], ours.get("type"), f"{at} type")
        for value in values_of(theirs):
            if value not in values_of(ours):
                self.missing.append(f"{at} value {value!r}")
        for name in theirs.get("required", ()):
            if "properties" in theirs and name not in ours.get("required", ()):
                self.missing.append(f"{at} required {name}")
        for name, schema in theirs.get("properties", {}).items():
            if name not in ours.get("properties", {}):
                self.missing.append(f"{at}.{name}")
            else:
                self.schema(schema, ours["properties"][name], f"{at}.{name}")
        if "items" in theirs:
            self.schema(theirs["items"], ours.get("items", {}), f"{at}[]")
        if isinstance(theirs.get("additionalProperties"), dict):
            extra = ours.get("additionalProperties", {})
            self.schema(theirs["additionalProperties"], {} if extra is True else extra, f"{at}.*")
        for name in ("exclusiveMinimum", "maximum", "pattern", "format"):
            if name in theirs:
                self.equal(theirs[name], ours.get(name), f"{at} {name}")

    def equal(self, theirs, ours, at):
        if theirs != ours:
            self.missing.append(f"{at}: {theirs!r}, ours {ours!r}")


def resolved(schema, document):
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def values_of(schema):
    return schema.get("enum") or ([schema["const"]] if "const" in schema else [])


@pytest.mark.parametrize(("path", "method"), CASES)
def test_each_part_of_an_operation_has_a_counterpart(path, method):
    theirs, ours, walk = THEIRS["paths"][path][method], OURS["paths"][path][method], Walk()
    given = {(parameter["name"], parameter["in"]): parameter for parameter in ours.get("parameters", ())}
    for parameter in theirs.get("parameters", ()):
        found = given[parameter["name"], parameter["in"]]
        assert found["required"] == parameter["required"]
        assert found.get("style") == parameter.get("style")
        walk.schema(parameter["schema"], found["schema"], f"?{parameter['name']}")
    if "requestBody" in theirs:
        assert ours["requestBody"]["required"] == theirs["requestBody"]["required"]
        contents(walk, theirs["requestBody"], ours["requestBody"], "body")
    for status, answer in theirs["responses"].items():
        contents(walk, answer, ours["responses"].get(status, {}), status)
    assert walk.missing == []


def contents(walk, theirs, ours, at):
    for media, content in theirs.get("content", {}).items():
        if media not in ours.get("content", {}):
            walk.missing.append(f"{at} {media}")
        else:
            walk.schema(content["schema"], ours["content"][media]["schema"], at)


def test_references_of_the_document_lead_somewhere():
    text = json.dumps(OURS)
    names = {part.split('"', 1)[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(OURS["components"]["schemas"])


def test_operation_ids_are_unique():
    ids = [operation["operationId"] for methods in OURS["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
