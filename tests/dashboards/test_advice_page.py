"""The page of precision advice in each of its states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floatscope_dashboards.advice_page import advice_page, settings_of
from floatscope_dashboards.advice_view import AdviceView
from floatscope_dashboards.advice_words import banner, figures, layer_lines, problem_lines
from floatscope_dashboards.tensor_view import TensorRun
from floatscope_diagnostics.advisor.advice import (
    Advice,
    Gain,
    LayerAdvice,
    NotDecided,
    Problem,
    Settings,
    Window,
)
from floatscope_diagnostics.advisor.limits import default_limits
from tests.dashboards.sample import HOSTILE, NOW
from tests.dashboards.showing import Shown

LAYER = "blocks.1.mlp.fc2"
MOVES = Advice(
    "r", (10, 400), "te", "move_layers", "1 layer of 12 should leave FP8.", default_limits(),
    problems=(Problem(LAYER, "input", f"{LAYER}/input", "underflow_pct", 31.25, 10.0, "%", 120, 400,
                      Window(250, 349, 80)),),
    layers=(LayerAdvice(LAYER, "delayed", "bf16", ("31.3 % become zero",), 0.5, 8.3, {"sqnr_db": 55.0}),),
    kept=11,
    predicted=Gain(
        harm_removed_pct=96.0, gap_nats=0.04, gap_closed_pct=91.0, gap_closed_low_pct=70.0,
        gap_closed_high_pct=100.0, flops_leaving_pct=8.3, speed_cost_pct=-2.5, speed_from="roofline",
    ),
    settings=Settings(transformer_engine="te = 1", floatscope_train="--precision-map x=bf16"),
    always="Embedding stays in BF16.", experiment="Train 200 steps.",
    not_decided=(NotDecided("no_shapes", "Shapes are not known."),),
)  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


def view(advice: Advice = MOVES, **more: Any) -> AdviceView:
    run = TensorRun("r", "fp8-run", "p", "finished", 0, 400, 60.0)
    return replace(AdviceView(run, advice.to_json(), steps_read=300, steps_logged=300), **more)


def test_what_to_do_comes_first_with_gain_and_cost(shown: Shown) -> None:
    told = banner(view(), shown.say)
    assert (told.word, told.title) == ("Change layers", "Change the precision of 1 layer of 12")
    assert [(item.label, item.value) for item in figures(view(), shown.say)] == [
        ("Gap to the baseline that should close", "91\u202f%"),
        ("Damage removed", "96\u202f%"),
        ("Leaves FP8", "8.3\u202f%"),
        ("Shorter matrix products", "2.5\u202f%"),
    ]
    assert figures(view(), shown.say)[0].note == "of 0.0400 nats, 70 to 100\u202f%"
    (layer,) = layer_lines(view(), shown.say)
    assert (layer.before, layer.after) == ("FP8, delayed scaling", "BF16")
    assert layer.predicted == "55.0 dB signal to noise"
    (problem,) = problem_lines(view(), shown.say)
    assert (problem.value, problem.limit, problem.since) == ("31.25\u202f%", "10\u202f%", 120)
    assert problem.window == "80 rows, 250 to 349"
    assert (problem.href[-7:], problem.since_href[-7:]) == ("?at=349", "?at=120")
    assert [item.framework for item in settings_of(MOVES.to_json())] == [
        "Transformer Engine",
        "floatscope train",
    ]
    html = shown.page(advice_page(view(baseline="b", baseline_name="bf16"), shown.say), now=NOW)
    for text in ("te = 1", 'data-copy="#setting-1"', "Train 200 steps.", "Shapes are not known.", "bf16</a>"):
        assert text in html
    assert (
        html.index("Change the precision") < html.index("Layers to change") < html.index("Settings to paste")
    )


@pytest.mark.parametrize(
    ("decision", "title"),
    [
        ("keep_fp8", "Keep every layer as it is"),
        ("not_layers", "Other precision in some layers would not help"),
        ("cannot_say", "No advice can be given for this run yet"),
    ],
)
def test_other_decisions_claim_no_gain(decision: Any, title: str, shown: Shown) -> None:
    quiet = replace(MOVES, decision=decision, layers=(), settings=Settings(), problems=())
    assert banner(view(quiet), shown.say).title.startswith(title)
    assert figures(view(quiet), shown.say) == ()
    html = shown.page(advice_page(view(quiet), shown.say), now=NOW)
    assert "Settings to paste" not in html
    assert "Embedding stays in BF16." in html


def test_a_cause_that_no_layer_mends_stands_in_the_banner(shown: Shown) -> None:
    cause = NotDecided("cause_input", "Invalid input: validate the batches.")
    html = shown.page(
        advice_page(view(replace(MOVES, not_decided=(*MOVES.not_decided, cause))), shown.say), now=NOW
    )
    assert html.count(cause.sentence) == 1
    assert html.index(cause.sentence) < html.index("Layers to change") < html.index("Shapes are not known.")


def test_what_is_stated_does_not_stand_among_what_could_not_be_decided(shown: Shown) -> None:
    same = NotDecided("everywhere", MOVES.sentence)
    told = (*MOVES.not_decided, NotDecided("no_gap", "There is no gap."), same)
    html = shown.page(advice_page(view(replace(MOVES, not_decided=told)), shown.say), now=NOW)
    assert (
        html.index("Seen besides") < html.index("There is no gap.") < html.index("What could not be decided")
    )
    assert html.index("What could not be decided") < html.index("Shapes are not known.")
    assert html.count(MOVES.sentence) == 1
    assert "the list above is for Transformer Engine." in html
    assert "<b>Transformer Engine</b>" in html
    assert 'href="/runs/r/advice?framework=torchao">torchao</a>' in html
    assert "?framework=" not in shown.page(advice_page(view(replace(MOVES, layers=())), shown.say), now=NOW)


def test_a_gpu_is_chosen_kept_and_never_ignored_in_silence(shown: Shown) -> None:
    def page(**more: Any) -> str:
        return shown.page(advice_page(view(gpus=("H100 SXM", "L4"), **more), shown.say), now=NOW)

    none = page()
    assert '<option value="">Not named (H100 SXM for the price)</option><option>H100 SXM</option>' in none
    chosen = page(gpu="L4", framework="te")
    assert "<option selected>L4</option>" in chosen
    assert '<input type="hidden" name="framework" value="te">' in chosen
    assert 'href="/runs/r/advice?framework=torchao&amp;gpu=L4"' in chosen
    assert "<option selected>A100 80GB</option>" in page(gpu="A100 80GB"), "known, though it has no FP8"
    assert "No GPU called &lt;b&gt; is known" in page(unknown_gpu="<b>")
    quiet = view(replace(MOVES, layers=(), problems=()), gpus=("L4",))
    assert 'id="gpu"' not in shown.page(advice_page(quiet, shown.say), now=NOW)


def test_a_problem_of_an_older_document_names_no_window(shown: Shown) -> None:
    old = replace(MOVES, problems=(replace(MOVES.problems[0], window=None),))
    (problem,) = problem_lines(view(old), shown.say)
    assert (problem.window, problem.href[-7:]) == ("", "?at=120")


def test_names_stay_names_and_long_lists_fold(shown: Shown) -> None:
    many = tuple(replace(MOVES.layers[0], layer=f"{HOSTILE}.{n}", why=(HOSTILE,)) for n in range(20))
    bad = replace(MOVES, layers=many, sentence=HOSTILE, settings=Settings(torchao=HOSTILE))
    html = shown.page(advice_page(view(bad, corrected=(HOSTILE,)), shown.say), now=NOW)
    assert "<script>window" not in html
    assert "<img" not in html
    assert "8 more" in html
    some = shown.page(advice_page(view(steps_read=10), shown.say), now=NOW)
    assert "Of 300 steps with statistics 10 were read" in some
    odd = AdviceView(view().run, {"layers": "x", "problems": [3], "predicted": None, "settings": []})
    assert "No advice" in shown.page(
        advice_page(replace(odd, document={**odd.document, "not_decided": [{}]}), shown.say), now=NOW
    )
