"""What the address of a tensor page asks for. What is not understood is left out, never an error."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope.protocol.names import MAX_STEP
from floatscope_dashboards.tensor_view import TENSOR_STATES, WORST, TensorsAsked
from floatscope_dashboards.tensor_words import SORTS
from floatscope_server.routes.fields import MAX_RANK, storable

MOST_CHARS = 1_024
MOST_PAGES = 1_000_000


def tensors_asked(query: Mapping[str, str]) -> TensorsAsked:
    """The table's step, rank, filters, order and page."""
    wrong: list[str] = []

    def number(key: str, most: int) -> int | None:
        text = query.get(key, "")
        found = whole(text, most)
        if found is None and text:
            wrong.append(key)
        return found

    def choice(key: str, allowed: tuple[str, ...]) -> str:
        text = query.get(key, "")
        if text and text not in allowed:
            wrong.append(key)
            return ""
        return text

    sort = query.get("sort", "") or WORST
    descending = sort.startswith("-")
    if sort != WORST and sort.removeprefix("-") not in SORTS:
        wrong.append("sort")
        sort = WORST
    return TensorsAsked(
        at=number("at", MAX_STEP),
        rank=number("rank", MAX_RANK),
        q=_text(query, "q"),
        role=_text(query, "role"),
        layer=_text(query, "layer"),
        state=choice("state", TENSOR_STATES),
        sort=sort.removeprefix("-"),
        descending=descending,
        page=max(1, number("page", MOST_PAGES) or 1),
        corrected=tuple(sorted(wrong)),
    )


def asked_of(query: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Step and rank that the page of one tensor is asked for."""
    return whole(query.get("at", ""), MAX_STEP), whole(query.get("rank", ""), MAX_RANK)


def whole(text: str, most: int) -> int | None:
    """The number, with or without separators of thousands; None if it is none or too large."""
    digits = text.replace(",", "").replace("\u202f", "").strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(most)):
        return None
    found = int(digits)
    return found if found <= most else None


def _text(query: Mapping[str, str], key: str) -> str:
    return (storable(query.get(key, "")) or "")[:MOST_CHARS].strip()
