"""Limits of the change detectors, from the tails of what healthy runs do.

``healthy_tails.json`` holds, for every sign a tensor can give and every class of tensors, how a healthy
run's largest values fall off: a generalised Pareto tail fitted to the peaks over a threshold
(``python -m benchmarks.diagnosis.tails`` makes it). A *sign* is one number a tensor-step, larger is worse.
Where several conditions must hold together, or one for several rows, the sign is their minimum, so that
its tail is that of the joint event as it was seen: nothing is assumed independent.

**From a budget to a limit.** A run has ``ARL_STEPS`` steps between two false pages of a family, at most
``SIGNS_PER_FAMILY`` signs lead to a page of one family, and ``S`` tensors of the class are judged at every
step. By Bonferroni, which holds under any dependence between tensors, steps and signs, each sign may occur
at a tensor-step with the probability

    p = 1 / (ARL_STEPS * SIGNS_PER_FAMILY * S)

With ``rate`` peaks over ``threshold`` a tensor-step and the tail ``P(excess > y) = (1 + shape * y / scale)
** (-1 / shape)``, the limit is ``threshold + scale / shape * ((p / rate) ** -shape - 1)``: it grows with S
and never shrinks. Peaks of one tensor that are less than DECLUSTER_ROWS apart are one peak, so the rate is
one of episodes. Percentages are fitted as ``ln(q / (1 - q))``: on this scale the tails are light, and no
limit can pass 100 %. No limit is below BEYOND_LARGEST times the largest healthy value.

**Between a floor and a ceiling.** Below ``Sign.floor`` an effect is harmless however rare. Above
``Sign.ceiling`` real faults would go unseen; a sign whose tail asks for more stays at its ceiling and is
*support*: it pages only beside a sign of another kind on the same tensor, or when it lasts. The sum over
tensors is then paid by the other sign: with a rate ``a`` of this one and ``b`` of the other a tensor-step,
coincidences within ``w`` rows by chance are at most ``S * (2 * w + 1) * a * b`` a step. Activations jump by
the ceiling of 1.8 octaves in 3e-5 of tensor-steps and underflow beyond its ceiling for three rows in 2e-8:
with 3,000 tensors and w = 2 that is one in 110 million steps. A jump and clipping are one event seen twice:
their product means nothing, and ``clip_with_sat`` is their joint sign. No healthy row passed its floor, but
489,000 tensor-steps prove no more than a rate below 6e-6, so its ceiling rests on judgement.

A class that the data does not know takes the tail of all recipes of its role, and if there is none, the
ceiling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import DELAYED_MAX, DELAYED_RECENT, ROLE_CODES, Columns

Float64 = NDArray[np.float64]

ARL_STEPS = 7_776_000.0  # 90 days of one step a second: one false page a family in a run's quarter
SIGNS_PER_FAMILY = 4.0  # saturation has four ways to show, underflow three, precision two
DECLUSTER_ROWS = 8
CLASSES = ("forward", "weight", "backward")
KINDS = ("delayed_max", "delayed_recent", "stateless", "unscaled")
ANY = "any"
BEYOND_LARGEST = 1.1  # a fitted end point is no excuse for a limit that healthy runs have passed
TAILS_VERSION = 1
TAILS_FILE = "healthy_tails.json"
MIN_LOGIT_SHARE = 5e-5  # half of what one element of a small tensor is; below it a share counts as this


class TailsError(ValueError):
    """The data file with the healthy tails is missing, damaged or of another version."""


@dataclass(frozen=True)
class Sign:
    """What a tensor can show at a step.

    floor, ceiling: by class (forward, weight, backward), in the sign's unit.  percent: the unit is percent
    or percentage points, and the tail is fitted on the logit scale.  alone: one value for the class and not
    one a tensor, so there is no sum over tensors.
    """

    name: str
    floor: tuple[float, float, float]
    ceiling: tuple[float, float, float]
    percent: bool = False
    alone: bool = False


SIGNS = (
    # rise of log2 amax in one row, less what the class has in common; twice the size is within any margin
    Sign("amax_jump", (1.0, 0.4, 3.0), (1.8, 0.6, 8.0)),
    Sign("amax_common", (1.0, 0.3, 2.5), (1.8, 0.6, 8.0), alone=True),
    # bits of range left unused for two rows, above the level
    Sign("headroom_up", (4.0, 2.0, 6.0), (8.0, 4.0, 14.0)),
    Sign("headroom_common", (3.0, 2.0, 5.0), (8.0, 4.0, 14.0), alone=True),
    # octaves by which amax * scale passes the format's maximum
    Sign("sat", (1.0, 0.4, 3.0), (1.8, 0.6, 8.0)),
    # share clipped where sat is above OVER_LOG2; in one row; in each of three rows. A gradient with normally
    # distributed elements clips a third of them when it rises by two octaves, which is ordinary: no share
    # clipped in one row is proof there
    Sign("clip_with_sat", (1.0, 0.4, 5.0), (2.0, 1.0, 40.0), percent=True),
    Sign("clip_at_once", (5.0, 2.0, 101.0), (10.0, 4.0, 101.0), percent=True),
    Sign("clip_lasting", (0.4, 0.4, 2.5), (2.0, 1.0, 5.0), percent=True),
    # points of underflow above the level: in one row; with IDLE_LOG2 bits more unused; in each of three rows
    Sign("underflow_at_once", (10.0, 5.0, 25.0), (20.0, 10.0, 101.0), percent=True),
    Sign("underflow_idle", (5.0, 3.0, 15.0), (20.0, 10.0, 50.0), percent=True),
    Sign("underflow_lasting", (2.5, 1.0, 6.0), (5.0, 2.0, 15.0), percent=True),
    # fall of SQNR in dB in each of three rows: one tensor's beyond its class; the class's own
    Sign("sqnr_drop", (2.0, 0.8, 2.0), (4.0, 1.2, 6.0)),
    Sign("sqnr_all", (1.0, 0.6, 1.2), (1.5, 1.0, 2.0), alone=True),
)
BY_NAME: Mapping[str, Sign] = {s.name: s for s in SIGNS}


@dataclass(frozen=True)
class Tail:
    """Generalised Pareto tail of one sign in one class.

    threshold, scale, shape: on the sign's own scale, or on the logit scale for percentages.  rate: peaks over
    the threshold a tensor-step.  largest: the largest healthy value seen, in the sign's unit.
    """

    threshold: float
    scale: float
    shape: float
    rate: float
    largest: float = -math.inf

    def beyond(self, p: float) -> float:
        """The value that is passed at a tensor-step with probability ``p``, on the fitted scale.

        Never below the threshold: nothing is known about more frequent values.
        """
        ratio = p / self.rate
        if ratio >= 1.0:
            return self.threshold
        if abs(self.shape) < 1e-6:
            return self.threshold - self.scale * math.log(ratio)
        return self.threshold + self.scale / self.shape * (math.pow(ratio, -self.shape) - 1.0)


@dataclass(frozen=True)
class Tails:
    """The fitted tails by (sign, class, kind), and where they come from."""

    by_key: Mapping[tuple[str, str, str], Tail]
    provenance: Mapping[str, Any]

    def limit(self, sign: str, role: str, kind: str, *, tensors: int) -> float:
        """The limit of a sign when ``tensors`` tensors of the class are judged at each step."""
        what = BY_NAME[sign]
        place = CLASSES.index(role)
        tail = self.by_key.get((sign, role, kind)) or self.by_key.get((sign, role, ANY))
        if tail is None:
            return what.ceiling[place]
        count = 1 if what.alone else max(1, tensors)
        value = tail.beyond(1.0 / (ARL_STEPS * SIGNS_PER_FAMILY * count))
        if what.percent:
            value = 100.0 / (1.0 + math.exp(-value))
        value = max(value, BEYOND_LARGEST * tail.largest)
        return min(max(value, what.floor[place]), what.ceiling[place])


def logit_pct(percent: Float64) -> Float64:
    """ln(q / (1 - q)) of a share in percent, kept finite by MIN_LOGIT_SHARE; NaN stays."""
    share = np.clip(percent / 100.0, 0.0, 1.0)
    logit: Float64 = np.log((share + MIN_LOGIT_SHARE) / (1.0 - share + MIN_LOGIT_SHARE))
    return logit


def classes_of(columns: Columns) -> NDArray[np.int64]:
    """Index into CLASSES of every column (S,)."""
    return np.where(columns.role == ROLE_CODES["weight"], 1, np.where(columns.backward, 2, 0)).astype(
        np.int64
    )


def kinds_of(columns: Columns) -> NDArray[np.int64]:
    """Index into KINDS of every column (S,); -1 where the recipe is not declared."""
    stateless = columns.block | ((columns.rule != DELAYED_MAX) & (columns.rule != DELAYED_RECENT))
    declared = bool(columns.run.recipe.get("name"))
    kind = np.where(columns.rule == DELAYED_MAX, 0, np.where(columns.rule == DELAYED_RECENT, 1, -1))
    kind = np.where(stateless & columns.scaled & (columns.block | declared), 2, kind)
    return np.where(columns.scaled, kind, 3).astype(np.int64)


def limits_of(columns: Columns, tails: Tails | None = None) -> dict[str, Float64]:
    """Every sign's limit as an array (S,); for signs that are ``alone`` the value of the column's class."""
    known = load_tails() if tails is None else tails
    place, kind = classes_of(columns), kinds_of(columns)
    sizes = np.bincount(place, minlength=len(CLASSES))
    out = {s.name: np.zeros(len(columns)) for s in SIGNS}
    for c, k in sorted({(int(a), int(b)) for a, b in zip(place, kind, strict=True)}):
        mine = (place == c) & (kind == k)
        name = KINDS[k] if k >= 0 else ANY
        for sign in SIGNS:
            out[sign.name][mine] = known.limit(sign.name, CLASSES[c], name, tensors=int(sizes[c]))
    for sign in SIGNS:
        if sign.alone:  # one judgement for the class: the largest of its kinds
            for c in range(len(CLASSES)):
                mine = place == c
                if mine.any():
                    out[sign.name][mine] = out[sign.name][mine].max()
    return out


@cache
def load_tails() -> Tails:
    """The tails that come with the package. Raises TailsError."""
    try:
        text = resources.files(__package__).joinpath(TAILS_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise TailsError(f"{TAILS_FILE}: cannot be read ({error}); install the package again") from error
    return parse_tails(text)


def parse_tails(text: str) -> Tails:
    """Reads the data file. Raises TailsError that names the entry and what is wrong with it."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise TailsError(f"{TAILS_FILE}: not JSON ({error}); install the package again") from error
    if not isinstance(tree, dict) or tree.get("version") != TAILS_VERSION:
        raise TailsError(f"{TAILS_FILE}: expected version {TAILS_VERSION}; install the package again")
    fits = tree.get("fits")
    if not isinstance(fits, dict) or not fits:
        raise TailsError(f"{TAILS_FILE}: 'fits' is missing or empty; install the package again")
    by_key = {}
    for name, entry in fits.items():
        parts = tuple(str(name).split("/"))
        if len(parts) != 3 or parts[0] not in BY_NAME or parts[1] not in CLASSES:
            raise TailsError(f"{TAILS_FILE}: {name!r} is no known sign and class")
        if parts[2] not in (*KINDS, ANY):
            raise TailsError(f"{TAILS_FILE}: {name!r} names no known kind of recipe")
        by_key[(parts[0], parts[1], parts[2])] = _tail(name, entry)
    provenance = tree.get("provenance")
    return Tails(by_key, provenance if isinstance(provenance, dict) else {})


def _tail(name: str, entry: object) -> Tail:
    numbers = {}
    for key in ("threshold", "scale", "shape", "rate", "largest"):
        value = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise TailsError(f"{TAILS_FILE}: {name!r} needs a finite number {key!r}, got {value!r}")
        numbers[key] = float(value)
    if numbers["scale"] <= 0 or not 0 < numbers["rate"] <= 1 or abs(numbers["shape"]) > 1:
        raise TailsError(f"{TAILS_FILE}: {name!r} has a scale, rate or shape out of range: {entry!r}")
    return Tail(**numbers)
