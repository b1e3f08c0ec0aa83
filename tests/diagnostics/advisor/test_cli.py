"""``floatscope advise`` from the outside: texts, documents, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.advisor.cli import main
from tests.diagnostics.advisor.made_runs import rows, run_info, write_log

VANISH = {"blocks.1.mlp.fc2/grad_output": {"underflow_pct": 60.0, "sqnr_db": 2.0}}


@pytest.fixture
def bad(tmp_path: Path) -> str:
    return str(write_log(tmp_path / "fp8.jsonl", rows(VANISH, loss=2.5), run_info()))


@pytest.fixture
def good(tmp_path: Path) -> str:
    return str(write_log(tmp_path / "good.jsonl", rows(), run_info()))


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = capsys.readouterr()
    assert found.err == ""
    read: dict[str, Any] = json.loads(found.out)
    return read


def test_one_document_and_nothing_else(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([bad, "--json"]) == 1
    made = document(capsys)
    assert made["schema"] == "floatscope.advice/1"
    assert made["steps"] == [0, 290]
    assert [one["layer"] for one in made["layers"]] == ["blocks.1.mlp.fc2"]
    assert made["layers"][0]["from"] == "current"
    assert made["kept"] == 11
    assert set(made["settings"]) == {"transformer_engine", "torchao", "megatron", "floatscope_train"}
    assert made["settings"]["floatscope_train"] == "--precision-map blocks.1.mlp.fc2=bf16\n"


def test_the_window_of_every_figure_is_said(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A row every ten steps; the start does not count, and of the nine rows left the worst one neither."""
    assert main([bad, "--json"]) == 1
    for problem in document(capsys)["problems"]:
        assert problem["window"] == {"first_step": 20, "last_step": 100, "rows": 8}
    assert main([bad]) == 1
    assert "the mean over the worst 100 steps" in " ".join(capsys.readouterr().out.split())


def test_a_healthy_run_exits_with_0(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good]) == 0
    assert "Keep all 12 layers in FP8" in capsys.readouterr().out


@pytest.mark.parametrize("framework", ["te", "torchao", "megatron", "floatscope", "all"])
def test_settings_of_each_framework_are_shown(
    bad: str, framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([bad, "--framework", framework]) == 1
    out = capsys.readouterr().out
    marks = {
        "te": "te.autocast",
        "torchao": "module_filter_fn",
        "megatron": "--te-precision-config-file",
        "floatscope": "--precision-map",
    }
    for name, mark in marks.items():
        assert (mark in out) is (framework in (name, "all"))


def test_a_baseline_gives_the_gap(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rows(steps=range(0, 300, 2))
    for row in made:
        row["loss"] = 2.0 + 0.001 * (row["step"] % 7)
    own = [{**row, "loss": row["loss"] + 0.3 + 0.001 * (row["step"] % 3)} for row in made]
    for row in own:
        row["tensors"] = {name: {**stats, **VANISH.get(name, {})} for name, stats in row["tensors"].items()}
    run = str(write_log(tmp_path / "own.jsonl", own, run_info()))
    base = str(write_log(tmp_path / "base.jsonl", made, run_info()))
    assert main([run, "--baseline", base, "--json"]) == 1
    predicted = document(capsys)["predicted"]
    assert predicted["gap_nats"] == pytest.approx(0.301, abs=0.002)
    assert predicted["gap_low_nats"] <= predicted["gap_nats"] <= predicted["gap_high_nats"]
    assert predicted["gap_closed_pct"] == pytest.approx(100.0)
    assert predicted["gap_steps"] == [226, 298], "the last 37 of 150 rows, two steps apart"


def test_twins_are_baselines_that_are_named_besides(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def base(name: str, off: float) -> str:
        made = [{**row, "loss": 2.3 + off} for row in rows(VANISH)]
        return str(write_log(tmp_path / name, made, run_info()))

    names = [base("b.jsonl", 0.0), base("twin.jsonl", 0.002), base("third.jsonl", -0.002)]
    assert main([bad, *(word for name in names for word in ("--baseline", name)), "--json"]) == 1
    predicted = document(capsys)["predicted"]
    assert predicted["gap_nats"] == pytest.approx(0.2)
    assert predicted["gap_chance_nats"] == pytest.approx(0.002 * 4.3027 * (4 / 3) ** 0.5, rel=1e-3)
    assert main([bad, "--baseline", names[0], "--baseline", str(tmp_path / "no.jsonl")]) == 2
    assert "no.jsonl: no such file" in capsys.readouterr().err


def test_baselines_that_are_no_twins_are_refused(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [{**row, "loss": 2.3} for row in rows(VANISH)]
    base = str(write_log(tmp_path / "b.jsonl", made, run_info()))
    short = [{**row, "loss": 2.301} for row in made[:-5]]
    half = str(write_log(tmp_path / "half.jsonl", short, run_info()))
    for other, told in ((base, "to the last bit"), (half, "over the same steps")):
        assert main([bad, "--baseline", base, "--baseline", other]) == 2
        assert told in capsys.readouterr().err


def test_a_reference_loss_of_the_run_itself_gives_the_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [{**row, "ref_loss": row["loss"] - 0.2} for row in rows(VANISH)]
    log = write_log(tmp_path / "own.jsonl", made, run_info())
    assert main([str(log), "--json"]) == 1
    assert document(capsys)["predicted"]["gap_nats"] == pytest.approx(0.2)


def test_bad_input_is_said_in_one_line(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = rows(steps=range(1000, 1300, 10))
    apart = str(write_log(tmp_path / "apart.jsonl", other, run_info()))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for words, told in (
        ([str(tmp_path / "no.jsonl")], "no such file"),
        ([str(empty)], "empty"),
        ([bad, "--baseline", apart], "share no stretch of steps"),
        ([bad, "--level", "underflow=3"], "there is no limit"),
        ([bad, "--level", "overflow_pct"], "NAME=NUMBER"),
        ([bad, "--level", "overflow_pct=nan"], "0 to 100"),
        ([bad, "--level", "overflow_pct=lots"], "not a number"),
        ([bad, "--recipes", "fp4"], "recipes are"),
        ([bad, "--recipes", ","], "empty"),
        ([bad, "--gpu", "Voodoo 2"], "--gpu"),
        (["-", "--baseline", "-"], "standard input"),
    ):
        assert main(words) == 2
        found = capsys.readouterr()
        assert found.out == ""
        assert told in found.err
        assert "Traceback" not in found.err


@pytest.mark.parametrize("words", [["--max-layers", "-1"], ["--max-layers", "x"], ["--framework", "jax"]])
def test_wrong_usage(bad: str, words: list[str]) -> None:
    assert main([bad, *words]) == 2


def test_a_run_without_fp8_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "curve.jsonl", [{"step": s, "loss": 2.0} for s in range(30)], run_info())
    assert main([str(log), "--json"]) == 2
    made = document(capsys)
    assert made["decision"] == "cannot_say"
    assert made["not_decided"]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "exit codes" in capsys.readouterr().out
