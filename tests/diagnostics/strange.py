"""Strange logs for the tests of bad input, and what every verdict promises about them."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from floatscope.protocol.names import MAX_STEP
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.rule import FAMILY_OF

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a run an example: shrinking takes minutes
SLOW = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
RECIPE = {"recipe": {"name": "fp8_delayed_scaling", "amax_history_len": 4}, "vocab_size": 50}

STRANGE = st.sampled_from(
    [
        *(
            0.0,
            -0.0,
            1.0,
            -1.0,
            1e-45,
            -1e-45,
            5e-324,
            1e-30,
            65504.0,
            3e38,
            -3e38,
            1e308,
            -1e308,
            100.0,
            7.5,
        ),
        *(math.nan, math.inf, -math.inf),
    ]
)
STAT = STRANGE.filter(lambda v: abs(v) < 3.5e38 or not math.isfinite(v))
TENSORS = (
    "a/input",
    "b/weight",
    "c/grad_output",
    "d/output",
    "x",
    "a/b/c",
    "\u00fc.\u4e2d/input",
    "'; --/weight",
)
STATS = ("amax", "rms", "scale", "sat", "nan_count", "inf_count", "overflow_pct", "underflow_pct", "sqnr_db",
         "grad_norm", "update_ratio", "unchanged_pct", "amax_min_block", "zero_pct")  # fmt: skip
SCALARS = ("loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "update_norm", "param_norm", "eval_loss",
           "zero_grad_pct", "label_tokens", "step_time_s", "data_time_s", "ref_loss", "data_id", "resumed",
           "passes", "gpu_throttle", "mine")  # fmt: skip
ROW = st.fixed_dictionaries(
    {"step": st.sampled_from([0, 1, 2, 3, 5, 8, 100, MAX_STEP - 1, MAX_STEP])},
    optional={
        **dict.fromkeys(SCALARS, STRANGE),
        "time": st.sampled_from([0.0, -1e9, 1.7e9, 1e18]),
        "tensors": st.dictionaries(
            st.sampled_from(TENSORS), st.dictionaries(st.sampled_from(STATS), STAT, max_size=6), max_size=5
        ),
    },
)


def checked(engine: Engine) -> dict[str, Any]:
    """The verdict, held to what every verdict promises."""
    document = engine.verdict().to_json()
    json.dumps(document, allow_nan=False)
    assert document["status"] in ("healthy", "watch", "warning", "critical")
    for finding in document["findings"]:
        assert finding["cause"] in FAMILY_OF
        assert 0.0 <= finding["confidence"] <= 1.0
        shares = [a["confidence"] for a in finding["alternatives"]]
        assert finding["severity"] == "info" or finding["confidence"] + sum(shares) <= 1.03  # two digits each
        assert finding["onset_window"][0] <= finding["onset_step"] <= finding["onset_window"][1]
        assert finding["onset_step"] <= finding["detected_step"]
    return document
