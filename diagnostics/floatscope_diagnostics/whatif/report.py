"""A what-if in words and tables, for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.reports.terminal import plain
from floatscope_diagnostics.whatif.document import NOT_PREDICTED, TensorWhatIf
from floatscope_diagnostics.whatif.variant import Predicted, Variant

MOST_TABLES = 4
"""Of more tensors than these there is one table for all."""


_TINY = 1e-6
"""Per cent; keeps a limit of 0 from dividing."""


@dataclass(frozen=True)
class Limits:
    """Above these a tensor counts.  underflow_pct, overflow_pct: of non-zero elements.  sqnr_db: below it."""

    underflow_pct: float = 1.0
    overflow_pct: float = 1.0
    sqnr_db: float | None = None

    def reached_by(self, found: Predicted) -> bool:
        """Whether the variant takes the tensor over a limit."""
        under, over, sqnr = found.underflow_pct, found.overflow_pct, found.sqnr_db
        return (
            (under is not None and under > self.underflow_pct)
            or (over is not None and over > self.overflow_pct)
            or (self.sqnr_db is not None and sqnr is not None and sqnr < self.sqnr_db)
        )

    def beyond(self, found: Predicted) -> float:
        """How many times the limit of underflow or overflow the variant reaches, the larger of the two."""
        under, over = found.underflow_pct or 0.0, found.overflow_pct or 0.0
        return max(under / max(self.underflow_pct, _TINY), over / max(self.overflow_pct, _TINY))


def report(
    run: str, tensors: Sequence[TensorWhatIf], limits: Limits, notes: Sequence[str], worst: int
) -> str:
    """The whole text."""
    lines = [f"{plain(run)}: what other formats would do", ""]
    lines += [_wrapped(note) for note in notes]
    if len(tensors) <= MOST_TABLES:
        for one in tensors:
            lines += _of_tensor(one)
    else:
        lines += _of_all(tensors, limits, worst)
    lines += ["", *_wrapped(NOT_PREDICTED).splitlines()]
    return "\n".join(lines) + "\n"


def _of_tensor(one: TensorWhatIf) -> Iterator[str]:
    facts = [] if one.step is None else [f"step {one.step}"]
    if one.amax is not None:
        facts.append(f"amax {one.amax:.4g}")
    if one.format_in_use is not None:
        facts.append(f"in use: {plain(one.format_in_use)}")
    yield f"{plain(one.tensor)}   {', '.join(facts)}"
    used = one.in_use
    if used is not None:
        numbers = (
            ("underflow", used.underflow_pct, "%"),
            ("overflow", used.overflow_pct, "%"),
            ("SQNR", used.sqnr_db, "dB"),
        )
        said = [f"{what} {value:.4g} {unit}" for what, value, unit in numbers if value is not None]
        yield f"  measured in the run: {', '.join(said)}"
    for flag in one.flags:
        yield _indented(f"! {flag.sentence}")
    yield ""
    has_bulk = any(flag.code == "power_concentrated" for flag in one.flags)
    head = f"  {'format':40} {'bits':>5} {'underflow %':>15} {'overflow %':>10} {'SQNR dB':>13}"
    yield head + (f" {'bulk dB':>7}" if has_bulk else "")
    for found in one.predicted:
        yield _row(found, has_bulk=has_bulk, is_used=found.variant.key == one.variant_in_use)
    if any(found.variant.key == one.variant_in_use for found in one.predicted):
        yield "  * as the run casts it"
    for why in dict.fromkeys(p.why_not for p in one.predicted if not p.valid and p.underflow_pct is not None):
        yield _indented(f"x not valid: {why}.")
    yield ""


def _row(found: Predicted, *, has_bulk: bool, is_used: bool) -> str:
    variant = found.variant
    mark = "*" if is_used else " "
    name = f"{mark} {variant.label:40} {variant.bits:5.4g}"
    if found.underflow_pct is None:
        return f"{name}   - {found.why_not[:50]}"
    under = f"{_share(found.underflow_pct)}{_error(found.underflow_error_pct, 2)}"
    sqnr = "-" if found.sqnr_db is None else f"{found.sqnr_db:.1f}{_error(found.sqnr_error_db, 1)}"
    row = f"{name} {under:>15} {_share(found.overflow_pct):>10} {sqnr:>13}"
    if has_bulk:
        row += f" {'-' if found.bulk_sqnr_db is None else f'{found.bulk_sqnr_db:.1f}':>7}"
    return row if found.valid else f"{row} x"


def _share(value: float | None) -> str:
    """A percentage; one that is not zero never reads as 0."""
    if value is None:
        return "-"
    if 0 < value < 0.005:
        return "<0.01"
    return f"{value:.2f}"


def _error(value: float | None, digits: int) -> str:
    return "" if value is None else f" ±{max(value, 10.0**-digits):.{digits}f}"


def _of_all(tensors: Sequence[TensorWhatIf], limits: Limits, worst: int) -> Iterator[str]:
    rule = f"underflow above {limits.underflow_pct:g} % or overflow above {limits.overflow_pct:g} %"
    rule += "" if limits.sqnr_db is None else f" or SQNR below {limits.sqnr_db:g} dB"
    steps = sorted({one.step for one in tensors if one.step is not None})
    when = (
        ""
        if not steps
        else f" at step {steps[0]}"
        if len(steps) == 1
        else f" at steps {steps[0]} to {steps[-1]}"
    )
    yield f"{len(tensors)} tensors{when}; over limits: {rule}"
    flagged = {
        code: sum(any(f.code == code for f in one.flags) for one in tensors) for code in _codes(tensors)
    }
    for code, count in flagged.items():
        yield f"  ! {count} of them: {code.replace('_', ' ')}"
    yield ""
    head = f"{'bits':>5} {'over':>5} {'not said':>8} {'worst: underflow %':>18} {'overflow %':>10} {'dB':>5}"
    yield f"  {'format':40} {head}"
    for index, first in enumerate(tensors[0].predicted):
        yield _summary(first.variant, [one.predicted[index] for one in tensors], limits)
    yield ""
    for index, first in enumerate(tensors[0].predicted):
        over = [one for one in tensors if limits.reached_by(one.predicted[index])]
        if not over or not worst:
            continue
        over.sort(key=lambda one: -limits.beyond(one.predicted[index]))
        yield f"  {first.variant.label}: {len(over)} over limits"
        for one in over[:worst]:
            found = one.predicted[index]
            sqnr = "-" if found.sqnr_db is None else f"{found.sqnr_db:.1f} dB"
            yield (
                f"      {plain(one.tensor):48} underflow {_share(found.underflow_pct):>6} %, "
                f"overflow {_share(found.overflow_pct):>5} %, {sqnr}"
            )
        if len(over) > worst:
            yield f"      and {len(over) - worst} more"


def _summary(variant: Variant, found: Sequence[Predicted], limits: Limits) -> str:
    said = [one for one in found if one.underflow_pct is not None]
    over = sum(limits.reached_by(one) for one in said)
    under = max((one.underflow_pct or 0.0 for one in said), default=None)
    clipped = max((one.overflow_pct for one in said if one.overflow_pct is not None), default=None)
    low = min((one.sqnr_db for one in said if one.sqnr_db is not None), default=None)
    sqnr = "-" if low is None else f"{low:.1f}"
    unsaid = len(found) - len(said) + sum(not one.valid for one in said)
    shares = f"{_share(under):>18} {_share(clipped):>10}"
    return f"  {variant.label:40} {variant.bits:5.4g} {over:5} {unsaid:8} {shares} {sqnr:>5}"


def _codes(tensors: Sequence[TensorWhatIf]) -> list[str]:
    return sorted({flag.code for one in tensors for flag in one.flags})


def _indented(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="    ")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 98)
