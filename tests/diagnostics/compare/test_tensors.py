"""Which tensor is named first, and what is said where tensors cannot be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope_diagnostics.compare.tensors import TensorParting, compare_tensors
from tests.diagnostics.compare.logs import Rows, side

LAYERS = ("blocks.0.fc", "blocks.1.fc", "head")
ROLES = ("input", "weight", "grad_output")
INFO: dict[str, Any] = {
    "recipe": {"name": "fp8_current_scaling"},
    "tensors": {
        f"{layer}/{role}": {"format": "e5m2" if role == "grad_output" else "e4m3", "call_order": k}
        for k, layer in enumerate(LAYERS)
        for role in ROLES
    },
}
BF16: dict[str, Any] = {
    "recipe": {"name": "bf16"},
    "tensors": {n: {**row, "format": "bf16"} for n, row in INFO["tensors"].items()},
}
FAULT = 50


def logged(seed: int, *, prefix: str = "", steps: int = 80) -> Rows:
    """A log whose tensors wander by a few percent."""
    draw = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        tensors: dict[str, dict[str, float]] = {}
        for layer in LAYERS:
            for role in ROLES:
                stats = {"amax": 2.0 * float(np.exp(draw.normal(0.0, 0.05))), "nan_count": 0.0}
                stats["underflow_pct"] = 0.1
                if role == "weight":
                    stats |= {"grad_norm": 0.5, "update_ratio": 1e-3}
                tensors[f"{prefix}{layer}/{role}"] = stats
        rows.append({"step": step, "loss": 2.0, "tensors": tensors})
    return rows


def told(
    run: Rows, base: Rows, *, infos: tuple[Any, Any] = (INFO, INFO), paired: bool = True
) -> TensorParting:
    return compare_tensors(side(run, info=infos[0]), side(base, label="base", info=infos[1]), paired=paired)


def changed(rows: Rows, tensor: str, stat: str, factor: float, *, last: int = 10**9) -> None:
    for row in rows:
        if FAULT <= row["step"] <= last:
            row["tensors"][tensor][stat] *= factor


def test_healthy_pairs_have_no_parted_tensor() -> None:
    found = told(logged(1), logged(2))
    assert not found.first
    assert found.common == len(LAYERS) * len(ROLES)
    assert found.nearest is not None


def test_activations_come_before_gradients_and_these_backward() -> None:
    run = logged(1)
    for layer in LAYERS:
        changed(run, f"{layer}/grad_output", "amax", 1e3)
        changed(run, f"{layer}/weight", "grad_norm", 1e3)
    changed(run, "head/input", "amax", 1e3)
    changed(run, "blocks.1.fc/input", "amax", 1e3)
    found = told(run, logged(2))
    assert [p.tensor for p in found.first] == [
        "blocks.1.fc/input", "head/input",
        "head/grad_output", "head/weight", "blocks.1.fc/grad_output", "blocks.1.fc/weight",
        "blocks.0.fc/grad_output", "blocks.0.fc/weight",
    ]  # fmt: skip
    assert {p.step for p in found.first} == {FAULT}
    assert [p.order for p in found.first[:3]] == ["forward", "forward", "backward"]


def test_a_small_jump_is_seen_where_a_small_level_is_not() -> None:
    run = logged(1)
    changed(run, "head/weight", "amax", 1.8)
    assert [p.tensor for p in told(run, logged(2)).first] == ["head/weight"]
    for row in run:
        row["tensors"]["head/weight"]["amax"] = 2.0 * 1.8
    assert not told(run, logged(2)).first


def test_one_row_counts_when_it_is_far_out() -> None:
    run = logged(1)
    changed(run, "blocks.0.fc/input", "amax", 1e5, last=FAULT)
    found = told(run, logged(2))
    assert [(p.tensor, p.step) for p in found.first] == [("blocks.0.fc/input", FAULT)]


def test_a_tensor_that_is_not_finite_in_one_run() -> None:
    run = logged(1)
    run[FAULT]["tensors"]["blocks.1.fc/input"]["nan_count"] = 3.0
    found = told(run, logged(2))
    assert [(p.tensor, p.stat, p.run, p.base) for p in found.first] == [
        ("blocks.1.fc/input", "nonfinite", 1.0, 0.0)
    ]


def test_statistics_of_the_cast_need_the_same_format() -> None:
    run = logged(1)
    changed(run, "head/input", "underflow_pct", 300.0)
    assert told(run, logged(2)).first
    found = told(run, logged(2), infos=(INFO, BF16))
    assert not found.first
    assert any("underflow_pct: the runs use different formats" in why for why in found.skipped)


def test_wrappers_in_names_do_not_matter_and_other_names_are_said() -> None:
    assert told(logged(1, prefix="module."), logged(2)).common == len(LAYERS) * len(ROLES)
    found = told(logged(1, prefix="other."), logged(2))
    assert found.why_not is not None
    assert "same name" in found.why_not


def test_missing_statistics_are_said() -> None:
    bare = [{"step": s, "loss": 2.0} for s in range(80)]
    found = told(logged(1), bare)
    assert found.why_not is not None
    assert "no tensor statistics in BASELINE" in found.why_not
    few = told(logged(1, steps=2), logged(2, steps=2))
    assert few.why_not is not None
    assert "only 2 steps" in few.why_not


def test_gradients_are_not_compared_on_other_data() -> None:
    run = logged(1)
    changed(run, "head/grad_output", "amax", 1e3)
    assert told(run, logged(2)).first
    assert not told(run, logged(2), paired=False).first
