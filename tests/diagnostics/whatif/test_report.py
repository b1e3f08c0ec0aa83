"""The table of many tensors: the figure that takes a format over a limit is in it, and so is its tensor."""

from __future__ import annotations

from floatscope_diagnostics.whatif.document import TensorWhatIf
from floatscope_diagnostics.whatif.grids import variants
from floatscope_diagnostics.whatif.report import Limits, report
from floatscope_diagnostics.whatif.variant import Predicted

FLOOR = next(one for one in variants() if one.key == "mxfp8_e4m3_floor")
SHARES = {"a": (0.4, 0.0), "b": (0.0, 2.24), "c": (1.5, 1.1), "d": (0.0, 9.5), "e": (None, None)}


def shown(limits: Limits, worst: int = 2) -> str:
    tensors = [
        TensorWhatIf(f"blocks.0.{name}/input", (Predicted(FLOOR, under, over, None),))
        for name, (under, over) in SHARES.items()
    ]
    return report("run", tensors, limits, (), worst)


def test_the_worst_overflow_is_shown_beside_the_worst_underflow() -> None:
    text = shown(Limits())
    head, row = (line for line in text.splitlines() if line.startswith(("  format", f"  {FLOOR.label}  ")))
    assert head.split()[-5:] == ["underflow", "%", "overflow", "%", "dB"]
    assert row.split()[-5:] == ["3", "1", "1.50", "9.50", "-"]
    assert max(map(len, text.splitlines())) <= 100


def test_the_worst_tensors_come_first_whichever_limit_they_break() -> None:
    def order(limits: Limits) -> list[str]:
        return [line.split("/")[0].split(".")[-1] for line in shown(limits).splitlines() if "/input" in line]

    assert order(Limits()) == ["d", "b"]
    assert order(Limits(underflow_pct=0.01, overflow_pct=5.0)) == ["c", "a"]
    assert order(Limits(underflow_pct=0.0, overflow_pct=5.0)) == ["c", "a"]
