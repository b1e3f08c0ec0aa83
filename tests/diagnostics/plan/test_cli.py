"""The command: what it prints, what it refuses and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floatscope_diagnostics.plan.cli import main

PLAN = ["--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", "--sequence", "8192"]


def test_the_answer_comes_first_and_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--recompute", "selective", "--price", "2.5", "--tokens", "1T"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[3].startswith("✓ FP8 pays. Fastest: FP8 delayed scaling")
    for words in (
        "30 % more throughput is 23.1 % less cost",
        "FP8 compute does not save memory by default",
        "Not planned: MXFP8",
        "Leave in BF16 with torchao rowwise: k_proj, v_proj",
        "NCCL buffers",
    ):
        assert words in " ".join(out.split())


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--json", "--price", "2", "--recipe", "ao_tensorwise", "--recipe", "bf16"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "floatscope.plan/1"
    assert [one["recipe"] for one in document["recipes"]] == ["bf16", "ao_tensorwise"]
    bf16, low = document["recipes"]
    assert bf16["pays"] is None
    assert low["cost_per_million_tokens"]["value"] < bf16["cost_per_million_tokens"]["value"]
    assert sum(part["bytes"] for part in bf16["memory"]["parts"]) == bf16["memory"]["estimate_bytes"]
    assert low["run_hours"] is None


def test_a_configuration_of_hugging_face_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert main(["--model", str(path), "--gpu", "L40S", "--sequence", "4096"]) == 0
    assert "sequence 4096 is above the 2048 tokens" in capsys.readouterr().out


def test_what_does_not_fit_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama-3-70b", "--gpu", "H100", "--gpus", "8"]) == 1
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "✓" not in out


def test_an_unverified_gpu_and_family_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama-3.2-1b", "--gpu", "RTX PRO 6000 Blackwell"]) == 0
    out = capsys.readouterr().out
    assert out.count("NOT VERIFIED") == 2
    assert "+-50%" in out


def test_check_prints_both_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    out = capsys.readouterr().out
    assert "SETS step share of Hopper" in out
    assert "SUMMARY (cases that set nothing)" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "H1000"], "near names: H100"),
        (["--gpus", "10", "--tp", "4"], "10 GPUs are not divisible by tp 4"),
        (["--gpus", "8", "--dp", "4"], "leave 8"),
        (["--gpus", "0"], "--gpus: expected 1"),
        (["--gpus", "99999999999999"], "--gpus: expected 1"),
        (["--tp", "0"], "tensor parallelism: expected 1 or more"),
        (["--tp", "8", "--pp", "-1"], "pipeline parallelism: expected 1 or more"),
        (["--gpus", "3", "--tp", "3"], "does not divide"),
        (["--gpus", "64", "--pp", "64"], "only 32 layers"),
        (["--ep", "2"], "no experts"),
        (["--micro-batch", "0"], "--micro-batch"),
        (["--micro-batch", "-4"], "--micro-batch"),
        (["--sequence", "0"], "--sequence"),
        (["--accumulate", "0"], "--accumulate"),
        (["--global-batch", "9"], "a multiple of"),
        (["--price", "-1"], "--price"),
        (["--price", "nan"], "--price"),
        (["--tokens", "0"], "--tokens"),
        (["--tokens", "many"], "300B"),
        (["--bf16-step-time", "inf"], "--bf16-step-time"),
        (["--bf16-step-time", "0.01"], "32,768 tokens takes 0.2 s (MFU would be above 100 %)"),
        (["--linear-share", "1.5"], "--linear-share"),
        (["--expert-overlap", "nan"], "--expert-overlap"),
        (["--expert-overlap", "1.5"], "--expert-overlap"),
        (["--tp-overlap", "-0.1"], "--tp-overlap: expected a share from 0 to 1"),
        (["--vp", "2"], "--vp 2: expected 1"),
        (["--vp", "-1"], "--vp -1"),
        (["--pp", "8", "--vp", "5"], "--pp 8 x --vp 5: the model has only 32 layers"),
        (["--link-gb-s", "nan"], "expected a number above 0"),
        (["--recipe", "mxfp8"], "cannot run it: needs compute capability 10.x"),
        (["--recipe", "fp9"], "no recipe 'fp9'; known: bf16"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--model", "/etc"], "/etc"),
    ],
)
def test_bad_input_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = [] if "--gpus" in words else ["--gpus", "8"]
    assert main(["--model", "llama-3-8b", "--gpu", "H100", *base, *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_a_measured_step_just_below_the_peak_is_taken() -> None:
    """(6 x 7.505e9 + 6 x 32 x 4096 x 4096 of attention) x 32,768 tokens / (8 x 989e12): 0.1998 s."""
    words = ["--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", "--json", "--bf16-step-time"]
    assert main([*words, "0.201"]) == 0
    assert main([*words, "0.199"]) == 2


def test_without_model_or_gpu_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--model and --gpu" in capsys.readouterr().err


def test_recipes_are_named_as_in_preflight(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3-8b", "--gpu", "H100", "--gpus", "8", "--recipe", "delayed"]
    assert main([*words, "--recipe", "Row-wise".replace("-", ""), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["recipe"] for one in found["recipes"]] == ["bf16", "fp8_delayed_scaling", "ao_rowwise"]


def test_a_mixture_has_an_interval_as_wide_as_published_ones_spread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--model", "qwen3-30b-a3b", "--gpu", "H100", "--gpus", "16", "--ep", "8", "--stack", "megatron"]
    assert main([*words, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["recipes"][0]["step_time_s"]
    assert step["low"] == pytest.approx(0.5 * step["value"])
    assert step["high"] == pytest.approx(2.9 * step["value"])
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "step -50% to +190%" in said
    assert "hides 100% of the traffic to experts" in said
    assert "NOT VERIFIED (share set by one published run" in said
    assert "Small experts: published steps take up to 2.8 times" in said


def test_a_mixture_of_large_products_has_the_narrower_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """Four sequences make four times the tokens of an expert: as in the published run that was predicted."""
    words = ["--model", "qwen3-30b-a3b", "--gpu", "GB200", "--gpus", "8", "--ep", "8", "--stack", "megatron"]
    assert main([*words, "--micro-batch", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "+-50%" in said
    assert "Small experts" not in said


@pytest.mark.parametrize(("gpu", "guess"), [("L40S", 1), ("RTX PRO 6000", 1), ("MI355X", 1), ("H100", 0)])
def test_a_family_without_a_published_run_says_so(
    gpu: str, guess: int, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--model", "llama-3.2-1b", "--gpu", gpu])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("no published run of this family: the intervals are a guess") == guess
    assert main(["--model", "llama-3.2-1b", "--gpu", gpu, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["rates"]["family_has_runs"] is (not guess)


def test_four_bits_are_not_praised_without_their_loss_gap(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "llama-3-8b", "--gpu", "B200", "--gpus", "8", "--sequence", "8192", "--recipe"]
    assert main([*words, "nvfp4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 bits pay. Fastest: NVFP4" in said
    assert "loss gap reported for 4 bits is 1 to 1.5 %" in said
    assert main([*words, "mxfp8"]) == 0
    assert "That is speed alone: docs/fp8 says which recipe suits" in " ".join(
        capsys.readouterr().out.split()
    )
