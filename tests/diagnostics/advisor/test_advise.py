"""What is advised on runs whose faults are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from floatscope_diagnostics.advisor.advice import FRAMEWORKS, Advice, Framework
from floatscope_diagnostics.advisor.advise import advise
from floatscope_diagnostics.advisor.gap import Gap, gap_of, gap_to_twins
from floatscope_diagnostics.advisor.limits import limits_with
from tests.diagnostics.advisor.made_runs import LAYERS, batches, rows, run_info

VANISH = {"underflow_pct": 60.0, "sqnr_db": 2.0}
REAL = Gap(0.5, 0.45, 0.55, (200, 299))


def advised(
    changes: Any = None, *, of: Any = None, recipe: str = "fp8_current_scaling", **how: Any
) -> Advice:
    made = rows(changes) if of is None else of
    return advise(run_info(recipe=recipe), batches(made), name="made", **how)


def codes(advice: Advice) -> set[str]:
    return {note.code for note in advice.not_decided}


def test_a_healthy_run_keeps_all_layers() -> None:
    advice = advised()
    assert advice.decision == "keep_fp8"
    assert advice.kept == len(LAYERS)
    assert advice.layers == ()
    assert advice.settings.floatscope_train == ""


def test_only_the_layer_with_the_problem_moves() -> None:
    advice = advised({"blocks.1.mlp.fc2/grad_output": VANISH})
    assert [one.layer for one in advice.layers] == ["blocks.1.mlp.fc2"]
    assert advice.layers[0].to == "bf16"
    assert {p.what for p in advice.problems} == {"underflow_pct", "sqnr_loss_db"}
    assert advice.kept == len(LAYERS) - 1
    assert advice.predicted.harm_removed_pct == pytest.approx(100.0)


def test_a_finer_scaling_that_is_enough_is_taken_before_bf16() -> None:
    """The values are Gaussian: with a scale of their own nothing would vanish. Each framework's settings say
    what that framework can give a single layer, whichever was asked about.
    """
    bad = {"blocks.0.attn.proj/grad_output": VANISH | {"scale": 1e-6}}
    how: dict[str, Any] = {"recipe": "fp8_delayed_scaling", "recipes": ("mxfp8", "bf16")}
    advice, own = advised(bad, framework="te", **how), advised(bad, framework="floatscope", **how)
    assert [(one.from_, one.to) for one in advice.layers] == [("delayed", "mxfp8")]
    assert advice.layers[0].predicted["underflow_pct"] < 1.0
    assert advice.predicted.flops_leaving_pct == 0.0
    assert [one.to for one in own.layers] == ["bf16"]
    assert any("mxfp8 would do" in why for why in own.layers[0].why)
    assert advice.settings == own.settings
    assert "MXFP8BlockScaling()" in own.settings.transformer_engine
    assert "=bf16" in own.settings.floatscope_train


def test_without_histograms_bf16_is_the_only_target_and_that_is_said() -> None:
    made = rows({"blocks.0.attn.proj/grad_output": VANISH}, histograms=False)
    advice = advised(of=made, recipe="fp8_delayed_scaling", framework="te")
    assert [one.to for one in advice.layers] == ["bf16"]
    assert "no_histograms" in codes(advice)


def test_a_cast_worse_than_rounding_is_not_mended_by_a_scale() -> None:
    bad = {"blocks.0.mlp.fc1/input": {"sqnr_db": 25.0}}
    advice = advised(bad, recipe="fp8_delayed_scaling", framework="te")
    assert [one.to for one in advice.layers] == ["bf16"]
    assert any("more than rounding to nearest" in why for why in advice.layers[0].why)


def test_more_harm_for_a_smaller_layer_comes_first() -> None:
    advice = advised(
        {"blocks.0.mlp.fc1/grad_output": VANISH, "blocks.1.attn.proj/grad_output": VANISH}
    )  # fc1 has 5.3 times the FLOPs of proj
    assert [one.layer for one in advice.layers] == ["blocks.1.attn.proj", "blocks.0.mlp.fc1"]


def test_at_most_so_many_layers() -> None:
    bad = {f"blocks.{b}.mlp.fc2/grad_output": VANISH for b in range(3)}
    advice = advised(bad, max_layers=2)
    assert len(advice.layers) == 2
    assert "max_layers" in codes(advice)


def test_a_level_that_is_set_counts() -> None:
    bad = {"blocks.0.mlp.fc1/input": {"underflow_pct": 4.0}}
    assert advised(bad).decision == "keep_fp8"
    strict = advised(bad, limits=limits_with({"input_underflow_pct": 2.0}))
    assert [one.layer for one in strict.layers] == ["blocks.0.mlp.fc1"]


def test_a_real_gap_adds_layers_until_it_should_close() -> None:
    """fc2 of block 0 is beyond its limits; the others are not, but hold most of the harm together."""
    noisy = {f"blocks.{b}.{p}/input": {"sqnr_db": 28.2} for b in range(3) for p in ("attn.qkv", "mlp.fc1")}
    bad = {"blocks.0.mlp.fc2/input": {"sqnr_db": 27.0}} | noisy
    alone, with_gap = advised(bad), advised(bad, gap=REAL)
    assert len(alone.layers) == 1
    assert len(with_gap.layers) > 1
    assert (with_gap.predicted.gap_closed_pct or 0) >= 80.0
    assert with_gap.predicted.gap_nats == 0.5


def test_a_gap_without_a_problem_is_no_reason_to_move_layers() -> None:
    advice = advised(gap=REAL)
    assert advice.layers == ()
    assert "gap_without_problem" in codes(advice)


def test_the_same_problem_everywhere_is_not_the_layers() -> None:
    stale = VANISH | {"scale": 1e-6}
    bad = {f"{layer}/{role}": stale for layer in LAYERS for role in ("input", "weight")}
    advice = advised(bad, recipe="fp8_delayed_scaling")
    assert advice.decision == "not_layers"
    assert "current" in advice.sentence
    assert advice.layers == ()
    assert advice.settings.floatscope_train == "--recipe current --margin 0\n"
    assert "Float8CurrentScaling" in advice.settings.transformer_engine
    assert "tensorwise" in advice.settings.megatron
    compile(advice.settings.torchao, "torchao", "exec")


@pytest.mark.parametrize(("framework", "expected"), [("torchao", "rowwise"), ("te", ""), ("megatron", "")])
def test_a_whole_run_gets_only_a_scaling_that_its_framework_has(framework: Framework, expected: str) -> None:
    bad = {f"{layer}/{role}": VANISH | {"scale": 1e-6} for layer in LAYERS for role in ("input", "weight")}
    made = [row | {"tensors": {n: t | {"row_amax_sd_log2": 0.3} for n, t in row["tensors"].items()}}
            for row in rows(bad)]  # fmt: skip
    of = run_info(recipe="fp8_delayed_scaling")
    info = replace(of, tensors={name: {**row, "row_length": 96} for name, row in of.tensors.items()})
    advice = advise(info, batches(made), name="made", framework=framework, recipes=("rowwise", "bf16"))
    assert advice.decision == "not_layers"
    assert (f"{expected} scaling is predicted" in advice.sentence) == bool(expected)


def test_bad_rounding_everywhere_is_the_cast() -> None:
    bad = {f"{layer}/{role}": {"sqnr_db": 25.0} for layer in LAYERS for role in ("input", "weight")}
    advice = advised(bad)
    assert advice.decision == "not_layers"
    assert "rounding" in advice.sentence
    assert advice.settings.floatscope_train.count("=bf16") == len(LAYERS)


def test_what_has_ended_does_not_count() -> None:
    made = rows({"blocks.1.mlp.fc2/grad_output": VANISH}, until=150)
    advice = advised(of=made)
    assert advice.decision == "keep_fp8"
    assert "passed" in codes(advice)


def test_one_bad_step_does_not_count() -> None:
    made = rows({"blocks.1.mlp.fc2/input": {"underflow_pct": 80.0}}, since=250, until=251)
    assert advised(of=made).decision == "keep_fp8"


def test_since_when() -> None:
    made = rows({"blocks.1.mlp.fc2/input": VANISH}, since=120)
    assert {p.since_step for p in advised(of=made).problems} == {120}


def test_a_noisy_step_long_before_is_not_since_when() -> None:
    made = rows({"blocks.1.mlp.fc2/input": VANISH}, since=220)
    made[15]["tensors"]["blocks.1.mlp.fc2/input"] |= VANISH
    assert {p.since_step for p in advised(of=made).problems} == {220}


def test_emulated_casts_have_no_price_without_a_gpu() -> None:
    bad = {"blocks.1.mlp.fc2/grad_output": VANISH}
    assert advised(bad).predicted.speed_cost_pct is None
    assert "emulated" in advised(bad).predicted.speed_from
    priced = advised(bad, gpu="H100 SXM").predicted
    assert priced.speed_cost_pct is not None
    assert "H100 SXM" in priced.speed_from


@pytest.mark.parametrize("cause", ["lr_divergence", "bad_batch", "op_kernel_fault"])
def test_another_cause_is_said(cause: str) -> None:
    finding = {"cause": cause, "severity": "critical", "state": "raised", "onset_step": 40, "tensor": None}
    advice = advised(verdict={"findings": [finding]})
    assert advice.decision == "not_layers"
    assert any("would not help" in note.sentence for note in advice.not_decided)


def test_a_standstill_behind_values_that_vanish_is_no_other_cause() -> None:
    finding = {"cause": "update_stagnation", "severity": "warning", "state": "raised", "onset_step": 120}
    bad = {"blocks.1.mlp.fc1/weight": {"underflow_pct": 99.0}}
    advice = advised(bad, verdict={"findings": [finding]})
    assert advice.decision == "move_layers"
    assert "may_follow" in codes(advice)
    assert "another cause" not in advice.sentence
    assert advised(verdict={"findings": [finding]}).decision == "not_layers", "alone it is the cause"


STATE = {"cause": "scale_state_fault", "severity": "critical", "state": "raised", "onset_step": 10}


def test_a_stale_scale_state_moves_no_layer() -> None:
    advice = advised({"blocks.1.mlp.fc2/grad_output": VANISH}, verdict={"findings": [STATE]})
    assert advice.decision == "not_layers"
    assert "Mend the state" in advice.sentence
    assert "scale_state" in codes(advice)
    assert advice.layers == ()
    assert advice.kept == len(LAYERS)
    assert not any(advice.settings.to_json().values()), "the recipe has the scales already"


def test_with_delayed_scaling_the_way_out_of_a_stale_state_is_current_scaling() -> None:
    bad = {"blocks.1.mlp.fc2/grad_output": VANISH | {"scale": 1e-6}}
    how: dict[str, Any] = {"recipe": "fp8_delayed_scaling", "verdict": {"findings": [STATE]}}
    advice = advised(bad, **how)
    assert (advice.decision, advice.layers) == ("not_layers", ())
    assert "--recipe current" in advice.settings.floatscope_train
    assert not advised(bad, recipes=("bf16",), **how).settings.floatscope_train


def test_a_scale_that_the_recipe_does_not_imply_is_the_state_without_a_word_of_the_diagnosis() -> None:
    """Current scaling would lose nothing of the values; the scale in use must lose all. Whatever the share of
    layers and the framework, none leaves FP8.
    """
    wrong = {"underflow_pct": 99.9, "sqnr_db": 0.0, "scale": 1e-7}
    for layers in (LAYERS[:3], LAYERS):
        bad = {f"{layer}/grad_output": wrong for layer in layers}
        for framework in FRAMEWORKS:
            advice = advised(bad, framework=framework)
            assert (advice.decision, advice.layers) == ("not_layers", ())
            assert "state of the scales" in advice.sentence
            assert not any(advice.settings.to_json().values())
            [proof] = [note.sentence for note in advice.not_decided if note.code == "scale_state"]
            assert "99.9 % of its values become zero" in proof
            assert "Current scaling, the recipe in use," in proof
    late = advised({f"{LAYERS[0]}/grad_output": wrong}, recipe="fp8_delayed_scaling")
    assert (late.decision, late.layers) == ("not_layers", ())
    assert "--recipe current" in late.settings.floatscope_train


def test_one_layer_whose_values_do_not_suit_the_recipe_is_no_proof_of_a_wrong_state() -> None:
    wrong = {"underflow_pct": 99.9, "sqnr_db": 0.0, "scale": 1e-7}
    bad = {f"{LAYERS[0]}/grad_output": wrong, f"{LAYERS[1]}/input": VANISH}
    advice = advised(bad)
    assert advice.decision == "move_layers"
    assert "scale_state" not in codes(advice)


def test_a_stale_state_beside_values_that_do_not_suit_the_format_moves_their_layers() -> None:
    made = rows({"blocks.1.mlp.fc2/input": VANISH})
    for row in made:
        if stats := row["tensors"]["blocks.1.mlp.fc2/input"].get("hist_log2"):
            row["tensors"]["blocks.1.mlp.fc2/input"] |= {
                "hist_log2": [*stats[24:], *[0] * 22, 9, 0],
                "amax": 2.0**22,
                "scale": 448.0 / 2**22,
            }
    advice = advised(of=made, verdict={"findings": [STATE]})
    assert advice.decision == "move_layers"
    assert [one.layer for one in advice.layers] == ["blocks.1.mlp.fc2"]
    assert "scale_state" in codes(advice)
    assert "mend that first" in advice.sentence


def test_the_smaller_the_gap_the_less_is_promised() -> None:
    bad = {"blocks.1.mlp.fc2/grad_output": VANISH}
    wide, small = (advised(bad, gap=Gap(n, 0.9 * n, 1.1 * n, (200, 299))).predicted for n in (0.6, 0.06))
    assert wide.gap_closed_low_pct == pytest.approx(87.0 - 6.5 / 0.6)
    assert wide.gap_closed_high_pct == pytest.approx(121.0 + 6.5 / 0.6)
    assert small.gap_closed_low_pct == 0.0
    assert small.gap_closed_high_pct == pytest.approx(121.0 + 6.5 / 0.06)


def test_nothing_can_be_said_of_a_run_without_fp8() -> None:
    info = run_info(recipe="bf16")
    plain = {name: {**row, "format": "bf16"} for name, row in info.tensors.items()}
    advice = advise(type(info)(name="b", recipe=info.recipe, tensors=plain), batches(rows()), name="b")
    assert advice.decision == "cannot_say"
    assert "no_fp8" in codes(advice)


def test_nothing_can_be_said_without_statistics() -> None:
    made = [{"step": step, "loss": 2.0} for step in range(50)]
    advice = advised(of=made)
    assert advice.decision == "cannot_say"
    assert "no_statistics" in codes(advice)


def test_nothing_can_be_said_of_amax_alone() -> None:
    made = rows()
    for row in made:
        row["tensors"] = {name: {"amax": 1.0} for name in row["tensors"]}
    assert "no_statistics" in codes(advised(of=made))


def test_too_short() -> None:
    advice = advised(of=rows(steps=range(0, 30, 10)))
    assert advice.decision == "cannot_say"
    assert "too_short" in codes(advice)


def test_rows_behind_the_first_nan_do_not_count() -> None:
    made = rows({"blocks.2.mlp.fc2/input": {"nan_count": 3.0, **VANISH}}, since=200)
    advice = advised(of=made)
    assert "nonfinite" in codes(advice)
    assert advice.steps == (0, 190)
    assert advice.decision == "keep_fp8"


def test_the_same_run_gives_the_same_advice() -> None:
    bad = {"blocks.1.mlp.fc2/grad_output": VANISH, "blocks.0.attn.qkv/input": VANISH}
    assert advised(bad).to_json() == advised(bad).to_json()


def test_a_gap_needs_twenty_steps_and_ignores_what_is_not_finite() -> None:
    step = np.arange(100)
    values = np.where(step % 2 == 0, 0.1, np.nan)
    assert gap_of(step[:30], values[:30]) is None
    gap = gap_of(step, values)
    assert gap is not None
    assert gap.nats == pytest.approx(0.1)
    assert gap.is_real


def test_twins_of_the_baseline_say_how_large_a_gap_must_be() -> None:
    """Far apart they leave no gap to close; close together they promise more than the benchmark's runs do."""
    bad = {"blocks.1.mlp.fc2/grad_output": VANISH}
    apart = gap_to_twins([Gap(n, n - 0.01, n + 0.01, (200, 299)) for n in (0.06, 0.16, 0.11)])
    close = gap_to_twins([Gap(n, n - 0.01, n + 0.01, (200, 299)) for n in (0.1175, 0.1177, 0.1173)])
    assert apart.nats == pytest.approx(0.11)
    assert apart.chance_nats == pytest.approx(4.3027 * 0.05 * (4 / 3) ** 0.5, rel=1e-3)
    assert not apart.is_real
    assert close.is_real
    assert "no_gap" in codes(advised(bad, gap=apart))
    assert advised(bad, gap=apart).predicted.gap_closed_pct is None
    low = advised(bad, gap=close).predicted.gap_closed_low_pct
    alone = advised(bad, gap=Gap(0.1175, 0.1, 0.13, (200, 299))).predicted.gap_closed_low_pct
    assert low is not None
    assert alone is not None
    assert low > alone + 40.0


def test_a_run_ahead_of_its_baseline_is_not_called_within_chance() -> None:
    [told] = [
        n.sentence for n in advised(gap=Gap(-0.1, -0.12, -0.08, (200, 299))).not_decided if n.code == "no_gap"
    ]
    assert "0.1000 nats better" in told


def test_a_gpu_that_cannot_run_a_recipe_does_not_get_it() -> None:
    """Where only 32 neighbours share a scale the values fit; a GPU without MXFP8 is left with BF16."""
    bad = {"blocks.0.attn.proj/grad_output": VANISH | {"scale": 1e-6}}
    how: dict[str, Any] = {"recipe": "fp8_delayed_scaling", "framework": "te", "recipes": ("mxfp8", "bf16")}
    free = advised(bad, **how)
    assert [one.to for one in free.layers] == ["mxfp8"]
    assert "hardware" in codes(free)
    assert [one.to for one in advised(bad, gpu="H100 SXM", **how).layers] == ["bf16"]
    assert [one.to for one in advised(bad, gpu="B200", **how).layers] == ["mxfp8"]


def test_what_only_the_diagnosis_sees_is_not_called_healthy() -> None:
    finding = {"cause": "quantization_drift", "severity": "warning", "state": "raised", "onset_step": 285}
    advice = advised(verdict={"findings": [finding]})
    assert advice.decision == "cannot_say"
    assert "step 285" in advice.sentence


def test_a_layer_that_saw_only_zeros_is_not_called_sound() -> None:
    made = rows({"blocks.1.mlp.fc1/weight": {"underflow_pct": 99.0}})
    for row in made:
        row["tensors"]["blocks.1.mlp.fc2/input"] = {"amax": 0.0, "underflow_pct": 0.0, "overflow_pct": 0.0}
    advice = advised(of=made)
    assert [one.layer for one in advice.layers] == ["blocks.1.mlp.fc1"]
    told = [note.sentence for note in advice.not_decided if note.code == "masked"]
    assert len(told) == 1
    assert "blocks.1.mlp.fc2" in told[0]


def test_clipping_in_a_few_steps_of_a_hundred_does_not_count() -> None:
    """As with delayed scaling in healthy runs."""
    made = rows()
    for row in made[3::8]:
        row["tensors"]["blocks.1.mlp.fc2/grad_output"] = {
            **row["tensors"]["blocks.1.mlp.fc2/grad_output"], "overflow_pct": 9.0, "sqnr_db": 5.0
        }  # fmt: skip
    assert advised(of=made).decision == "keep_fp8"


def test_the_start_of_a_run_does_not_count() -> None:
    made = rows({f"{layer}/grad_output": {"underflow_pct": 99.0} for layer in LAYERS}, until=20)
    advice = advised(of=made)
    assert advice.decision == "keep_fp8"
    assert "passed" not in codes(advice)
