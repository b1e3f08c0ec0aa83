"""The gate of the findings: what is critical, what number formats still do wrong, what was not looked at.

A warning is no refusal by itself: most cost nothing. One that the precision can be the cause of, that is
still open at the last step and that the baseline has not, may cost what this pair has not shown yet: it
keeps the decision open until it is repaired or explained. So does a cast that loses far more than its format
must. Warnings that are over, and those about data or learning rate, are said and keep nothing open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_diagnostics.compare.casts import LossyCast, said_of
from floatscope_diagnostics.compare.gate import Gate
from floatscope_diagnostics.compare.health import Health

MOST = 4  # faults that a sentence names
ADVISE = (
    "floatscope advise on RUN names the layers to take out of FP8, or the cast that is to be repaired; then "
    "train the pair again."
)


@dataclass(frozen=True)
class OpenFaults:
    """What is still wrong with the number formats of a run. said: in words, gravest first.  remedy: of the
    first.
    """

    said: tuple[str, ...] = ()
    remedy: str = ""


def open_faults(run: Health | None, base: Health | None, casts: Sequence[LossyCast]) -> OpenFaults:
    """Open warnings of the precision that the baseline has not as well, and casts that lose too much."""
    shared = frozenset() if base is None else base.causes - {"undetermined"}
    own = [one for one in (() if run is None else run.of_precision) if one.cause not in shared]
    said = [one.said for one in own] + ([said_of(casts)] if casts else [])
    again = f"{own[0].remedy}; then train the pair again." if own and own[0].remedy else ADVISE
    return OpenFaults(tuple(said), again if said else "")


def health_gate(run: Health | None, faults: OpenFaults, *, casts_read: bool = True) -> Gate:
    """Fails on an open critical finding of the run, is undecided on an open fault of its number formats.

    casts_read: whether the casts were looked at; where they were not, nothing is passed.
    """
    if run is None:
        return Gate(
            "fp8_health", "not_checked", "The run was not judged.", unit="critical findings", limit=0.0,
            next_step="Diagnose the run's log (floatscope diagnose).",
        )  # fmt: skip
    if run.critical:
        return Gate(
            "fp8_health", "fail", f"Critical: {_first(run.critical)}.", float(len(run.critical)), limit=0.0,
            unit="critical findings",
        )  # fmt: skip
    if faults.said:
        text = f"Nothing critical, but open to the end: {'; '.join(faults.said[:MOST])}."
        return Gate(
            "fp8_health", "undecided", text + _over(run), float(len(faults.said)), limit=0.0,
            unit="open faults of number formats", next_step=faults.remedy,
        )  # fmt: skip
    rest = f"; open, of lower severity: {_first(run.warnings)}" if run.warnings else ""
    if not run.tensors_seen:
        text = (
            f"Of the curves no critical finding is open{rest}. The log has no statistics of tensors, so "
            "faults of the number formats were not looked for."
        )
        return Gate("fp8_health", "not_checked", text + _over(run), unit="critical findings", limit=0.0)
    text = f"No critical finding is open{rest}."
    if not casts_read:
        return Gate(
            "fp8_health", "not_checked", f"{text} Whether casts lose too much was not read.", limit=0.0,
            unit="critical findings", next_step="Wait until the statistics of tensors have been read.",
        )  # fmt: skip
    return Gate("fp8_health", "pass", text + _over(run), 0.0, limit=0.0, unit="critical findings")


def _over(run: Health) -> str:
    return f" Over by the end: {_first(run.recovered)}." if run.recovered else ""


def _first(said: Sequence[str]) -> str:
    return said[0] + (f" and {len(said) - 1} more" if len(said) > 1 else "")
