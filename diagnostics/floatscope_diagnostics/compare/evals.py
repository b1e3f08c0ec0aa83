"""Downstream evaluations of both runs side by side, decided where answers to the same questions are known.

Per question the difference is -1, 0 or 1; its interval is that of a mean of paired differences (Agresti and
Min 2005, half a discordant pair added to either side, which keeps it honest in small samples), and the exact
McNemar test says how likely the discordant answers are by chance. Two accuracies alone decide little: their
interval is that of two independent binomials (Agresti and Caffo 2000), three to ten times wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.compare.eval_files import Task
from floatscope_diagnostics.compare.gate import EvalRow, Gate, State
from floatscope_diagnostics.compare.noise import normal_quantile

LEVEL = 0.95  # of either end: a one-sided test at 5 %, as for the loss
MANY = 6  # tasks that a sentence names


@dataclass(frozen=True)
class Evals:
    """Rows by task, the average over them in points with its interval, and tasks that only one side has."""

    rows: tuple[EvalRow, ...]
    average: float
    low: float | None
    high: float | None
    only_one: tuple[str, ...]


def compare_evals(run: Mapping[str, Task], base: Mapping[str, Task], points: float) -> Evals:
    """Compares the tasks that both have, with a margin in points of accuracy."""
    rows, errors = [], []
    for name in sorted(run.keys() & base.keys()):
        row, error = _row(name, run[name], base[name], points)
        rows.append(row)
        errors.append(error)
    only = tuple(sorted(run.keys() ^ base.keys()))
    if not rows:
        return Evals((), math.nan, None, None, only)
    average = sum(r.difference for r in rows) / len(rows)
    if any(e is None for e in errors):
        return Evals(tuple(rows), average, None, None, only)
    half = normal_quantile(LEVEL) * math.sqrt(sum(e * e for e in errors if e is not None)) / len(rows)
    return Evals(tuple(rows), average, average - half, average + half, only)


def _row(name: str, run: Task, base: Task, points: float) -> tuple[EvalRow, float | None]:
    """The row, and the standard error of its difference in points."""
    z = normal_quantile(LEVEL)
    if run.correct is not None and base.correct is not None and run.metric == base.metric:
        common = run.correct.keys() & base.correct.keys()
        if len(common) >= 2:
            gaps = [run.correct[i] - base.correct[i] for i in sorted(common)]
            n = len(gaps)
            mean = sum(gaps) / n
            middle = sum(gaps) / (n + 2.0)
            square = (sum(g * g for g in gaps) + 1.0) / (n + 2.0) - middle * middle
            error = 100.0 * math.sqrt(max(square, 0.0) / (n + 2.0))
            low, high = 100.0 * middle - z * error, 100.0 * middle + z * error
            wins, losses = sum(g > 0 for g in gaps), sum(g < 0 for g in gaps)
            how = (
                f"{n:,} same questions: {losses:,} answered right by BASELINE only, {wins:,} by RUN only "
                f"(McNemar p = {mcnemar(wins, losses):.2g})"
            )
            shares = [
                100.0 * sum(task.correct[i] for i in common) / n for task in (run, base) if task.correct
            ]
            return EvalRow(
                name, shares[0], shares[1], 100.0 * mean, low, high, n, _state(low, high, points), how
            ), error
    difference = 100.0 * (run.score - base.score)
    if run.metric != base.metric:
        how = f"other metrics ({run.metric} against {base.metric}): cannot be decided"
        return EvalRow(
            name, 100 * run.score, 100 * base.score, difference, None, None, None, "undecided", how
        ), None
    if run.n is None or base.n is None:
        how = "only two accuracies, the number of questions is not known: cannot be decided"
        return EvalRow(
            name, 100 * run.score, 100 * base.score, difference, None, None, None, "undecided", how
        ), None
    shares = [(task.score * (task.n or 0) + 1.0) / ((task.n or 0) + 2.0) for task in (run, base)]
    spread = sum(p * (1.0 - p) / ((t.n or 0) + 2.0) for p, t in zip(shares, (run, base), strict=True))
    error = 100.0 * math.sqrt(spread)
    middle = 100.0 * (shares[0] - shares[1])
    low, high = middle - z * error, middle + z * error
    state = _state(low, high, points)
    how = "only two accuracies" + (
        ": cannot be decided without answers to each question" if state == "undecided" else ""
    )
    n = min(run.n, base.n)
    return EvalRow(name, 100 * run.score, 100 * base.score, difference, low, high, n, state, how), error


def _state(low: float, high: float, points: float) -> State:
    return "pass" if low > -points else "fail" if high < -points else "undecided"


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided exact p of McNemar's test: the chance that discordant answers fall so unevenly."""
    n, k = wins + losses, min(wins, losses)
    if n == 0:
        return 1.0
    whole = math.lgamma(n + 1) - n * math.log(2.0)
    terms = (math.exp(whole - math.lgamma(i + 1) - math.lgamma(n - i + 1)) for i in range(k + 1))
    return min(2.0 * math.fsum(terms), 1.0)


def evals_gate(found: Evals, points: float) -> Gate:
    """The average decides; a single task that is proven to lose more than the margin fails."""
    if not found.rows:
        names = ", ".join(found.only_one[:MANY])
        return Gate(
            "evals", "undecided", f"The two files have no task in common ({names}).", unit="points",
            limit=-points, next_step="Evaluate both checkpoints on the same tasks.",
        )  # fmt: skip
    failed = [row for row in found.rows if row.state == "fail"]
    count = "1 task" if len(found.rows) == 1 else f"{len(found.rows):,} tasks"
    if failed:
        state: State = "fail"
        said = f"{_names(failed)} of {count}: more than {points:g} point{'' if points == 1.0 else 's'} worse"
    elif found.low is None or found.high is None:
        state = "undecided"
        said = f"{count}, on average {found.average:+.2f} points; cannot be decided from what is known"
    else:
        state = _state(found.low, found.high, points)
        said = f"{count}, on average {found.average:+.2f} points [{found.low:+.2f}, {found.high:+.2f}]"
        said += {
            "pass": f": not more than {points:g} points worse",
            "fail": f": more than {points:g} points worse",
        }.get(state, f": cannot be told from a loss of {points:g} points")
    if found.only_one:
        said += f"; left out, since only one file has them: {', '.join(found.only_one[:MANY])}"
    next_step = ""
    if state == "undecided":
        paired = all("same questions" in row.how for row in found.rows)
        next_step = (
            "More questions: the answers to these are too few for the margin."
            if paired
            else "Evaluate again with answers per question (lm_eval --log_samples) and pass the samples."
        )
    return Gate(
        "evals", state, said + ".", found.average, found.low, found.high, -points, "points",
        next_step=next_step,
    )  # fmt: skip


def _names(rows: Sequence[EvalRow]) -> str:
    names = ", ".join(row.name for row in rows[:MANY])
    return names + (f" and {len(rows) - MANY} more" if len(rows) > MANY else "")
