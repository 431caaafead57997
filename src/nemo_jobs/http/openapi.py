"""The API document, from the operations and the models they name."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from nemo_jobs.domain.model import Json
from nemo_jobs.http.documents import MODELS
from nemo_jobs.http.routes import Operation

_REFERENCE = "#/components/schemas/{model}"
#: Tokens are asked for only while authentication is on.
_SCHEMES = {"token": {"type": "http", "scheme": "bearer"}}
_MAYBE: list[Json] = [{}, {"token": []}]
_BYTES = {"type": "string", "format": "binary"}
_TITLES = {
    200: "Done",
    201: "Created",
    204: "Done; no content",
    206: "Done; the part that was asked for",
    304: "It is as the caller knows it",
    400: "The filter or the parameters don't fit together",
    401: "A token is needed, or the one that was sent does not count",
    403: "The token does not allow this",
    404: "Something named in the path does not exist",
    408: "Too little came for too long",
    409: "Not possible in the present state",
    412: "It is not as the caller knows it",
    413: "More than is taken at once",
    415: "The type or the encoding of the body is not known",
    416: "There is nothing in the range that was asked for",
    422: "The input is wrong",
    503: "Not possible now; try again later",
}


def document(operations: Sequence[Operation], version: str) -> Json:
    """The whole document, OpenAPI 3.1."""
    names = {name for operation in operations for name in _names(operation)} | {
        "Problem",
        "ValidationProblems",
    }
    inputs: list[tuple[str, Literal["validation"], TypeAdapter[Any]]] = [
        (name, "validation", MODELS[name]) for name in sorted(names)
    ]
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_REFERENCE)
    shown = {name: schemas[(name, "validation")] for name in names}
    definitions = shared.get("$defs", {})
    paths: Json = {}
    for operation in operations:
        said = _operation(operation, shown, definitions)
        if links := _links(operation, operations):
            said["responses"][str(operation.returns)]["links"] = links
        paths.setdefault(operation.path.replace("...}", "}"), {})[operation.method.lower()] = said
    return {
        "openapi": "3.1.0",
        "info": {"title": "nemo-jobs", "version": version},
        "paths": paths,
        "components": {"schemas": definitions, "securitySchemes": _SCHEMES},
    }


def _names(operation: Operation) -> list[str]:
    named = [operation.query, operation.filter, operation.body, operation.answer]
    return [name for name in (*named, operation.also and operation.also[1]) if name]


def _operation(operation: Operation, shown: Json, definitions: Json) -> Json:
    said: Json = {"summary": operation.summary, "operationId": operation.id}
    parameters = [_in_path(name) for name in re.findall(r"\{(\w+)", operation.path)]
    if operation.query:
        parameters += _in_query(_resolved(shown[operation.query], definitions))
    if operation.filter:
        parameters.append(
            {
                "name": "filter",
                "in": "query",
                "required": False,
                "style": "deepObject",
                "explode": True,
                "schema": shown[operation.filter],
            }
        )
    if parameters:
        said["parameters"] = parameters
    if operation.body:
        content = {
            media: {"schema": shown[operation.body] if media.endswith("json") else _BYTES}
            for media in operation.body_media
        }
        said["requestBody"] = {"required": True, "content": content}
    said["responses"] = _responses(operation, shown)
    if operation.scope != "none":
        said["security"] = _MAYBE
    return said


def _responses(operation: Operation, shown: Json) -> Json:
    success: Json = {"description": _TITLES[operation.returns]}
    if operation.answer:
        success["content"] = {operation.media: {"schema": shown[operation.answer]}}
    responses = {str(operation.returns): success}
    if operation.also:
        status, model = operation.also
        content = {operation.media: {"schema": shown[model]}}
        responses[str(status)] = {"description": _TITLES[status], "content": content}
    for status in sorted({*_always(operation), *operation.errors}):
        if status < 400:
            responses[str(status)] = {"description": _TITLES[status]}
            continue
        schema = shown["ValidationProblems" if status == 422 else "Problem"]
        content = {"application/json": {"schema": schema}}
        responses[str(status)] = {"description": _TITLES[status], "content": content}
    return responses


def _always(operation: Operation) -> set[int]:
    """What every operation of its kind may answer, besides what is said of it alone."""
    found = set() if operation.scope in ("none", "any") else {401, 403}
    if operation.path.startswith("/apis/"):
        found |= {422, 503} if operation.query or operation.filter or operation.body else {503}
    return found | {408, 413, 415} if operation.body else found


def _links(operation: Operation, operations: Sequence[Operation]) -> Json:
    """From what makes a thing to what can be done with it."""
    if operation.method != "POST":
        return {}
    links: Json = {}
    known = re.findall(r"\{(\w+)", operation.path)
    for other in operations:
        names = re.findall(r"\{(\w+)", other.path)
        if other.path.startswith(operation.path + "/{") and len(names) == len(known) + 1:
            parameters = {name: f"$request.path.{name}" for name in known}
            parameters[names[-1]] = "$response.body#/name"
            links[other.id] = {
                "operationId": other.id,
                "parameters": parameters,
            }
    return links


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(model: Json) -> list[Json]:
    required = model.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in model["properties"].items()
    ]


def _resolved(schema: Json, definitions: Json) -> Any:
    reference = schema.get("$ref")
    return definitions[reference.rsplit("/", 1)[1]] if reference else schema
