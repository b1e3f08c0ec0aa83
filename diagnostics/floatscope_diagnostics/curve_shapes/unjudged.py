"""What could not be judged of a curve because it is too short or begins too late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope_diagnostics.curve_shapes.book import CurveBook
from floatscope_diagnostics.curve_shapes.flat import PLATEAU_POINTS, SAME_POINTS
from floatscope_diagnostics.curve_shapes.held_out import LEAST_EVALS
from floatscope_diagnostics.curve_shapes.life import Life
from floatscope_diagnostics.curve_shapes.rises import DRIFT_POINTS, FEW_FACTOR, FEW_POINTS

# Rule -> series, points it takes, and what is missed with fewer.
NEEDED: Mapping[str, tuple[str, int, str]] = {
    "FS411": ("loss", FEW_POINTS, f"rises below {FEW_FACTOR:g} times are not told from noise"),
    "FS412": ("loss", FEW_POINTS, f"rises below {FEW_FACTOR:g} times are not told from noise"),
    "FS426": ("eval_loss", LEAST_EVALS, "a held-out loss that turns is not seen"),
    "FS427": ("loss", PLATEAU_POINTS, "a lack of progress is not seen"),
    "FS903": ("loss", FEW_POINTS, f"rises below {FEW_FACTOR:g} times are not told from noise"),
    "FS904": ("loss", 2 * DRIFT_POINTS, "a slow drift is not seen"),
    "FS905": ("loss", SAME_POINTS, "a loss that repeats itself is not seen"),
}


def too_little(book: CurveBook) -> str:
    """Why the course of the newest segment's loss says nothing, as a clause; empty where it does."""
    lives = book.lives()
    if book.rank is None or not lives:
        return ""
    losses = [curve for name in ("loss", "eval_loss") if (curve := lives[-1].get(name)) is not None]
    if not losses:
        return "no loss that has to fall is logged, so none was judged"
    most = max(int(curve.finite.sum()) for curve in losses)
    if most >= FEW_POINTS:
        return ""
    points = "1 point of the loss is" if most == 1 else f"{most} points of the loss are"
    return f"{points} too few to judge it"


def unjudged(book: CurveBook) -> tuple[Mapping[str, Any], ...]:
    """Entries for ``not_checked``, of the newest segment; none for series that are not there at all."""
    lives = book.lives()
    if book.closed or book.rank is None or not lives:
        return ()
    life = Life(lives[-1], book.rank, resumed=len(lives) > 1)
    out: list[Mapping[str, Any]] = []
    for rule, (name, points, missed) in NEEDED.items():
        curve = life.curves.get(name)
        have = 0 if curve is None else int(curve.finite.sum())
        if curve is not None and have < points:
            why = f"only {have:,} finite point{'s' if have != 1 else ''}: {missed}"
            out.append({"rule": rule, "needs": [f"{name} at {points:,} points"], "why": why})
    if life.loss is not None and not life.from_start:
        why = f"the log begins at step {life.curves.first_step:,}: whether the loss fell before is not known"
        out.append({"rule": "FS427", "needs": ["loss from the start of the run"], "why": why})
    return tuple(out)
