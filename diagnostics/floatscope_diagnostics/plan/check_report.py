"""Published runs against predictions, as a table and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from floatscope_diagnostics.plan.checks import TARGETS, Outcome, not_usable
from floatscope_diagnostics.plan.words import table, wrapped
from floatscope_diagnostics.reports.terminal import Style

SCHEMA = "floatscope.plan_check/1"
KINDS = {
    "state_gb": "State of weights, gradients and optimizer, GB",
    "state_difference_gib": "State, as the difference of two peaks, GiB",
    "activations_saved_pct": "Activations saved by selective recomputation, %",
    "activations_left_pct": "Activations left, sequence parallel and selective, %",
    "peak_gib": "Peak memory of a GPU, GiB",
    "memory_ratio": "Peak memory in FP8 over BF16",
    "tokens_per_s": "Tokens per second and GPU (error: of the step time)",
    "mixture_tokens_per_s": "The same, mixtures of experts",
    "speedup": "Throughput against BF16",
    "layer_speedup": "Speed of one layer's linears against BF16",
}


def check_report(outcomes: Sequence[Outcome], style: Style) -> str:
    """The table of all cases, those that set a constant apart, and the summary."""
    lines = wrapped(
        f"{len(outcomes)} published numbers against the plan's predictions. Cases marked SETS chose a "
        "constant of the model and prove nothing; the summary leaves them out."
    )
    for kind, title in KINDS.items():
        found = [one for one in outcomes if one.case.kind == kind]
        if found:
            lines += ["", style.paint(f"{title} (target: {_target(kind)})", "strong"), *_rows(found, style)]
    lines += ["", style.paint("SUMMARY (cases that set nothing)", "strong"), *_summary(outcomes)]
    lines += ["", style.paint("Published but not usable", "strong")]
    for row in not_usable():
        lines += wrapped(f"{row['run']}: {row['why']}.", lead="  ", indent=4)
    return style.fit("\n".join(lines)) + "\n"


def check_document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for ``--json``."""
    return {
        "schema": SCHEMA,
        "cases": [
            {
                "id": one.case.id,
                "kind": one.case.kind,
                "recipe": one.case.recipe.key if one.case.recipe else "bf16",
                "published": one.case.published,
                "predicted": one.predicted,
                "lower": one.lower,
                "upper": one.upper,
                "error_pct": 100 * one.error,
                "inside": one.inside,
                "sets": one.case.sets,
                "reason": one.case.reason,
                "note": one.case.note,
                "source": one.case.source,
            }
            for one in outcomes
        ],
        "summary": summary(outcomes),
        "not_usable": [dict(row) for row in not_usable()],
    }


def summary(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """By kind, over cases that set nothing: how many, how many inside the target, errors in percent."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        free = [one for one in outcomes if one.case.kind == kind and not one.case.sets]
        if free:
            errors = [100 * one.error for one in free]
            found[kind] = {
                "cases": len(free),
                "inside": sum(one.inside for one in free),
                "median_abs_error_pct": median(abs(error) for error in errors),
                "lowest_error_pct": min(errors),
                "highest_error_pct": max(errors),
            }
    return found


def _rows(found: Sequence[Outcome], style: Style) -> Iterator[str]:
    rows = [["case", "published", "predicted", "error", ""]]
    for one in sorted(found, key=lambda o: bool(o.case.sets)):
        verdict = "inside" if one.inside else "MISSED"
        if one.case.sets:
            verdict = f"SETS {one.case.sets}"
        predicted = f"{one.predicted:.4g}"
        if one.upper is not None:
            predicted = f"{one.lower:.1f}-{one.upper:.1f}"
        rows.append([one.case.id, f"{one.case.published:g}", predicted, f"{100 * one.error:+.1f} %", verdict])
    size = max(len(row[-1]) for row in rows)
    yield from table([[*row[:-1], row[-1].ljust(size)] for row in rows])
    for reason in dict.fromkeys(one.case.reason for one in found if not one.inside and not one.case.sets):
        names = ", ".join(one.case.id for one in found if not one.inside and one.case.reason == reason)
        yield from wrapped(f"MISSED {names}: {reason or 'no reason known'}.", lead="  ", indent=4)


def _summary(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [["", "cases", "inside", "median error", "from", "to"]]
    for kind, found in summary(outcomes).items():
        rows.append(
            [
                KINDS[kind],
                f"{found['cases']:.0f}",
                f"{found['inside']:.0f}",
                f"{found['median_abs_error_pct']:.1f} %",
                f"{found['lowest_error_pct']:+.1f} %",
                f"{found['highest_error_pct']:+.1f} %",
            ]
        )
    return table(rows)


def _target(kind: str) -> str:
    return (
        "inside the interval; error: of the sum of parts"
        if kind == "peak_gib"
        else f"within {TARGETS[kind]:.0%}"
    )
