"""Layers behind an amplified channel are moved with it, and only those."""

from __future__ import annotations

from typing import Any

from floatscope_diagnostics.advisor.advice import Advice
from floatscope_diagnostics.advisor.advise import advise
from tests.diagnostics.advisor.made_runs import batches, gaussian_counts, rows, run_info

FC1, FC2, QKV = "blocks.1.mlp.fc1", "blocks.1.mlp.fc2", "blocks.1.attn.qkv"
LOST = {"underflow_pct": 99.0, "amax": 2.0**15}
"""One row of the weight holds 2^15, a typical one 2^-4."""
AMPLIFIED = LOST | {"row_amax_mean_log2": -4.0}
ALL_ZERO = {"amax": 0.0, "underflow_pct": 0.0, "sqnr_db": float("nan"), "hist_log2": None}


def advised(changes: dict[str, dict[str, Any]], **how: Any) -> Advice:
    made = rows(changes)
    for row in made:
        for stats in row["tensors"].values():
            if stats.get("hist_log2", 0) is None:
                del stats["hist_log2"]
            elif row["step"] % 100 == 0:
                stats["hist_log2"] = gaussian_counts(2.0**-6)
            if stats["sqnr_db"] != stats["sqnr_db"]:
                del stats["sqnr_db"]
    return advise(run_info(), batches(made), name="made", **how)


def moved(advice: Advice) -> list[str]:
    return [one.layer for one in advice.layers]


def notes(advice: Advice) -> set[str]:
    return {note.code for note in advice.not_decided}


def test_what_an_amplified_row_hides_moves_in_the_same_round_after_its_root() -> None:
    advice = advised({f"{FC1}/weight": AMPLIFIED, f"{FC2}/input": ALL_ZERO})
    assert moved(advice) == [FC1, FC2]
    assert [one.to for one in advice.layers] == ["bf16", "bf16"]
    assert "masked" not in notes(advice)
    assert any("2^19 times a typical one" in why for why in advice.layers[0].why)
    assert any(FC1 in why and "99 %" in why for why in advice.layers[1].why)
    assert advice.layers[1].harm == advice.layers[0].harm
    assert "blocks.1.mlp.fc1=bf16,blocks.1.mlp.fc2=bf16" in advice.settings.floatscope_train


def test_zeros_behind_an_outlier_column_say_nothing_of_the_next_layer() -> None:
    """Every row of the weight holds one: no channel of the product stands out once the weight is mended."""
    advice = advised({f"{FC1}/weight": LOST | {"row_amax_mean_log2": 13.0}, f"{FC2}/input": ALL_ZERO})
    assert moved(advice) == [FC1]
    assert "masked" in notes(advice)


def test_zeros_behind_a_scale_that_is_wrong_say_nothing_of_the_next_layer() -> None:
    advice = advised({f"{FC1}/input": {"underflow_pct": 99.0}, f"{FC2}/input": ALL_ZERO})
    assert moved(advice) == [FC1]
    assert "masked" in notes(advice)


def test_a_reader_that_sees_values_is_judged_by_them() -> None:
    assert moved(advised({f"{FC1}/weight": AMPLIFIED})) == [FC1]


def test_only_the_amplified_channel_passing_is_hidden_too() -> None:
    """Without a gate the one large channel gets through, and the rest are exact zeros."""
    advice = advised({f"{FC1}/weight": AMPLIFIED, f"{FC2}/input": {"zero_pct": 98.5}})
    assert moved(advice) == [FC1, FC2]


def test_the_reader_is_of_the_same_module() -> None:
    advice = advised({f"{QKV}/weight": AMPLIFIED, f"{FC1}/input": ALL_ZERO})
    assert moved(advice) == [QKV]


def test_with_one_layer_allowed_it_is_the_root() -> None:
    advice = advised({f"{FC1}/weight": AMPLIFIED, f"{FC2}/input": ALL_ZERO}, max_layers=1)
    assert moved(advice) == [FC1]
    assert {"max_layers", "masked"} <= notes(advice)
