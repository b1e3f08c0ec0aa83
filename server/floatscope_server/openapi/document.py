"""Makes the OpenAPI document from the routes and from what is written down of their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from floatscope_server import scopes
from floatscope_server.openapi import compare_shapes, precision_shapes, run_shapes, telling_shapes
from floatscope_server.openapi.answers import ANSWERS, TITLES, Answer
from floatscope_server.openapi.shapes import ANY, COUNT, TEXT, Shape, obj, ref

PROBLEM = "application/problem+json"
WITH_BODY = ("post", "put", "patch")

_ABOUT = """Errors are `application/problem+json` (RFC 9457) that name the field, what was expected and what
to do. Lists are `{"items": [...], "next_cursor": ...}`; the cursor asks for the next page. Times are ISO 8601
in UTC. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"; null is missing."""

_PROBLEM: Shape = obj(
    {"type": TEXT, "title": TEXT, "status": COUNT, "detail": TEXT},
    {
        "field": {**TEXT, "description": "What is wrong in the request."},
        "expected": {**TEXT, "description": "What it should have been."},
        "hint": {**TEXT, "description": "What to do."},
        "reason": {**TEXT, "description": "Of a batch: gap, conflict or need_tensors."},
        "expected_seq": COUNT,
        "missing_scope": TEXT,
        "limit": {**TEXT, "description": "Which limit was reached."},
    },
    additionalProperties=True,
    description="An error.",
)


def document(app: FastAPI, *, cookie: str) -> dict[str, Any]:
    """The document. cookie: the name of the session's cookie."""
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    shapes: dict[str, Shape] = {
        "Problem": _PROBLEM,
        **run_shapes.SHAPES,
        **compare_shapes.SHAPES,
        **precision_shapes.SHAPES,
        **telling_shapes.SHAPES,
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _complete(method, path, operation, shapes)
    found["components"] = {
        "schemas": shapes,
        "responses": {f"Problem{status}": _problem(text, status) for status, text in TITLES.items()},
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer", "description": "A token, for programs."},
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": cookie,
                "description": "A browser's session, from /login.",
            },
        },
    }
    return found


def _complete(method: str, path: str, operation: dict[str, Any], shapes: dict[str, Shape]) -> None:
    needs = scopes.needed(method.upper(), path)
    answer = ANSWERS.get((method.upper(), path), Answer(ANY))
    is_open = (method.upper(), path) in scopes.OPEN
    if not is_open:
        roles = [] if needs in (None, scopes.ANY) else [str(needs)]
        operation["security"] = [{"token": roles}, {"session": roles}]
        if roles:
            operation["x-scope"] = roles[0]
    _lift_definitions(operation, shapes)
    has_input = bool(operation.get("parameters")) or "requestBody" in operation
    problems: set[int] = set(answer.problems)
    if not is_open:
        problems |= {401, 403, 429, 503}
    if has_input:
        problems |= {422}
    if "{" in path:
        problems |= {404}
    if "requestBody" in operation:
        problems |= {400, 413}
    if "requestBody" in operation and "multipart" not in str(operation["requestBody"]):
        problems |= {415}
    if method in (*WITH_BODY, "delete") and path.startswith("/api/v1/runs"):
        problems |= {421}
    operation["responses"] = _responses(answer, problems)


def _responses(answer: Answer, problems: set[int]) -> dict[str, Any]:
    content = {answer.media: {"schema": answer.shape}}
    found: dict[str, Any] = {str(answer.status): {"description": answer.text, "content": content}}
    for status, text in answer.also:
        found[str(status)] = {"description": text, "content": content}
    if answer.cached:
        found[str(answer.status)]["headers"] = {
            "ETag": {"description": "Send it as If-None-Match.", "schema": TEXT}
        }
        found["304"] = {"description": "Nothing has changed since the answer with this ETag."}
    for status in sorted(problems):
        found.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    return dict(sorted(found.items()))


def _problem(text: str, status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": text, "content": {PROBLEM: {"schema": ref("Problem")}}}
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": COUNT}}
    return found


def _lift_definitions(operation: dict[str, Any], shapes: dict[str, Shape]) -> None:
    """Moves ``$defs`` of a body's schema to where the document can refer to them."""
    content: Mapping[str, Any] = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        schema = media.get("schema", {})
        for name, definition in schema.pop("$defs", {}).items():
            shapes[name] = _repointed(definition)
        media["schema"] = _repointed(schema)


def _repointed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _repointed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_repointed(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"^#/\$defs/", "#/components/schemas/", value)
    return value
