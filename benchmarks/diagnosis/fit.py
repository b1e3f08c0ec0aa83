"""Fits the calibration of the confidences on the split for it and writes the package's data file.

Every alarm of a final verdict is a sample: right if its cause is one that counts as right for the run, wrong
on healthy steps. Forms are compared by cross-validation in which all runs of a seed are held out together. Of
those whose Brier score is within a standard error of the best, the one with the least calibration error wins.

The split holds runs that no rule was tuned on, since rules are right more often on what they were tuned on;
the report is made on others still.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnosis.calibration import brier, expected_calibration_error
from benchmarks.diagnosis.evaluate import evaluate
from benchmarks.diagnosis.outcome import Judged
from benchmarks.diagnosis.plan import Size
from benchmarks.diagnosis.settings import LIBRARY_VERSION
from benchmarks.diagnosis.store import Store
from floatscope_diagnostics import calibration as calibration_module
from floatscope_diagnostics.calibration import AS_STATED, BASIS, FILE, Calibration
from floatscope_diagnostics.clues import Clues, logit, sigmoid

SPLIT = "calibrate"
FOLDS = 5
RIDGE = 1.0  # of the weights, per logit squared; as if one sample spoke for no change
NEWTON_STEPS = 50
ELSEWHERE_PRIOR = 4.0  # wrong answers that a rule's own must outweigh
ELSEWHERE_LEAST = 0.05  # shares of the truth below it are not written down

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One alarm. truth: the true cause.  fold: of the cross-validation, by seed."""

    clues: Clues
    right: bool
    truth: str
    fold: int


@dataclass(frozen=True)
class Score:
    """Cross-validated.  brier, its standard error, ece."""

    brier: float
    error: float
    ece: float


Form = Callable[[Sequence[Sample]], Callable[[Clues], float]]
"""From samples to the probability that a claim is right."""


def fit_and_write(store: Store, size: Size, *, jobs: int) -> None:
    """Judges the split with the stated confidences, prints the forms' scores, writes the best one."""
    open_minded = replace(AS_STATED, threshold=0.0)
    write(list(evaluate(store, size, split=SPLIT, jobs=jobs, calibration=open_minded)))


def write(runs: Sequence[Judged]) -> None:
    """Prints how the forms do on runs judged with the stated confidences; writes the best one."""
    samples = samples_of(runs)
    print(f"{len(samples)} alarms of {len(runs)} runs, {sum(s.right for s in samples)} right")
    print("   form, cross-validated Brier, ECE")
    scored = [(form, cross_validated(samples, form.fit)) for form in FORMS]
    for form, score in scored:
        print(f"   {form.name:<72}{score.brier:.4f}   {score.ece:.4f}")
    score = cross_validated(samples, isotonic)
    print(f"   {'isotonic in the stated confidence':<72}{score.brier:.4f}   {score.ece:.4f}   (to compare)")
    chosen, score = choose(scored)
    seeds = sorted({int(r.run.split("-s")[1].split("-")[0]) for r in runs})
    provenance = {
        "library_version": LIBRARY_VERSION,
        "split": SPLIT,
        "seeds": seeds,
        "runs": len(runs),
        "alarms": len(samples),
        "right": sum(s.right for s in samples),
        "form": chosen.name,
        "cv_brier": round(score.brier, 4),
        "cv_ece": round(score.ece, 4),
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
    }
    fitted = replace(chosen.parameters(samples), provenance=provenance)
    path = Path(calibration_module.__file__).with_name(FILE)
    path.write_text(json.dumps(fitted.to_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {path}: {chosen.name}")


def samples_of(runs: Sequence[Judged]) -> list[Sample]:
    """The alarms of the runs that name a cause. Those on healthy steps in front of a fault are left out: the
    healthy run is there itself.
    """
    out = []
    for run in runs:
        early = {f["id"] for f in run.false_alarms} if run.resampled_steps else frozenset()
        for alarm in run.alarms:
            clues = alarm["clues"]
            if clues is None or alarm["id"] in early or clues.cause == "undetermined":
                continue
            fold = int(run.run.split("-s")[1].split("-")[0]) % FOLDS
            out.append(Sample(clues, clues.cause in run.accepted, run.cause, fold))
    return out


def cross_validated(samples: Sequence[Sample], form: Form) -> Score:
    """How a form does on samples it was not fitted on. Raises ValueError without samples."""
    pairs: list[tuple[float, bool]] = []
    for fold in range(FOLDS):
        model = form([s for s in samples if s.fold != fold])
        pairs += [(model(s.clues), s.right) for s in samples if s.fold == fold]
    mean, error = brier(pairs), expected_calibration_error(pairs)
    if mean is None or error is None:
        raise ValueError("no alarm in the split: nothing to calibrate on")
    squares = np.array([(p - right) ** 2 for p, right in pairs])
    return Score(mean, float(squares.std() / math.sqrt(len(squares))), error)


@dataclass(frozen=True)
class Logistic:
    """Ridge logistic regression around the stated confidence.

    names: its parameters, none for the stated confidence itself.  ridge: of the offsets of rule and cause;
    None: no such offsets.
    """

    names: tuple[str, ...]
    ridge: float | None = None

    @property
    def name(self) -> str:
        if not self.names:
            return "none: as stated"
        rules = "" if self.ridge is None else f", rules (ridge {self.ridge:g})"
        return f"logistic: {', '.join(self.names)}{rules}"

    def fit(self, samples: Sequence[Sample]) -> Callable[[Clues], float]:
        return self.parameters(samples).probability

    def parameters(self, samples: Sequence[Sample]) -> Calibration:
        """The penalty makes no change the best guess; a rule's offset is drawn to 0 by ``ridge``."""
        if not self.names:
            return replace(AS_STATED, elsewhere=elsewhere(samples))
        groups = sorted({s.clues.group for s in samples}) if self.ridge is not None else []
        column = {name: k for k, name in enumerate((*self.names, *groups))}
        x = np.zeros((len(samples), len(column)))
        for row, sample in enumerate(samples):
            values = {"intercept": 1.0, **sample.clues.features()}
            for name in self.names:
                x[row, column[name]] = values[name]
            if sample.clues.group in column:
                x[row, column[sample.clues.group]] = 1.0
        penalty = np.array([RIDGE] * len(self.names) + [self.ridge or 0.0] * len(groups))
        offset = np.array([logit(s.clues.stated) for s in samples])
        theta = _newton(x, np.array([float(s.right) for s in samples]), offset, penalty)
        found = dict(zip(column, theta.round(4).tolist(), strict=True))
        return Calibration(
            intercept=found.get("intercept", 0.0),
            weights={n: found[n] for n in self.names if n != "intercept"},
            groups={g: found[g] for g in groups},
            elsewhere=elsewhere(samples),
            basis=BASIS,
        )


SLOPE = ("intercept", "slope")
ALL = (*SLOPE, "rival", "signals", "earlier")
RIDGES = (1.0, 2.0, 4.0)  # of a rule's offset: so many runs, about, speak for the average rule
FORMS: tuple[Logistic, ...] = (
    Logistic(()),
    Logistic(("intercept",)),
    Logistic(SLOPE),
    Logistic(ALL),
    *(Logistic(SLOPE, ridge) for ridge in RIDGES),
    *(Logistic(ALL, ridge) for ridge in RIDGES),
)


def choose(scored: Sequence[tuple[Logistic, Score]]) -> tuple[Logistic, Score]:
    """Of the forms whose Brier score is within a standard error of the best one's, that of the least ECE."""
    best = min((score for _, score in scored), key=lambda score: score.brier)
    near = [(form, score) for form, score in scored if score.brier <= best.brier + best.error]
    return min(near, key=lambda pair: pair[1].ece)


def _newton(x: Floats, y: Floats, offset: Floats, penalty: Floats) -> Floats:
    """x (N, P), y (N,), offset (N,), penalty (P,) -> the P parameters of least penalised log loss."""
    theta = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = np.array([sigmoid(z) for z in (offset + x @ theta).tolist()])
        gradient = x.T @ (p - y) + penalty * theta
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        theta = theta - step
        if float(np.abs(step).max()) < 1e-8:
            break
    return theta


def elsewhere(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """By rule and cause, where the truth lay when it was wrong: shares, drawn to 0 where few were."""
    wrong: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        if not sample.right and sample.truth not in ("healthy", "undetermined"):
            wrong[sample.clues.group][sample.truth] += 1
    return {group: dict(_shares(counts)) for group, counts in sorted(wrong.items())}


def _shares(counts: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    total = sum(counts.values()) + ELSEWHERE_PRIOR
    for cause, count in sorted(counts.items()):
        if count / total >= ELSEWHERE_LEAST:
            yield cause, round(count / total, 3)


def isotonic(samples: Sequence[Sample]) -> Callable[[Clues], float]:
    """Share right, made non-decreasing in the stated confidence by pooling adjacent violators."""
    blocks: list[list[float]] = []  # right, count, highest stated confidence
    for sample in sorted(samples, key=lambda s: s.clues.stated):
        blocks.append([float(sample.right), 1.0, sample.clues.stated])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            right, count, high = blocks.pop()
            blocks[-1] = [blocks[-1][0] + right, blocks[-1][1] + count, high]

    def probability(clues: Clues) -> float:
        for right, count, high in blocks:
            if clues.stated <= high:
                return right / count
        return blocks[-1][0] / blocks[-1][1]

    return probability
