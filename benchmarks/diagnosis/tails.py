"""Fits the tails of what healthy runs do; the limits of the change detectors come from them.

Reads the healthy runs of the tuning split in the cache (seeds below 2000), and of a folder of labelled logs
the healthy ones in odd rows, sends them through the detectors' own code, and fits a generalised Pareto tail
to the peaks of every sign in every class. Prints the fits, how good they are, and the rates at the limits in
use. ``--write`` puts the tails into the package.

Run: python -m benchmarks.diagnosis.tails [--logs FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnosis.plan import FULL, entries
from benchmarks.diagnosis.settings import LIBRARY_VERSION
from benchmarks.diagnosis.store import Store
from benchmarks.diagnosis.tail_signs import RunSigns, healthy_logs, signs_of_runs
from floatscope_diagnostics.detectors import limits
from floatscope_diagnostics.detectors.limits import ANY, BY_NAME, CLASSES, KINDS, SIGNS, Tails, parse_tails

Float64 = NDArray[np.float64]
DEFAULT_CACHE = Path("~/.cache/floatscope/diagnosis")
QUANTILES = (0.9998, 0.9995, 0.999, 0.998, 0.995, 0.99, 0.98)  # candidate thresholds, the first with enough
ENOUGH_PEAKS = 60  # for two parameters, an error of about 0.13 in the shape
FEW_PEAKS = 15  # fewer tell nothing; a kind then takes the tail of all kinds
SHAPE_RANGE = (-0.3, 0.5)  # 60 peaks cannot tell an end point from a light tail, nor an infinite variance
SHOWN_TENSORS = (8, 300, 3000)
CHECK_RATE = 1e-5  # a tensor-step: rare enough to be in the tail, frequent enough to be counted


@dataclass(frozen=True)
class Fit:
    """One fitted tail. seen: tensor-steps.  largest: in the sign's unit.  fits_p: Kolmogorov-Smirnov.

    halves: how often the limit for CHECK_RATE, fitted on one half of the runs, was passed in the other half,
    over how often it should have been; both ways together.
    """

    threshold: float
    scale: float
    shape: float
    rate: float
    peaks: int
    seen: int
    largest: float
    fits_p: float
    halves: float


def peaks_over(values: Float64, threshold: float) -> Float64:
    """Largest value of every stretch of rows (n, S) over the threshold; stretches less than DECLUSTER_ROWS
    rows apart are one.
    """
    found = []
    for column in np.flatnonzero((values > threshold).any(axis=0)):
        rows = np.flatnonzero(values[:, column] > threshold)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(rows) >= limits.DECLUSTER_ROWS) + 1])
        found.append(np.maximum.reduceat(values[rows, column], starts))
    return np.concatenate(found) if found else np.empty(0)


def tail_of(excess: Float64) -> tuple[float, float]:
    """Scale and shape of a generalised Pareto tail by probability-weighted moments (Hosking and Wallis
    1987), the shape kept within SHAPE_RANGE and the mean excess kept.
    """
    ordered = np.sort(excess)
    weight = 1.0 - (np.arange(1, len(ordered) + 1) - 0.35) / len(ordered)
    mean, moment = float(ordered.mean()), float((ordered * weight).mean())
    shape = 2.0 - mean / (mean - 2.0 * moment) if mean > 2.0 * moment else SHAPE_RANGE[1]
    shape = float(np.clip(shape, *SHAPE_RANGE))
    return mean * (1.0 - shape), shape


def fit_tail(runs: Sequence[Float64], *, percent: bool, check: bool = True) -> Fit | None:
    """The tail of a sign, given as one array (rows, S) a run, NaN where it was not judged; None if it has too
    few peaks.
    """
    scaled = [limits.logit_pct(np.maximum(r, 0.0)) if percent else r for r in runs]
    known = np.concatenate([r[~np.isnan(r)] for r in scaled]) if scaled else np.empty(0)
    if len(known) == 0:
        return None
    lowest, best = float(known.min()), None
    for quantile in QUANTILES:
        threshold = float(np.quantile(known, quantile))
        if percent and threshold <= lowest:
            threshold = float(np.nextafter(lowest, np.inf))
        peaks = [peaks_over(r, threshold) for r in scaled]
        count = sum(len(p) for p in peaks)
        best = (threshold, peaks)
        if count >= ENOUGH_PEAKS or (percent and threshold <= np.nextafter(lowest, np.inf)):
            break
    assert best is not None
    threshold, peaks = best
    excess = np.concatenate(peaks) - threshold
    if len(excess) < FEW_PEAKS:
        return None
    scale, shape = tail_of(excess)
    if scale <= 0:
        return None
    largest = float(known.max())
    return Fit(
        threshold=threshold,
        scale=scale,
        shape=shape,
        rate=len(excess) / len(known),
        peaks=len(excess),
        seen=len(known),
        largest=100.0 / (1.0 + np.exp(-largest)) if percent else largest,
        fits_p=_goodness(excess, scale, shape),
        halves=_halves(scaled) if check else np.nan,
    )


def _goodness(excess: Float64, scale: float, shape: float) -> float:
    """p value of the Kolmogorov-Smirnov test of a generalised Pareto tail; needs scipy."""
    from scipy.stats import genpareto, kstest  # noqa: PLC0415 (for contributors: --help works without)

    return float(kstest(excess, lambda y: genpareto.cdf(y, shape, scale=scale)).pvalue)


def _halves(runs: Sequence[Float64]) -> float:
    """Observed over expected peaks beyond the limit for CHECK_RATE, each half judged with the other's."""
    seen = expected = 0.0
    for fitted, judged in ((runs[::2], runs[1::2]), (runs[1::2], runs[::2])):
        half = fit_tail(fitted, percent=False, check=False)
        if half is None:
            return float("nan")
        limit = limits.Tail(half.threshold, half.scale, half.shape, half.rate).beyond(CHECK_RATE)
        seen += sum(len(peaks_over(r, limit)) for r in judged)
        expected += CHECK_RATE * sum(int((~np.isnan(r)).sum()) for r in judged)
    return seen / expected if expected else float("nan")


def fits_of(runs: Sequence[RunSigns]) -> Iterator[tuple[str, Fit]]:
    """Every sign in every class, for each kind of recipe and for all of them."""
    for sign in SIGNS:
        for place, role in enumerate(CLASSES):
            for kind in (*KINDS, ANY):
                parts = [
                    r.of[sign.name, place] for r in runs
                    if (sign.name, place) in r.of and kind in (ANY, r.kind)
                ]  # fmt: skip
                fit = fit_tail(parts, percent=sign.percent)
                if fit is not None:
                    yield f"{sign.name}/{role}/{kind}", fit


def table(fits: dict[str, Fit], tails: Tails, runs: Sequence[RunSigns]) -> list[str]:
    """One line a fit: the tail, its goodness, the limit for several sizes, and how often that was passed."""
    head = (
        f"{'sign/class/kind':<44}{'seen':>9}{'peaks':>6}{'shape':>7}{'fit p':>7}{'halves':>7}{'largest':>9}"
    )
    lines = [head + "".join(f"{f'S={s}':>8}" for s in SHOWN_TENSORS) + f"{'passed':>8}"]
    for name, fit in fits.items():
        sign, role, kind = name.split("/")
        shown = [tails.limit(sign, role, kind, tensors=s) for s in SHOWN_TENSORS]
        place = CLASSES.index(role)
        passed = sum(
            len(peaks_over(r.of[sign, place], shown[0]))
            for r in runs if (sign, place) in r.of and kind in (ANY, r.kind)
        )  # fmt: skip
        marks = ["c" if s >= BY_NAME[sign].ceiling[place] else "f" if s <= BY_NAME[sign].floor[place] else " "
                 for s in shown]  # fmt: skip
        lines.append(
            f"{name:<44}{fit.seen:>9,}{fit.peaks:>6}{fit.shape:>7.2f}{fit.fits_p:>7.2f}{fit.halves:>7.1f}"
            f"{fit.largest:>9.3g}" + "".join(f"{s:>7.3g}{m}" for s, m in zip(shown, marks, strict=True))
            + f"{passed:>8}"
        )  # fmt: skip
    lines.append("c: at the ceiling, a sign that needs another beside it; f: at the floor of what harms")
    lines.append("passed: healthy episodes beyond the limit for the first size, before a tensor's own spread")
    return lines


def document(fits: dict[str, Fit], runs: Sequence[RunSigns]) -> str:
    """The data file's text."""
    entry = {
        name: {
            "threshold": round(f.threshold, 6), "scale": round(f.scale, 6), "shape": round(f.shape, 4),
            "rate": float(f"{f.rate:.4g}"), "peaks": f.peaks, "seen": f.seen, "largest": round(f.largest, 4),
        }
        for name, f in fits.items()
    }  # fmt: skip
    tree = {
        "version": limits.TAILS_VERSION,
        "provenance": {
            "made_by": "python -m benchmarks.diagnosis.tails --write",
            "library_version": LIBRARY_VERSION,
            "runs": len(runs),
            "healthy_steps": sum(r.steps for r in runs),
            "tensor_steps": sum(r.steps * r.tensors for r in runs),
            "seeds": sorted({r.seed for r in runs if r.seed is not None}),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "calibrated_on": "emulation",
        },
        "fits": entry,
    }
    return json.dumps(tree, indent=1) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Fits and prints. Returns 0, or 2 if there is no healthy run to read or scipy is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis.tails", description=__doc__)
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, help="folder of stored runs (%(default)s)"
    )
    parser.add_argument("--logs", type=Path, help="folder of labelled logs; its healthy odd rows count too")
    parser.add_argument("--write", action="store_true", help=f"write {limits.TAILS_FILE} into the package")
    args = parser.parse_args(argv)
    if find_spec("scipy") is None:
        print("scipy is missing: pip install scipy", file=sys.stderr)
        return 2
    tuning = (e.base for e in entries(FULL) if e.base.split == "tune")
    runs = list(signs_of_runs(Store(args.cache.expanduser()), tuning))
    if args.logs is not None:
        runs += healthy_logs(args.logs)
    if not runs:
        print(
            f"{args.cache}: no healthy run of the tuning split; python -m benchmarks.diagnosis run makes some"
        )
        return 2
    fits = dict(fits_of(runs))
    text = document(fits, runs)
    print("\n".join(table(fits, parse_tails(text), runs)))
    steps, per = sum(r.steps for r in runs), sum(r.steps * r.tensors for r in runs)
    print(f"{len(runs)} healthy runs, {steps:,} steps, {per:,} tensor-steps")
    if args.write:
        path = Path(limits.__file__).with_name(limits.TAILS_FILE)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
