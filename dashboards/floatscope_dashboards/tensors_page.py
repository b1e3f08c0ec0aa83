"""The table of all tensors of a run: worst first, with search, filters and pages in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.page import Page
from floatscope_dashboards.say import Say
from floatscope_dashboards.tensor_links import tensor_href, tensors_href
from floatscope_dashboards.tensor_view import TENSOR_STATES, WORST, TensorLine, TensorsAsked, TensorsView
from floatscope_dashboards.tensor_words import (
    COLUMNS,
    STATE_SIGNS,
    TensorColumn,
    TensorSign,
    format_words,
    is_bad,
    sign_of,
    value_words,
)
from floatscope_dashboards.wording import status_sign

ALWAYS = ("headroom_log2", "overflow_pct", "underflow_pct")
"""Columns that are there even when no tensor has the statistic: their absence says something."""


@dataclass(frozen=True)
class Head:
    """A column's head: its link sorts by it. order: ascending, descending or "" (not sorted by it)."""

    stat: str
    label: str
    unit: str
    href: str
    order: str
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A number: text, class, label for narrow screens."""

    text: str
    kind: str
    label: str


@dataclass(frozen=True)
class Row:
    """One tensor in words."""

    line: TensorLine
    href: str
    sign: TensorSign
    format: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Choice:
    """A filter button. state: its value; count: tensors."""

    value: str
    label: str
    kind: str
    count: int
    href: str
    chosen: bool


def tensors_page(view: TensorsView, say: Say) -> Page:
    """The table of all tensors of one run."""
    asked = view.asked
    columns = [c for c in COLUMNS if c.stat in view.stats or c.stat in ALWAYS]
    title = say("Tensors of {run}", run=view.run.name)
    return Page(
        "tensors.html",
        say("{what} \u2013 floatscope", what=title),
        section="runs",
        script="tensors.js",
        styles=("tensor.css",),
        data=_data(view, columns),
        values={
            "view": view,
            "asked": asked,
            "heads": _heads(asked, columns, view, say),
            "rows": [_row(line, view, columns, say) for line in view.lines],
            "states": _states(view, say),
            "roles": _roles(view, say),
            "sub": _sub(view, say),
            "status": status_sign(view.run.status),
            "run_href": f"/runs/{view.run.run_id}",
            "clear_href": tensors_href(view.run.run_id, at=asked.at, rank=asked.rank),
            "before_href": _href(view, page=asked.page - 1) if asked.page > 1 else "",
            "after_href": _href(view, page=asked.page + 1) if asked.page < view.pages else "",
            "filtered": bool(asked.q or asked.role or asked.layer or asked.state),
            "layer_href": _href(view, layer="", page=1),
        },
    )


def _query(asked: TensorsAsked) -> dict[str, Any]:
    sort = "" if asked.sort == WORST else ("-" if asked.descending else "") + asked.sort
    return {
        "at": asked.at,
        "rank": asked.rank,
        "q": asked.q,
        "role": asked.role,
        "layer": asked.layer,
        "state": asked.state,
        "sort": sort,
        "page": asked.page if asked.page > 1 else "",
    }


def _href(view: TensorsView, **changes: object) -> str:
    """The page with other choices."""
    query = _query(view.asked) | changes
    if query["page"] == 1:
        query["page"] = ""
    return tensors_href(view.run.run_id, **query)


def _heads(asked: TensorsAsked, columns: list[TensorColumn], view: TensorsView, say: Say) -> list[Head]:
    texts = [("name", say("Tensor"), "", "")]
    numbers = [(c.stat, say(c.label), say(c.unit) if c.unit else "", c.worst) for c in columns]
    found = []
    for stat, label, unit, worst in [*texts, *numbers]:
        chosen = asked.sort == stat
        down = not asked.descending if chosen else worst != "low" and stat != "name"
        order = ("descending" if asked.descending else "ascending") if chosen else ""
        href = _href(view, sort=("-" if down else "") + stat, page=1)
        found.append(Head(stat, label, unit, href, order, number=stat != "name"))
    return found


def _cell_label(column: TensorColumn, say: Say) -> str:
    """What stands before a number where there are no heads."""
    if column.unit:
        return say("{what}, {unit}:", what=say(column.label), unit=say(column.unit))
    return say("{what}:", what=say(column.label))


def _row(line: TensorLine, view: TensorsView, columns: list[TensorColumn], say: Say) -> Row:
    cells = tuple(
        Cell(value_words(line.values.get(c.stat), c.decimals), is_bad(line, c.stat), _cell_label(c, say))
        for c in columns
    )
    href = tensor_href(view.run.run_id, line.name, at=view.asked.at, rank=view.asked.rank)
    return Row(line, href, sign_of(line), format_words(line.format), cells)


def _states(view: TensorsView, say: Say) -> list[Choice]:
    every = sum(view.states.values())
    chosen = view.asked.state
    found = [Choice("", say("All"), "", every, _href(view, state="", page=1), not chosen)]
    for state in TENSOR_STATES:
        count = view.states.get(state, 0)
        if count or state == chosen:
            sign = STATE_SIGNS[state]
            href = _href(view, state=state, page=1)
            found.append(Choice(state, say(sign.word), sign.kind, count, href, state == chosen))
    return found


def _roles(view: TensorsView, say: Say) -> list[Choice]:
    every = sum(view.roles.values())
    chosen = view.asked.role
    found = [Choice("", say("Every role"), "", every, _href(view, role="", page=1), not chosen)]
    for role in sorted({*view.roles, chosen} - {""}):
        href = _href(view, role=role, page=1)
        found.append(Choice(role, role, "", view.roles.get(role, 0), href, role == chosen))
    return found


def _sub(view: TensorsView, say: Say) -> str:
    """How many, of which step and rank, in which order."""
    if view.step is None:
        return say.plural("{n} tensor, without statistics", "{n} tensors, without statistics", view.total)
    step = say.step(view.step)
    if len(view.ranks) > 1:
        return say(
            "{matching} of {total} tensors at step {step}, rank {rank}",
            matching=f"{view.matching:,}",
            total=f"{view.total:,}",
            step=step,
            rank=view.rank,
        )
    return say(
        "{matching} of {total} tensors at step {step}",
        matching=f"{view.matching:,}",
        total=f"{view.total:,}",
        step=step,
    )


def _data(view: TensorsView, columns: list[TensorColumn]) -> Mapping[str, Any]:
    return {
        "run": view.run.run_id,
        "name": view.run.name,
        "status": view.run.status,
        "rank": view.rank,
        "step": view.step,
        "at": view.asked.at,
        "last": view.run.last_step,
        "age_s": view.run.last_seen_s,
        "columns": [column.stat for column in columns],
    }
