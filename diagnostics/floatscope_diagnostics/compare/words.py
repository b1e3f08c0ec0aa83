"""What was found, in words."""

from __future__ import annotations

import math

from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.shape import Shape


def sentence(c: Comparison) -> str:
    """The one sentence that says what was found."""
    bad = c.nonfinite
    if bad is not None and bad.lasting:
        name, other = ("RUN", "BASELINE") if bad.side == "run" else ("BASELINE", "RUN")
        return f"{name} is not finite since step {bad.step:,} and {other} is: that is where they separate."
    if c.judged is None:
        return "Nothing can be said: no common step has a finite loss in both runs."
    band = c.judged.band
    length = f"{c.pairs.step[-1] - c.pairs.step[0] + 1:,} steps"
    if c.decision in ("worse", "better"):
        word = c.decision
        opened = f" since step {c.since:,}" if c.since is not None else ""
        return (
            f"RUN is {word} by {nats(abs(band.mean))} nats [{nats(min(abs(band.low), abs(band.high)))}, "
            f"{nats(band.largest)}]{opened}{shape_words(c.shape)}."
        )
    if c.decision == "same":
        if band.largest == 0.0:
            return f"No difference at all in {length}: the losses are equal to the last digit."
        healed = ""
        if c.beyond_margin is not None:
            healed = f"; they were apart by more than {c.settings.margin:g} from step "
            healed += f"{c.beyond_margin.onset_step:,} on, and are no longer"
        return f"No difference larger than {nats(band.largest)} nats at this length ({length}){healed}."
    if not math.isfinite(band.half):
        return "Cannot tell yet: one pair of steps is no basis for a band."
    more = c.needed.more_steps
    wait = (
        f"about {more:,} more steps would decide"
        if more is not None
        else f"it lies too close to the margin of {c.settings.margin:g} for more steps to decide"
    )
    return (
        f"Cannot tell yet whether the difference exceeds {c.settings.margin:g} nats: it lies between "
        f"{signed(band.low)} and {signed(band.high)}; {wait}."
    )


def shape_words(shape: Shape | None) -> str:
    return {
        "constant": ", a constant gap",
        "widening": ", and the gap widens",
        "closing": ", and the gap closes",
    }.get("" if shape is None else shape.kind, "")


def nats(value: float) -> str:
    """A number of nats with two to three digits that matter."""
    return f"{value:.3f}" if 0.1 <= abs(value) < 100.0 else f"{value:.2g}"


def signed(value: float) -> str:
    return ("+" if value > 0.0 else "") + nats(value)
