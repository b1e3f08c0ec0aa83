"""Answers: JSON that keeps NaN apart from null, and problem documents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from floatscope.protocol import strict_json
from floatscope_dashboards.page import Shell
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.plain_pages import message_page, missing_page
from floatscope_dashboards.say import Say
from floatscope_server.callers import Caller
from floatscope_server.errors import Problem
from floatscope_server.language import say_of
from floatscope_server.times import moment

MACHINE_PATHS = ("/api/", "/openapi.json", "/healthz", "/readyz", "/metrics")
"""Where errors are problem documents whatever the client accepts."""


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


def told(
    request: Request, problem: Problem, *, pages: Pages, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a problem document, or as a page where a person looks at a page."""
    path = str(request.scope["path"])
    if path.startswith(MACHINE_PATHS) or "text/html" not in request.headers.get("accept", ""):
        return ProblemAnswer(problem, headers=headers)
    say = say_of(request, pages)
    if problem.status == 404:
        known = problem.field != "run_id"
        text = _sentence(problem.detail)
        page = missing_page(say, path=path, title=problem.title, text=text, run_is_known=known)
    else:
        text = problem.detail if problem.hint is None else f"{problem.detail}; {problem.hint}"
        page = message_page(say, status=problem.status, title=problem.title, text=_sentence(text))
    html = pages.show(page, _frame(request, say))
    return HTMLResponse(html, status_code=problem.status, headers={**problem.headers, **(headers or {})})


def _frame(request: Request, say: Say) -> Shell:
    """The frame of a message: with navigation and search for whoever may read. It asks no database, since
    that may be what is the matter.
    """
    caller = request.scope.get("state", {}).get("caller")
    version = request.app.version
    if not isinstance(caller, Caller) or not caller.may("read"):
        return Shell(say, version)
    return Shell(
        say,
        version,
        moment(time.time()),
        may=caller.scopes,
        reader=caller.name,
        session=caller.session,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
