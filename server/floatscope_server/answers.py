"""Answers: JSON that keeps NaN apart from null, and problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from floatscope.protocol import strict_json
from floatscope_server.errors import Problem


class Json(Response):
    """A JSON document; non-finite numbers are the strings "NaN", "Infinity" and "-Infinity"."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return strict_json.dumps(content).encode("utf-8", "backslashreplace")


class ProblemAnswer(Json):
    """An error as application/problem+json."""

    media_type = "application/problem+json"

    def __init__(self, problem: Problem, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(
            problem.body(), status_code=problem.status, headers={**problem.headers, **(headers or {})}
        )
