"""What can go wrong between a client and a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from floatscope.jsonable import one_line

SAID_CHARS = 300


class ApiError(Exception):
    """Any of them; the message says what happened and what to do."""


class NotReached(ApiError):
    """No answer: there is no server, it hung up or took too long."""


class CutOff(ApiError):
    """An answer that ended in the middle: the server stopped, or what it read was deleted meanwhile."""


class Problem(ApiError):
    """The server's answer is an error. field, expected, hint: as the server says, None if it does not.

    extra: further members, such as ``limit`` or ``expected_seq``.  retry_after_s: when to come back.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        field: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
        extra: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        text = f"{status} {title}: {detail}" if detail else f"{status} {title}"
        super().__init__(text if hint is None else f"{text} ({hint})")
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.expected = expected
        self.hint = hint
        self.extra = dict(extra or {})
        self.retry_after_s = retry_after_s


class Refused(Problem):
    """401 or 403: no valid token, or one that may not do this."""


class NotFound(Problem):
    """404: the run, alert or whatever it was is not there."""


def problem_of(status: int, reason: str, content: bytes, headers: Mapping[str, str]) -> Problem:
    """The exception for an answer that is an error. headers: with names in lower case."""
    body = _object(content)
    known = ("type", "title", "status", "detail", "field", "expected", "hint")
    detail = _text(body.get("detail")) or ("" if body else content[:SAID_CHARS].decode("utf-8", "replace"))
    after = headers.get("retry-after", "")
    kind = {401: Refused, 403: Refused, 404: NotFound}.get(status, Problem)
    return kind(
        status,
        one_line(_text(body.get("title")) or reason, most=SAID_CHARS),
        one_line(detail, most=SAID_CHARS),
        field=_text(body.get("field")),
        expected=_text(body.get("expected")),
        hint=_text(body.get("hint")),
        extra={key: value for key, value in body.items() if key not in known},
        retry_after_s=float(after) if after.isdecimal() and len(after) < 10 else None,
    )


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
