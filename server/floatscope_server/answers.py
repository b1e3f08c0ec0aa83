"""Answers: JSON that keeps NaN apart from null, and problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.responses import Response

from floatscope.protocol import strict_json
from floatscope_server.errors import Problem


class Json(Response):
    """A JSON document; non-finite numbers are the strings "NaN", "Infinity" and "-Infinity"."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return strict_json.dumps(content).encode("utf-8", "backslashreplace")


class Numbers(Json):
    """A JSON document of many numbers, written several times faster. It holds no non-finite float: those are
    strings already (``spelled``).
    """

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content)
        except orjson.JSONEncodeError:  # a name with half a surrogate pair
            return super().render(content)


def spelled(values: NDArray[Any], present: NDArray[np.bool_] | None = None) -> list[float | str | None]:
    """Numbers as JSON has them: null where not present, strings where not finite."""
    found: list[float | str | None] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        found[at] = strict_json.plain(found[at])
    if present is not None:
        for at in np.flatnonzero(~present).tolist():
            found[at] = None
    return found


class ProblemAnswer(Json):
    """An error as application/problem+json."""

    media_type = "application/problem+json"

    def __init__(self, problem: Problem, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(
            problem.body(), status_code=problem.status, headers={**problem.headers, **(headers or {})}
        )
