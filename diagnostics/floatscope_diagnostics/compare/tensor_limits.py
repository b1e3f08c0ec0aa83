"""How far the tensors of two healthy runs of one seed are apart, by statistic and class of tensor."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope_diagnostics.compare.tensor_log import NONFINITE_GRAD

PERSIST_ROWS = 3  # rows with statistics in a row
SEARCH_ROWS = 32  # a loss scale that starts at 2^24 halves for 18 rows
SHOWN = 8
OCTAVES, POINTS, DECIBELS = "octaves", "percentage points", "dB"
UNITS = {
    "amax": OCTAVES, "rms": OCTAVES, "scale": OCTAVES, "grad_norm": OCTAVES, "update_ratio": OCTAVES,
    "overflow_pct": POINTS, "underflow_pct": POINTS, "sqnr_db": DECIBELS,
}  # fmt: skip
LIMITS: Mapping[str, Mapping[str, float]] = {
    "amax": {"forward": 3.0, "weight": 1.0, "backward": 3.0},
    "rms": {"forward": 1.5, "weight": 0.6, "backward": 2.0},
    "scale": {"forward": 4.0, "weight": 1.5, "backward": 6.0},
    "grad_norm": {"forward": 2.0, "weight": 2.0, "backward": 2.0},
    "update_ratio": {"forward": 2.0, "weight": 2.0, "backward": 2.0},
    "overflow_pct": {"forward": 1.5, "weight": 0.5, "backward": 6.0},
    "underflow_pct": {"forward": 2.0, "weight": 0.5, "backward": 5.0},
    "sqnr_db": {"forward": 8.0, "weight": 3.0, "backward": 12.0},
}
"""By statistic and class, in the unit of UNITS: about one and a half times the largest deviation that lasted
three rows in healthy pairs of 2,000 steps (emulated FP8, BF16 and FP16, same seed), which was amax 1.9 / 0.6
/ 1.5, rms 0.9 / 0.4 / 0.8, grad_norm 1.0, update_ratio 1.0, overflow 0.6 / 0.05 / 1, underflow 0.3 / 0.02 /
1.3, sqnr 5.2 / 0.7 / 8.3."""
JUMP_LIMITS: Mapping[str, Mapping[str, float]] = {
    "amax": {"forward": 1.9, "weight": 0.6, "backward": 2.5},
    "rms": {"forward": 1.05, "weight": 0.25, "backward": 1.5},
    "scale": {"forward": 2.5, "weight": 1.0, "backward": 4.0},
    "grad_norm": {"forward": 1.5, "weight": 1.5, "backward": 1.5},
    "update_ratio": {"forward": 1.4, "weight": 1.4, "backward": 1.4},
    "overflow_pct": {"forward": 0.7, "weight": 0.25, "backward": 1.5},
    "underflow_pct": {"forward": 0.7, "weight": 0.25, "backward": 1.5},
    "sqnr_db": {"forward": 7.0, "weight": 1.5, "backward": 8.0},
}
"""The same for a change of the deviation against its median over the JUMP_ROWS rows before: smaller, since
two healthy runs part slowly. Largest in 58 healthy pairs: amax 1.35 / 0.37 / 1.7, rms 0.75 / 0.14 / 1.06,
grad_norm 1.05, update_ratio 0.94, overflow 0.13 / 0.07 / 0.2, underflow 0.12 / 0.02 / 0.44, sqnr 5.0 / 0.7 /
5.7."""
JUMP_ROWS = 32
JUMP_TENSORS = 128  # at a time, so that the windows stay below 100 MiB
UNPAIRED_TIMES = 2.0
OF_GRADIENTS = ("grad_norm", "update_ratio", NONFINITE_GRAD)
SUDDEN_TIMES: Mapping[str, float] = {
    "amax": 4.0, "rms": 4.0, "scale": 4.0, "underflow_pct": 4.0, "overflow_pct": 10.0,
}  # fmt: skip
"""So many times the limit in a single row is enough; healthy pairs reached 2.9, overflow 5.2."""
SETTLED_ROWS = 16  # after the first rows, in which delayed scales are not yet right
SAME_FORMAT_ONLY = ("scale", "overflow_pct", "underflow_pct", "sqnr_db")
BEYOND_ALL = 64.0  # octaves; stands for 0 against a number
