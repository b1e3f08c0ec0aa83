"""What the status and body of an answer mean for the agent."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from floatscope.client import Answer
from floatscope.jsonable import one_line


class Verdict(enum.Enum):
    """What to do about an answer."""

    OK = "stored, or it was there already"
    GAP = "the server expects an earlier seq"
    CONFLICT = "the seq is taken by other bytes"
    NEED_TENSORS = "the tensor table has to come along"
    UNKNOWN_RUN = "the run has to be created first"
    TOO_LARGE = "the body has to be smaller"
    REFUSED = "the content will never be taken"
    STOP = "the token is wrong"
    RETRY = "the same bytes again, later"


_REASONS = {"gap": Verdict.GAP, "conflict": Verdict.CONFLICT, "need_tensors": Verdict.NEED_TENSORS}
_BY_STATUS = {
    400: Verdict.REFUSED,
    401: Verdict.STOP,
    403: Verdict.STOP,
    404: Verdict.UNKNOWN_RUN,
    413: Verdict.TOO_LARGE,
    415: Verdict.REFUSED,
    422: Verdict.REFUSED,
}


@dataclass(frozen=True)
class News:
    """What a server's answers say beside what became of the batch; called in the sender's thread.

    settings: what the server wants changed.  verdict: the verdict in short, as it stands in the answer.
    url: where the run can be watched, once.
    """

    settings: Callable[[Mapping[str, Any]], None] = lambda settings: None
    verdict: Callable[[object], None] = lambda verdict: None
    url: Callable[[str], None] = lambda url: None


def read_answer(answer: Answer) -> Verdict:
    """The verdict on one answer. What is not understood is a reason to try again, never to give up."""
    if answer.status in (200, 201, 202):
        return Verdict.OK if answer.body is not None else Verdict.RETRY
    if answer.status == 409:
        reason = (answer.body or {}).get("reason")
        return _REASONS.get(reason, Verdict.RETRY) if isinstance(reason, str) else Verdict.RETRY
    return _BY_STATUS.get(answer.status, Verdict.RETRY)


def detail(answer: Answer) -> str:
    """The server's own words, on one line and short."""
    body = answer.body or {}
    text = body.get("detail") or body.get("title") or answer.text
    return one_line(str(text), most=300)


def said(answer: Answer) -> str:
    """Status and the server's words, or what the status is called where there are none."""
    try:
        name = HTTPStatus(answer.status).phrase
    except ValueError:  # a status of its own making
        name = ""
    words = detail(answer) or name
    return f"{answer.status} ({words})" if words else str(answer.status)


def expected_seq(answer: Answer) -> int | None:
    """The seq the server expects next for this rank, if it says so."""
    return whole((answer.body or {}).get("expected_seq"))


def retry_after_s(answer: Answer) -> float | None:
    """Seconds of a Retry-After header, at most five minutes; its date form is not used by our server."""
    text = answer.headers.get("retry-after", "")
    return float(min(int(text), 300)) if text.isdecimal() and len(text) < 10 else None


def whole(value: object) -> int | None:
    """A whole number from 0 up, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
