"""From the confidence a rule states to the share of answers like it that were right.

A calibrated confidence is the probability that the named cause is right, given that an alarm was raised, when
faults are as frequent as in the injection library: every kind of fault alike, and mostly one at a time, on
small models with emulated FP8. Real runs have other frequencies and other faults, so the number is an upper
bound until it has been checked on real incidents; verdicts say so with BASIS.

The map is a logistic regression around the stated confidence, fitted by ``python -m benchmarks.diagnosis
fit``:

    logit p = logit(stated) + intercept + sum of weights times features + offset of the rule and cause

with a ridge penalty on everything but the first term. So a rule without evidence for or against it keeps what
the average rule gets, and a rule seen in three runs moves a little only. A rule that states less than
CONFIDENT misses a sign that its claim needs, mostly because it is not logged; the library's runs log
everything, so they cannot vouch for such a claim and never raise it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from floatscope_diagnostics.clues import Clues, logit, sigmoid
from floatscope_diagnostics.rule import FAMILY_OF, Finding

SCHEMA = "floatscope.calibration/1"
BASIS = "calibrated on emulation"
STATED = "stated by the rule"
CONFIDENT = 0.6  # below it the answer is undetermined, with the two best hypotheses and the test between them
LOWEST, HIGHEST = 0.02, 0.98  # a few hundred runs cannot show more certainty than one in fifty
FILE = "calibration.json"


class CalibrationError(ValueError):
    """The data file of the calibration is damaged. The message names the field."""


@dataclass(frozen=True)
class Calibration:
    """The fitted map. Without parameters it keeps the stated confidence.

    weights, groups: of the features and of rule and cause, in logits.  elsewhere: by rule and cause, where
    the truth lay when it was wrong: cause -> share.  other: weight of causes nobody named, against the stated
    confidences of those named.  threshold: lowest confidence with which a cause is named.  provenance: how it
    was fitted.
    """

    intercept: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)
    elsewhere: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    other: float = 0.3
    threshold: float = CONFIDENT
    basis: str = STATED
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def probability(self, clues: Clues) -> float:
        """P(the named cause is right), within LOWEST and HIGHEST; as stated where nothing was fitted."""
        if self.basis == STATED:
            return clues.stated
        z = logit(clues.stated) + self.intercept + self.groups.get(clues.group, 0.0)
        z += sum(self.weights.get(name, 0.0) * value for name, value in clues.features().items())
        p = sigmoid(z) if clues.stated >= self.threshold else min(sigmoid(z), clues.stated)
        return min(max(p, LOWEST), HIGHEST)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "basis": self.basis,
            "provenance": dict(self.provenance),
            "intercept": self.intercept,
            "weights": dict(self.weights),
            "groups": dict(self.groups),
            "elsewhere": {group: dict(shares) for group, shares in self.elsewhere.items()},
            "other": self.other,
        }

    @classmethod
    def from_json(cls, value: object) -> Calibration:
        """Reads what ``to_json`` wrote. Raises CalibrationError naming the field that is wrong."""
        top = _object(value, "calibration")
        if top.get("schema") != SCHEMA:
            raise CalibrationError(f"schema: expected {SCHEMA}, got {top.get('schema')!r}")
        elsewhere = {
            group: _numbers(shares, f"elsewhere[{group}]")
            for group, shares in _object(top.get("elsewhere"), "elsewhere").items()
        }
        strange = sorted({c for shares in elsewhere.values() for c in shares} - set(FAMILY_OF))
        if strange:
            raise CalibrationError(f"elsewhere: not a cause: {', '.join(strange)}")
        return cls(
            intercept=_number(top.get("intercept"), "intercept"),
            weights=_numbers(top.get("weights"), "weights"),
            groups=_numbers(top.get("groups"), "groups"),
            elsewhere=elsewhere,
            other=_number(top.get("other"), "other"),
            basis=str(top.get("basis")),
            provenance=_object(top.get("provenance"), "provenance"),
        )


AS_STATED = Calibration()
"""The rules' own confidences, with the threshold."""


@cache
def fitted() -> Calibration:
    """The calibration that came with the package, read at the first use.

    Raises CalibrationError if its file is damaged.
    """
    text = files("floatscope_diagnostics").joinpath(FILE).read_text("utf-8")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CalibrationError(f"{FILE}: {error}") from error
    return Calibration.from_json(value)


def clues_of(finding: Finding, *, earlier: bool) -> Clues:
    """The clues of an incident's best explanation, whose alternatives still have their stated confidences."""
    return Clues(
        rule=finding.rule,
        cause=finding.cause,
        stated=finding.confidence,
        rival=max((a.confidence for a in finding.alternatives), default=0.0),
        signals=len({e.signal for e in finding.evidence}),
        earlier=earlier,
    )


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CalibrationError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CalibrationError(f"{where}: expected a finite number, got {value!r}")
    return float(value)


def _numbers(value: object, where: str) -> dict[str, float]:
    return {str(k): _number(v, f"{where}[{k}]") for k, v in _object(value, where).items()}
