"""Preflight's text: worst first, quiet about what passes, within 100 columns, and harmless on a terminal."""

from __future__ import annotations

from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.report import WIDTH, report
from floatscope.preflight.summary import layers_words, sentence
from tests.agent.preflight.made import check, preflight

CHECKS = (
    check("software.torch", "pass"),
    check("env.typo", "warn", "environment", do="unset NVTE_FP8_DPA_BDW " * 12),
    check("recipe.mxfp8", "fail", "recipe", do="take another recipe"),
    check("gpu.xid", "unknown", "gpu"),
    check("checkpoint.extra", "not_applicable", "checkpoint"),
)
LAYERS = (
    {"name": "layers.*.qkv", "count": 32, "k": 4096, "n": 6144, "tokens": 8192, "in_fp8": True,
     "why_not": "", "flops_share_pct": 60.0},
    {"name": "lm_head", "count": 1, "k": 4096, "n": 50257, "tokens": 8192, "in_fp8": False,
     "why_not": "N 50257 is no multiple of 16: pad to 50272", "flops_share_pct": 40.0},
)  # fmt: skip


def test_the_sentence_says_what_was_decided_and_counts() -> None:
    good = preflight([check("a", "pass")] * 23)
    assert sentence(good) == "FP8 delayed scaling can train here: 23 pass."
    assert "cannot train here as it is (recipe.mxfp8): 1 pass, 1 warn, 1 fail" in sentence(preflight(CHECKS))
    nothing = preflight([check("a", "pass")], facts=Facts(), wanted=Wanted())
    assert sentence(nothing) == "Whether FP8 can train here is not known (no GPU was seen): 1 pass."


def test_the_worst_comes_first_and_what_passes_only_when_asked() -> None:
    text = report(preflight(CHECKS))
    at = [text.index(f"\n{area}") for area in ("Recipe", "Environment", "GPU")]
    assert at == sorted(at)
    assert "software.torch" not in text
    assert "do   take another recipe" in text
    assert "why  why gpu.xid" in text
    assert "Nothing to say about: Software 1, Checkpoint 1" in text
    everything = report(preflight(CHECKS), verbose=True)
    assert "pass     software.torch: software.torch was read" in everything
    assert max(map(len, everything.splitlines())) <= WIDTH


def test_layers_recipes_and_the_smoke_gemm_have_their_tables() -> None:
    speed = {"tflops": 1400.0, "share_of_peak_pct": 70.6}
    gemm = (
        {"format": "e4m3", "relative_error": 0.0372, "expected": 0.0372, "status": "pass", **speed},
        {"format": "nvfp4", "relative_error": None, "status": "unknown"},
    )
    recipes = {"mxfp8": ("fail", "needs 10.x"), "nvfp4": ("fail", "needs 10.x"), "custom": ("unknown", "")}
    text = report(preflight([], layers=LAYERS, gemm=gemm, recipes=recipes))
    assert "32 of 33 linear layers in FP8, 60.0 % of the GEMM FLOPs" in text
    assert "40.0 %  no\n      N 50257 is no multiple of 16: pad to 50272\n" in text
    assert "  fail     MXFP8, NVFP4\n           why  needs 10.x\n" in text
    assert "0.0372, expected 0.0372, 1400 TFLOP/s, 71 % of dense peak" in text
    assert "not known, expected not known" in text
    assert layers_words(()) == ""


def test_what_several_checks_ask_for_is_said_once() -> None:
    alike = [check(name, "unknown", do="look on the machine that trains") for name in "abc"]
    text = report(preflight([*alike, check("d", "unknown", do="something else")]))
    assert text.count("look on the machine that trains") == 1
    assert text.count("do   as the next one") == 2
    assert text.count("something else") == 1


def test_names_from_outside_cannot_act_on_the_terminal() -> None:
    text = report(preflight([check("a", "warn", read="\x1b[31mred\x07 \u202eback\nline")]))
    assert not set("\x1b\x07\u202e") & set(text)
