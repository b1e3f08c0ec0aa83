"""The interface described, for machines and for people: the OpenAPI document, and a page made from it without
a script and without another host.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import orjson
from fastapi import FastAPI

from floatscope_server import caching
from floatscope_server.openapi.document import document

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>floatscope API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/app.css"><link rel="stylesheet" href="/static/pages.css"></head>
<body><main class="reference">
<h1>floatscope API {version}</h1>
<p>Send the header <code>Authorization: Bearer TOKEN</code>. Errors are <code>application/problem+json</code>
with the field, what was expected and a hint. For machines: <a href="/openapi.json">openapi.json</a>.
<a href="/">Back to the runs</a>.</p>
{operations}
</main></body></html>
"""


@dataclass(frozen=True)
class Described:
    """The document as JSON, the page as HTML, and the tag of both."""

    content: bytes
    page: str
    etag: str


class Reference:
    """Describes an application once, when somebody first asks. cookie: name of the session's cookie."""

    def __init__(self, *, cookie: str) -> None:
        self._cookie = cookie
        self._lock = threading.Lock()
        self._made: Described | None = None

    def of(self, app: FastAPI) -> Described:
        with self._lock:
            if self._made is None:
                found = document(app, cookie=self._cookie)
                content = orjson.dumps(found)
                self._made = Described(content, reference(found), caching.tag(content))
            return self._made


def reference(document: Mapping[str, Any]) -> str:
    """HTML that lists every operation of an OpenAPI document."""
    parts = []
    for path, operations in document.get("paths", {}).items():
        for method, operation in operations.items():
            parts.append(_operation(method, path, operation))
    version = escape(str(document.get("info", {}).get("version", "")))
    return _PAGE.format(version=version, operations="\n".join(parts))


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    table = f"<ul>{''.join(rows)}</ul>" if rows else ""
    bodies = ", ".join(operation.get("requestBody", {}).get("content", {}))
    sent = f"<p>Body: <code>{escape(bodies)}</code></p>" if bodies else ""
    text = escape(str(operation.get("description", operation.get("summary", ""))))
    needs = operation.get("x-scope")
    scope = f"<p>Scope: <code>{escape(str(needs))}</code></p>" if needs else ""
    answers = "".join(_answer(status, answer) for status, answer in operation.get("responses", {}).items())
    head = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>{head}<p>{text}</p>{scope}{table}{sent}<ul>{answers}</ul></section>"


def _answer(status: str, answer: Mapping[str, Any]) -> str:
    """One status: in words and with the name of what comes, or that it is a problem."""
    if "$ref" in answer:
        return f"<li><code>{escape(status)}</code> problem</li>"
    shapes = [str(media.get("schema", {})) for media in answer.get("content", {}).values()]
    found = re.search(r"#/components/schemas/(\w+)", "".join(shapes))
    shape = f" <code>{escape(found[1])}</code>" if found else ""
    return f"<li><code>{escape(status)}</code> {escape(str(answer.get('description', '')))}{shape}</li>"


def _parameter(parameter: Mapping[str, Any]) -> str:
    name, place = escape(str(parameter.get("name"))), escape(str(parameter.get("in")))
    text = escape(str(parameter.get("description", "")))
    need = ", required" if parameter.get("required") else ""
    return f"<li><code>{name}</code> ({place}{need}) {text}</li>"
