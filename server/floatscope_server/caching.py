"""Answers that a client may keep: it asks each time whether they still hold, and hears 304 if so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

CHECK_EACH_TIME = "private, no-cache"
"""Kept by the client alone, and never used without asking: who may see it can change."""
_DIGITS = 32


def tag(*parts: object) -> str:
    """An ETag of what an answer is made from. It is weak: compressed or not, it is the same answer."""
    whole = "\0".join(part.hex() if isinstance(part, bytes) else repr(part) for part in parts)
    return f'W/"{hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]}"'


def holds(request: Request, etag: str) -> bool:
    """Whether the client has the answer with this tag already."""
    given = request.headers.get("if-none-match", "")
    known = etag.removeprefix("W/")
    return any(one.strip().removeprefix("W/") == known for one in given.split(","))


def answered(request: Request, etag: str, make: Callable[[], Response]) -> Response:
    """304 if the client has it, else the answer, which is made only then."""
    headers = {"ETag": etag, "Cache-Control": CHECK_EACH_TIME}
    if holds(request, etag):
        return Response(status_code=304, headers=headers)
    answer = make()
    for name, value in headers.items():
        answer.headers[name] = value
    return answer
