"""``floatscope compare``: output, exit codes, inputs of all kinds, and real pairs of the bundled trainer."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatscope.cli import main as floatscope
from floatscope_diagnostics.compare.cli import main
from tests.diagnostics.compare.logs import pair_of, rows_of, write

TINY = ["--layers", "2", "--width", "32", "--heads", "2", "--hidden", "64", "--context", "32", "--quiet"]
TOP = {
    "schema", "run", "baseline", "decision", "summary", "settings", "pairing", "difference", "separation",
    "separation_beyond_margin", "apart_since_step", "loud_steps", "learning_rates_differ", "nonfinite",
    "both_nonfinite_from", "shape", "tensors", "needed", "method", "go",
}  # fmt: skip


@pytest.fixture
def worse(tmp_path: Path) -> list[str]:
    run, base = pair_of(np.where(np.arange(600) >= 300, 0.06, 0.0))
    return [write(tmp_path / "fp8.jsonl", run), write(tmp_path / "bf16.jsonl", base)]


@pytest.fixture
def same(tmp_path: Path) -> list[str]:
    run, base = pair_of(np.zeros(600))
    return [write(tmp_path / "fp8.jsonl", run), write(tmp_path / "bf16.jsonl", base)]


def test_the_report_says_how_much_since_when_and_how_sure(
    worse: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert floatscope(["compare", *worse]) == 1
    text = capsys.readouterr().out
    for part in (
        "WORSE", "RUN is worse by 0.0", "600 pairs", "95 % band", "<- judged", "independent ones",
        "by more than 0.02", "offset: ", "no tensor statistics in RUN", "To decide", "block bootstrap",
        "Exit code 1.",
    ):  # fmt: skip
        assert part in text


def test_no_difference_is_exit_code_0(same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(same) == 0
    assert "No difference larger than 0.00" in capsys.readouterr().out


def test_json_is_one_document_and_nothing_else(worse: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*worse, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert set(found) == TOP
    assert found["schema"] == "floatscope.compare/1"
    assert found["decision"] == "worse"
    assert found["separation_beyond_margin"]["step"] == pytest.approx(300, abs=6)
    assert found["difference"]["judged"]["effective_sample_size"] > 50


def test_infinite_numbers_are_the_protocols_strings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.jsonl", rows_of([2.0]))
    two = write(tmp_path / "two.jsonl", rows_of([2.5]))
    assert main([one, two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["difference"]["whole"]["low"] == "-Infinity"
    assert found["decision"] == "undecided"


def test_margin_and_range(worse: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*worse, "--margin", "0.1"]) == 0
    assert main([*worse, "--to", "299"]) == 0
    assert main([*worse, "--from", "300"]) == 1
    capsys.readouterr()


def test_gzip_csv_and_standard_input(
    worse: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "fp8.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(worse[0]).read_bytes()))
    assert main([str(packed), worse[1]]) == 1
    table = tmp_path / "bf16.csv"
    rows = [json.loads(line) for line in Path(worse[1]).read_text().splitlines()[1:]]
    table.write_text("step,loss\n" + "".join(f"{r['step']},{r['loss']}\n" for r in rows))
    assert main([worse[0], str(table)]) == 1
    with Path(worse[0]).open() as source:
        monkeypatch.setattr(sys, "stdin", source)
        assert main(["-", worse[1]]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl", "RUN"], "no such file"),
        (["-", "-"], "only one of the two"),
        (["RUN", "RUN", "--server", "not an address"], "no address"),
        (["a b", "RUN", "--server", "http://127.0.0.1:9"], "neither a file nor a run id"),
        (["some-run", "RUN", "--server", "http://127.0.0.1:9"], "no answer from"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(
    arguments: list[str],
    message: str,
    same: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLOATSCOPE_URL", raising=False)
    assert main([same[0] if a == "RUN" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


@pytest.mark.parametrize("wrong", [["--confidence", "1.5"], ["--margin", "-1"], ["--from", "x"], []])
def test_wrong_usage_is_exit_code_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one", *wrong]) == 2
    capsys.readouterr()


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "floatscope compare fp8.jsonl bf16.jsonl" in text
    assert "exit codes: 0" in text


def test_runs_that_share_no_steps_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "one.jsonl", rows_of([2.0, 2.0]))
    two = write(tmp_path / "two.jsonl", rows_of([2.0, 2.0], first=50))
    assert main([one, two]) == 2
    assert "share no stretch of steps" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Short real runs of one seed: BF16, FP8, and FP8 with one layer's gradients flushed from step 40 on."""
    folder = tmp_path_factory.mktemp("trained")
    wanted: dict[str, list[str]] = {
        "bf16": ["--precision", "bf16"],
        "fp8": ["--precision", "fp8"],
        "poisoned": ["--precision", "fp8", "--inject", "history_poison@40:blocks.1.mlp.fc1/input*1e5"],
    }
    out = {}
    for name, more in wanted.items():
        log = folder / f"{name}.jsonl"
        arguments = ["train", "--run", name, "--log", str(log), "--steps", "70", "--warmup", "10"]
        assert floatscope([*arguments, *TINY, *more]) == 0
        out[name] = str(log)
    return out


def told(run: str, base: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main([run, base, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (1 if found["decision"] in ("worse", "better") else 0)
    return found


def test_a_healthy_pair_of_the_trainer(trained: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = told(trained["fp8"], trained["bf16"], capsys)
    assert found["pairing"]["paired"]
    assert found["decision"] in ("same", "undecided")
    assert found["separation_beyond_margin"] is None
    assert found["tensors"]["common"] > 10
    assert found["tensors"]["first"] == []
    assert any("scale" in why for why in found["tensors"]["not_compared"])


def test_the_first_tensor_of_a_poisoned_history(
    trained: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(trained["poisoned"], trained["fp8"], capsys)
    assert found["difference"]["first_different_step"] >= 40
    first = found["tensors"]["first"][0]
    assert first["tensor"] == "blocks.1.mlp.fc1/input"
    assert 40 <= first["step"] <= 42
    assert first["order"] == "forward"
