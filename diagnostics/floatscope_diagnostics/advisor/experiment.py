"""The experiment that checks an advice before a long run rests on it."""

from __future__ import annotations

from floatscope_diagnostics.advisor.choosing import Chosen
from floatscope_diagnostics.advisor.everywhere import Everywhere
from floatscope_diagnostics.advisor.gap import Gap
from floatscope_diagnostics.advisor.limits import gap_closed_error_pct
from floatscope_diagnostics.advisor.words import counted

STEPS = 200
"""Steps of the check: paired losses of that many steps tell 0.01 nats apart even where they are correlated
(standard deviation 0.02, autocorrelation 0.5: 103 steps; with 0.9 it takes 651)."""


def experiment(chosen: Chosen, gap: Gap | None, common: Everywhere | None) -> str:
    """In words; empty where nothing is to be changed."""
    if common is not None and common.recipe:
        return (
            f"Train {STEPS} steps with {common.recipe} scaling on the same batches: the problems must be "
            "gone from all layers at once."
        )
    if not chosen.layers:
        return ""
    first = chosen.layers[0]
    since = f"from the last checkpoint before the problem, on the same batches, for {STEPS} steps"
    text = (
        f"Change {counted(len(chosen.layers), 'layer')} with the settings given and train {since}. The "
        "problems listed must be gone from these layers at once"
    )
    is_bf16 = all(one.to == "bf16" for one in chosen.layers)
    text += " (a layer in BF16 has no cast to measure)." if is_bf16 else "."
    if gap is not None and gap.is_real:
        low, high = gap_closed_error_pct(gap.nats, gap.chance_nats)
        closed = 100.0 * chosen.closed
        text += (
            f" Compare with the reference: of the gap of {gap.nats:.3f} nats {closed:.0f} % should close "
            f"(by the benchmark that may be off by {low:+.0f} to {high:+.0f} points), if training starts "
            "anew or soon after the fault."
        )
    if len(chosen.layers) > 1:
        text += f" To see one layer's part, change only {first.layer} first; it has the most harm per FLOP."
    return text
