"""Transformer Engine's debug statistics become tensors with statistics."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.readers.te_debug import FOUR_DECIMALS
from floatscope_diagnostics.readers.te_names import our_stats, tensor_and_stat
from tests.diagnostics.read_back import read_one
from tests.diagnostics.tracker_files import events

LAYERS = ("decoder.0.mlp.fc1", "decoder.1.mlp.fc1")


def line(name: str, iteration: int, value: float) -> str:
    """As nvdlfw_inspect/logging.py writes it."""
    message = f"{name} \t\t\t\t iteration={iteration:06d} \t\t\t\t value={value:.4f}"
    return f"2026-01-01 10:00:00,000 - INFO - {message}\n"


def log(scale: float = 1.0) -> str:
    out = []
    for step in (0, 10, 20):
        for layer in LAYERS:
            out.append(line(f"{layer}_activation_cur_amax", step, 3.5 * scale))
            out.append(line(f"{layer}_activation_scale_inv_min", step, 0.0625))
            out.append(line(f"{layer}_activation_scale_inv_max", step, 0.0625))
            out.append(line(f"{layer}_weight_std", step, 0.25))
        for layer in reversed(LAYERS):
            out.append(line(f"{layer}_gradient_cur_amax", step, 3e-6))
            out.append(line(f"{layer}_gradient_underflows%", step, 1.5))
    return "".join(out)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.b_activation_std", ("a.b/input", "std")),
        (
            "layernorm_qkv_weight_fp8_delayed_scaling_underflows%",
            ("layernorm_qkv/weight", "fp8_delayed_scaling_underflows%"),
        ),
        ("x_weight_norm_gradient_cur_amax", ("x_weight_norm/grad_output", "cur_amax")),
        ("a/b_wgrad_l2_norm", ("a.b/grad_weight", "l2_norm")),
        ("a_dgrad_mse", ("a/grad_input", "mse")),
        ("train_loss", None),
    ],
)
def test_names(name: str, expected: tuple[str, str] | None) -> None:
    assert tensor_and_stat(name) == expected


def test_statistics_get_our_names() -> None:
    got = our_stats({"cur_amax": 4.0, "underflows%": 1.0, "overflows%": 2.0, "l1_norm": 9.0})
    assert got == {"amax": 4.0, "underflow_pct": 1.0, "overflow_pct": 2.0, "l1_norm": 9.0}
    assert our_stats({"min": -5.0, "max": 3.0})["amax"] == 5.0
    assert "amax" not in our_stats({"min": 0.0, "max": 0.0})
    assert math.isnan(our_stats({"min": math.nan, "max": 3.0})["amax"])
    assert our_stats({"scale_inv_min": 0.5, "scale_inv_max": 0.5})["scale"] == 2.0
    assert "scale" not in our_stats({"scale_inv_min": 0.25, "scale_inv_max": 0.5})  # blocks
    assert "scale" not in our_stats({"scale_inv_min": 0.0003, "scale_inv_max": 0.0003})  # one digit only
    assert our_stats({"std": 3.0, "mean": 4.0})["rms"] == 5.0
    assert our_stats({"l2_norm": 10.0, "numel": 4.0})["rms"] == 5.0
    assert our_stats({"l2_norm": 20.0, "numel": 4.0, "mse": 0.1})["sqnr_db"] == pytest.approx(30.0)


def test_a_statistic_of_the_recipe_in_use_wins_over_a_named_one() -> None:
    got = our_stats({"mxfp8_underflows%": 7.0, "underflows%": 1.0})
    assert got == {"underflow_pct": 1.0, "mxfp8_underflows_pct": 7.0}
    assert our_stats({"mxfp8_underflows%": 7.0})["underflow_pct"] == 7.0


def test_tensors_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(log())
    run = read_one(tmp_path / "x.log")
    assert run.format == "te_debug"
    assert run.steps == [0, 10, 20]
    assert run.tensors[0, 10, "decoder.0.mlp.fc1/input", "amax"] == 3.5
    assert run.tensors[0, 10, "decoder.0.mlp.fc1/input", "scale"] == 16.0
    assert run.tensors[0, 20, "decoder.1.mlp.fc1/grad_output", "underflow_pct"] == 1.5
    assert (0, 10, "decoder.1.mlp.fc1/grad_output", "amax") not in run.tensors
    assert FOUR_DECIMALS in run.notes
    order = {t: v["call_order"] for t, v in run.run.tensors.items() if t.endswith("/grad_output")}
    assert order == {"decoder.0.mlp.fc1/grad_output": 0, "decoder.1.mlp.fc1/grad_output": 1}


def test_ranks_of_a_folder_are_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "nvdlfw_inspect_statistics_logs"
    folder.mkdir()
    for rank in (0, 1, 10):
        (folder / f"nvdlfw_inspect_globalrank-{rank}.log").write_text(log(1.0 + rank))
    run = read_one(tmp_path)
    assert run.ranks == {0, 1, 10}
    assert run.run.ranks == 3
    assert run.tensors[10, 0, "decoder.0.mlp.fc1/input", "amax"] == 38.5


def test_nan_stays_and_other_lines_are_counted(tmp_path: Path) -> None:
    text = log() + line("a_activation_cur_amax", 30, math.nan) + line("a_activation_mean", 30, math.inf)
    (tmp_path / "x.log").write_text(
        text + "hello\n" + "a_activation_std iteration=1 value=x\n" + "y" * 99_999
    )
    run = read_one(tmp_path / "x.log")
    assert math.isnan(run.tensors[0, 30, "a/input", "amax"])
    assert run.tensors[0, 30, "a/input", "mean"] == math.inf
    assert run.skipped == 3


def test_without_a_statistic_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(line("a_activation_std", 0, 0.0))
    with pytest.raises(UnreadableLog, match="no statistic of a tensor"):
        read_one(tmp_path / "x.log")


def test_statistics_logged_to_tensorboard_are_tensors_too(tmp_path: Path) -> None:
    steps = range(0, 30, 10)
    curves = {
        "l.0_activation_cur_amax": {s: 3e-6 for s in steps},
        "l.0_activation_scale_inv_min": dict.fromkeys(steps, 0.0625),
        "l.1_activation_cur_amax": {s: 4.0 for s in steps},
        "l.1_gradient_underflows%": {s: 1.5 for s in steps},
        "conv_weight_norm": {s: 9.0 for s in steps},
        "train/loss": {s: 2.0 for s in range(30)},
    }
    (tmp_path / "events.out.tfevents.1").write_bytes(events(curves))
    run = read_one(tmp_path / "events.out.tfevents.1")
    assert len(run.steps) == 30
    assert run.curves == {"loss": curves["train/loss"], "conv_weight_norm": curves["conv_weight_norm"]}
    assert run.tensors[0, 10, "l.0/input", "amax"] == pytest.approx(3e-6)
    assert run.tensors[0, 20, "l.0/input", "scale"] == 16.0
    assert run.tensors[0, 20, "l.1/grad_output", "underflow_pct"] == 1.5
    assert run.run.tensors["l.1/grad_output"] == {"call_order": 1}
