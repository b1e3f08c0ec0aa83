"""What is advised where the log holds no histograms: what cannot be predicted is not called too little, and
amax and scale alone prove a wrong scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floatscope_diagnostics.advisor.advice import Advice
from floatscope_diagnostics.advisor.advise import advise
from tests.diagnostics.advisor.made_runs import LAYERS, batches, rows, run_info

AMAX = 4.0
MAX = {"input": 448.0, "grad_output": 57344.0}
VANISH = {"underflow_pct": 60.0, "sqnr_db": 2.0}
CLIP = {"overflow_pct": 20.0, "sqnr_db": 2.0}
LAYER = "blocks.1.mlp.fc2"


def advised(
    changes: Any, *, recipe: str = "fp8_delayed_scaling", of: Any = None, given: Any = None, **how: Any
) -> Advice:
    info = run_info(recipe=recipe)
    info = replace(info, recipe={**info.recipe, **(given or {})})
    made = rows(changes, histograms=False) if of is None else of
    return advise(info, batches(made), name="made", **how)


def with_headroom(bits: float, role: str = "grad_output", **stats: float) -> dict[str, float]:
    return {"amax": AMAX, "scale": MAX[role] / AMAX / 2.0**bits, **(stats or VANISH)}


def test_what_could_not_be_predicted_is_not_called_too_little() -> None:
    advice = advised({f"{LAYER}/grad_output": VANISH}, framework="te")
    [one] = advice.layers
    assert (one.to, one.not_judged) == ("bf16", ("current", "rowwise", "block", "mxfp8"))
    assert one.to_json()["not_judged"] == list(one.not_judged)
    assert not any("not enough" in why for why in one.why)
    [why] = [why for why in one.why if "cannot be said" in why]
    assert "current, rowwise, block, mxfp8" in why
    assert "has no histogram" in why
    assert "could not be judged" in advice.sentence
    [note] = [note.sentence for note in advice.not_decided if note.code == "no_histograms"]
    assert "hist_log2" in note
    assert "stats_every" in note


@pytest.mark.parametrize("recipe", ["fp8_delayed_scaling", "fp8_current_scaling"])
@pytest.mark.parametrize(("role", "bits"), [("grad_output", 32.0), ("input", 17.0)])
def test_headroom_that_no_recipe_explains_is_the_state(recipe: str, role: str, bits: float) -> None:
    advice = advised({f"{LAYER}/{role}": with_headroom(bits, role)}, recipe=recipe)
    assert (advice.decision, advice.layers) == ("not_layers", ())
    assert "state of the scales is at fault" in advice.sentence
    assert "by amax and scale" in advice.sentence
    [proof] = [note.sentence for note in advice.not_decided if note.code == "scale_state"]
    assert f"{bits:.0f} bits of headroom" in proof
    assert "cannot be said without histograms" in proof
    assert ("--recipe current" in advice.settings.floatscope_train) == (recipe == "fp8_delayed_scaling")


def test_a_scale_that_clips_in_most_steps_is_the_state() -> None:
    advice = advised({f"{LAYER}/input": with_headroom(-4.0, "input", **CLIP)})
    assert advice.decision == "not_layers"
    [proof] = [note.sentence for note in advice.not_decided if note.code == "scale_state"]
    assert "2^4 times the largest value of the format (448" in proof


@pytest.mark.parametrize(
    ("role", "bits", "stats", "given"),
    [
        ("input", 9.0, VANISH, {}),  # costs nothing in E4M3
        ("grad_output", 20.0, VANISH, {}),  # nor this in E5M2
        ("input", 17.0, VANISH, {"margin": 17}),  # the margin says so
        ("input", -0.5, CLIP, {}),
        ("input", -4.0, VANISH, {}),  # clipping does not make values vanish
        ("input", 17.0, CLIP, {}),  # nor headroom make them clip
    ],
)
def test_headroom_that_does_not_explain_the_problem_proves_nothing(
    role: str, bits: float, stats: Any, given: Any
) -> None:
    bad = {f"{LAYER}/{role}": {**with_headroom(bits, role), **stats}}
    if stats is CLIP:
        bad[f"{LAYER}/{role}"]["underflow_pct"] = 0.0
    else:
        bad[f"{LAYER}/{role}"]["overflow_pct"] = 0.0
    advice = advised(bad, given=given)
    assert advice.decision == "move_layers"
    assert "scale_state" not in {note.code for note in advice.not_decided}


def test_a_larger_amax_in_the_history_explains_headroom() -> None:
    made = rows({f"{LAYER}/input": with_headroom(17.0, "input")}, histograms=False)
    for row in made[::3]:
        row["tensors"][f"{LAYER}/input"]["amax"] = AMAX * 2.0**17
    assert advised(None, of=made, given={"amax_history_len": 1024}).decision == "move_layers"
    assert advised(None, of=made, given={"amax_history_len": 5}).decision == "not_layers"


def test_one_problem_that_the_scale_does_not_explain_leaves_the_layers() -> None:
    bad = {f"{LAYER}/input": with_headroom(17.0, "input"), f"{LAYERS[0]}/input": VANISH}
    assert advised(bad).decision == "move_layers"


def test_where_all_layers_are_hit_the_state_goes_before_the_recipe() -> None:
    advice = advised({f"{layer}/input": with_headroom(17.0, "input") for layer in LAYERS})
    assert advice.decision == "not_layers"
    assert "state of the scales" in advice.sentence
    assert "--recipe current" in advice.settings.floatscope_train


def test_where_all_layers_have_a_problem_other_recipes_are_left_open() -> None:
    bad = {f"{layer}/input": with_headroom(17.0, "input") for layer in LAYERS}
    advice = advised(bad, given={"margin": 17}, framework="floatscope")
    assert "Whether current or block or mxfp8 scaling would be enough cannot be said" in advice.sentence


@pytest.mark.parametrize("given", [{"margin": "x", "amax_history_len": -1}, {"margin": float("nan")},
                                   {"margin": 10**300, "amax_history_len": 10**400}])  # fmt: skip
def test_an_odd_description_of_the_recipe_breaks_nothing(given: Any) -> None:
    advice = advised({f"{LAYER}/input": with_headroom(17.0, "input")}, given=given)
    assert advice.decision in ("not_layers", "move_layers")


def test_without_amax_or_scale_nothing_is_proven() -> None:
    for stat in ("amax", "scale"):
        made = rows({f"{LAYER}/input": with_headroom(17.0, "input")}, histograms=False)
        for row in made:
            del row["tensors"][f"{LAYER}/input"][stat]
        assert advised(None, of=made).decision == "move_layers"


def test_healthy_runs_stay() -> None:
    for recipe in ("fp8_delayed_scaling", "fp8_current_scaling"):
        assert advised(None, recipe=recipe).decision == "keep_fp8"
