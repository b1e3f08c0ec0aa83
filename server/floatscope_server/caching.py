"""Answers that a client may keep: it asks each time whether they still hold, and hears 304 if so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response

from floatscope_server.store.runs import RunRecord

CHECK_EACH_TIME = "private, no-cache"
"""Kept by the client alone, and never used without asking: who may see it can change."""
_DIGITS = 32


class Unchanged(Exception):
    """The client has the answer already: 304 with these headers."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("unchanged")
        self.headers = dict(headers)


def of_run(request: Request, run: RunRecord) -> dict[str, str]:
    """The headers of an answer that is made from what is stored of a run and from the request's address.

    Raises Unchanged if the client has it. Costs no more than the run's row, which says whether anything has
    been stored since.
    """
    stored = (run.id, run.version, run.revision, run.arrivals, run.described)
    etag = tag(stored, request.url.path, request.url.query, version("floatscope"))
    headers = {"ETag": etag, "Cache-Control": CHECK_EACH_TIME}
    if holds(request, etag):
        raise Unchanged(headers)
    return headers


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
