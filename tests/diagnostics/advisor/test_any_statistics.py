"""Random statistics: an advice is always made, is a document, and changes only layers of the run."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor.advice import FRAMEWORKS, Framework
from floatscope_diagnostics.advisor.advise import RECIPES, advise
from floatscope_diagnostics.advisor.gap import Gap
from floatscope_diagnostics.advisor.report import report
from floatscope_diagnostics.reports.terminal import Style

NAMES = st.sampled_from(
    [
        "blocks.0.mlp.fc2",
        "layers.3.self_attn.q_proj",
        "module.decoder.layers.1.mlp.linear_fc1",
        "a b'\"\\",
        "é",
    ]
)
NUMBERS = st.one_of(
    st.floats(-10, 110), st.sampled_from([0.0, 1e-45, 1e38, -1.0, math.nan, math.inf, -math.inf])
)
STATS = st.dictionaries(
    st.sampled_from(["amax", "scale", "overflow_pct", "underflow_pct", "sqnr_db", "nan_count", "rms"]),
    NUMBERS,
)
COUNTS = st.lists(st.integers(0, 2**31), min_size=64, max_size=64)
FORMATS = st.sampled_from(["e4m3", "e5m2", "mxfp8_e4m3", "nvfp4", "bf16", "fp32"])


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunInfo, list[dict[str, Any]]]:
    layers = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    names = [f"{layer}/{role}" for layer in layers for role in ("input", "weight", "grad_output")]
    table: dict[str, dict[str, Any]] = {name: {"format": draw(FORMATS)} for name in names}
    if draw(st.booleans()):
        table[names[0]]["shape"] = draw(st.sampled_from([[4, 4], [0, 3], "x", [1.5, 2], []]))
    recipes = ["fp8_delayed_scaling", "fp8_current_scaling", "mxfp8", "nvfp4", "", "odd"]
    info = RunInfo(recipe={"name": draw(st.sampled_from(recipes)) or "custom"}, tensors=table)
    made = []
    for step in range(draw(st.integers(0, 12))):
        tensors: dict[str, Any] = {name: draw(STATS) for name in names if draw(st.integers(0, 4))}
        if tensors and draw(st.integers(0, 3)) == 0:
            tensors[draw(st.sampled_from(sorted(tensors)))]["hist_log2"] = draw(COUNTS)
        made.append({"step": step * draw(st.sampled_from([1, 30])), "loss": 1.0, "tensors": tensors})
    return info, made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    made=runs(),
    framework=st.sampled_from([None, *FRAMEWORKS]),
    recipes=st.lists(st.sampled_from(RECIPES), min_size=1, unique=True),
    most=st.sampled_from([None, 0, 1]),
    gap=st.sampled_from([None, Gap(0.5, 0.4, 0.6, (0, 9)), Gap(0.0, -0.1, 0.1, (0, 9))]),
)
def test_never_raises(
    made: tuple[RunInfo, list[dict[str, Any]]],
    framework: Framework | None,
    recipes: list[str],
    most: int | None,
    gap: Gap | None,
) -> None:
    info, given_rows = made
    batches = [batch_from_rows(given_rows, strict=False)] if given_rows else []
    advice = advise(info, batches, name="x", framework=framework, recipes=recipes, max_layers=most, gap=gap)
    json.dumps(advice.to_json(), allow_nan=False)
    assert report(advice, Style()).strip()
    layers = [one.layer for one in advice.layers]
    assert len(set(layers)) == len(layers)
    assert all(one.to in recipes for one in advice.layers)
    assert most is None or len(layers) <= most
    compile(advice.settings.transformer_engine, "te", "exec")
    compile(advice.settings.torchao, "ao", "exec")
