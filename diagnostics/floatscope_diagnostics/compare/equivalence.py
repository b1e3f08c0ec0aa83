"""Whether the loss of a run is as good as its baseline's: equivalence on paired differences.

Two one-sided tests (Schuirmann 1987) by interval inclusion: *equivalent* if the whole interval lies
inside the margin, *non-inferior* if its upper end lies below it, *worse* if its lower end lies above. "No
significant difference" is not a pass. The interval is that of ``mean_band`` (circular block bootstrap,
widened): of 90 %, which is a test at 5 %, and of 95 % where neighbours share more than half, since there
every block bootstrap is a few points short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from floatscope_diagnostics.compare.bootstrap import Band, mean_band
from floatscope_diagnostics.compare.noise import normal_quantile
from floatscope_diagnostics.compare.settled import FIRST_SHARE, Settled

MIN_PAIRS = 200
MIN_INDEPENDENT = 50.0
"""Fewer do not settle a loss difference; below them the bootstrap's interval is too narrow as well."""
EARLY_WORSE_CONFIDENCE = 0.998
EARLY_WORSE_INDEPENDENT = 8.0
"""A run that is far worse is called so before that, at a level at which short series do not lie."""
TOST, TOST_CORRELATED = 0.90, 0.95
CORRELATED = 0.5
POWER = 0.8
TOO_CLOSE = 0.1  # of the margin: a mean so near to it is not decided by waiting
LARGEST_WAIT = 1e9  # pairs

Answer = Literal["equivalent", "non_inferior", "worse", "undecided"]


@dataclass(frozen=True)
class LossAnswer:
    """answer, with the reason of an undecided one in words.

    band: None without a pair.  confidence: of the band.  pairs_if_equal: pairs like these that a true gap of
    0 needs (power 0.8).  more_steps: until it is decided if the mean stays as it is; None where waiting does
    not help or cannot be told, 0 where it is decided.
    """

    answer: Answer
    margin: float
    confidence: float
    band: Band | None
    pairs: int
    pairs_if_equal: int | None
    more_steps: int | None
    why: str = ""


def judge_loss(part: Settled, margin: float) -> LossAnswer:
    """Judges the settled pairs against a margin in nats, above 0."""
    n = len(part.step)
    if n < 2:
        return LossAnswer("undecided", margin, TOST, None, n, None, None, "there are no pairs to judge")
    band = mean_band(part.gap, confidence=TOST)
    confidence = TOST
    if band.noise.phi > CORRELATED:
        confidence = TOST_CORRELATED
        band = mean_band(part.gap, confidence=confidence)
    equal = _pairs_if_equal(band, margin, part.width)
    n = part.pairs
    few = _few(part, band)
    if few:
        early = mean_band(part.gap, confidence=EARLY_WORSE_CONFIDENCE)
        if early.noise.n_eff >= EARLY_WORSE_INDEPENDENT and early.low > margin and not part.warming:
            return LossAnswer("worse", margin, EARLY_WORSE_CONFIDENCE, early, n, equal, 0)
        more = None if part.warming else _more(part, band, margin, confidence)
        return LossAnswer("undecided", margin, confidence, band, n, equal, more, few)
    if band.low > margin:
        return LossAnswer("worse", margin, confidence, band, n, equal, 0)
    if band.high < margin:
        kind: Answer = "equivalent" if band.low > -margin else "non_inferior"
        return LossAnswer(kind, margin, confidence, band, n, equal, 0)
    more = _more(part, band, margin, confidence)
    why = "the interval holds the margin"
    if more is None:
        why = "the difference lies so close to the margin that more steps will not decide it"
    return LossAnswer("undecided", margin, confidence, band, n, equal, more, why)


def _few(part: Settled, band: Band) -> str:
    if part.warming:
        return "the learning rate is still rising: nothing before the end of its warm-up counts"
    if part.pairs < MIN_PAIRS:
        return f"{part.pairs:,} pairs past warm-up and first tenth are fewer than {MIN_PAIRS}"
    if band.noise.n_eff < MIN_INDEPENDENT:
        return (
            f"{part.pairs:,} pairs that follow each other slowly are worth {band.noise.n_eff:,.0f} "
            f"independent ones, fewer than {MIN_INDEPENDENT:.0f}"
        )
    return ""


def _pairs_if_equal(band: Band, margin: float, width: int) -> int | None:
    """(z(0.95) + z(0.9))^2 (long-run sd / margin)^2, for AR(1) 8.56 (sd/margin)^2 (1+phi)/(1-phi).

    The power of both one-sided tests at a true gap of 0 (Schuirmann 1987, Phillips 1990).
    """
    if margin <= 0.0:
        return None
    root = (normal_quantile(0.95) + normal_quantile(0.5 + 0.5 * POWER)) * band.noise.long_run_sd / margin
    wanted = root * root * width
    return max(math.ceil(wanted), 2) if wanted < LARGEST_WAIT else None


def _more(part: Settled, band: Band, margin: float, confidence: float) -> int | None:
    """Further steps until the interval leaves the margin with probability POWER if the mean stays, and the
    least number of pairs is there; None where that cannot be told.
    """
    n = len(part.step)
    room = abs(margin - band.mean)
    if n < 3 or room <= TOO_CLOSE * margin or not math.isfinite(band.noise.long_run_sd):
        return None
    z = normal_quantile(0.5 + 0.5 * confidence) + normal_quantile(POWER)
    root = z * band.noise.long_run_sd / room
    least = max(float(MIN_PAIRS), MIN_INDEPENDENT * n / band.noise.n_eff)
    wanted = max(root * root, least)
    if not wanted < LARGEST_WAIT:
        return None
    more = max(math.ceil(wanted) - n, 1)
    return math.ceil(more * part.stride / (1.0 - FIRST_SHARE))


def level_of(loss: np.ndarray) -> float:
    """The baseline's loss that a relative margin refers to: the median of its finite values, NaN for none."""
    good = loss[np.isfinite(loss)]
    return float(np.median(good)) if len(good) else math.nan
