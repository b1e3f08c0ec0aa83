"""Findings of a diagnosis that no change of layers mends, or that ask for another repair first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from floatscope_diagnostics.advisor.advice import NotDecided
from floatscope_diagnostics.reports.terminal import plain


def unseen_precision(verdict: Mapping[str, Any] | None) -> NotDecided | None:
    """The gravest finding about precision, for an advice that itself sees no problem; None without one."""
    table = _table()["precision"]
    for finding in _counting(verdict):
        what = table.get(str(finding.get("cause")))
        since = finding.get("onset_step")
        if what is not None:
            at = f" from step {since:,} on" if isinstance(since, int) else ""
            return NotDecided(
                "too_recent",
                f"The diagnosis sees {what}{at}, but no mean over 100 steps is beyond its limit (yet): ask "
                "again when it has lasted 100 steps, or with a lower limit.",
            )
    return None


def other_causes(verdict: Mapping[str, Any] | None, *, vanishing: bool = False) -> tuple[NotDecided, ...]:
    """One sentence a finding that counts. verdict: the document ``floatscope.verdict/1``, or None.
    vanishing: most values of some operand become zero, so that weights behind it stand still, and the loss.
    """
    if verdict is None:
        return ()
    return tuple({note.code: note for note in _notes(verdict, vanishing)}.values())


def _counting(verdict: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Findings that count, the gravest first."""
    found = verdict.get("findings") if verdict is not None else None
    kept = [
        finding
        for finding in (found if isinstance(found, list) else ())
        if isinstance(finding, Mapping)
        and finding.get("state") != "replaced"
        and finding.get("severity") in ("warning", "critical")
    ]
    yield from sorted(kept, key=lambda finding: finding.get("severity") != "critical")


def _table() -> dict[str, Any]:
    text = files("floatscope_diagnostics.advisor").joinpath("other_causes.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _notes(verdict: Mapping[str, Any], vanishing: bool) -> Iterator[NotDecided]:
    table = _table()["causes"]
    for finding in _counting(verdict):
        row = table.get(str(finding.get("cause")))
        if row is None:
            continue
        where = finding.get("tensor") or finding.get("layer")
        since = finding.get("onset_step")
        place = f" ({plain(str(where))})" if where else ""
        at = f"from step {since:,} on" if isinstance(since, int) else "somewhere"
        if vanishing and row.get("may_follow"):
            yield NotDecided(
                "may_follow",
                f"The diagnosis sees {row['what']}{place} {at}: that may follow from the values that vanish. "
                "Look again after the change.",
            )
            continue
        yield NotDecided(row["code"], f"The diagnosis sees {row['what']}{place} {at}: {row['instead']}")


def is_no_precision_fault(note: NotDecided) -> bool:
    """Whether the note names a cause outside the formats of layers."""
    return note.code.startswith("cause_")
