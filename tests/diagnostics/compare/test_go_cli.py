"""The decision of ``floatscope compare`` on the command line: options, exit codes, JSON, page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope_diagnostics.compare.cli import main
from floatscope_diagnostics.compare.go_options import count
from tests.diagnostics.compare.logs import rows_of, write

N = 300


def log(path: Path, gap: float, seconds: float, *, name: str = "", **info: Any) -> str:
    draw = np.random.default_rng(7)
    loss = 2.0 + 3.0 * (np.arange(N) + 20.0) ** -0.3 + draw.normal(0.0, 0.1, N) + gap
    loss += np.random.default_rng(len(path.stem)).normal(0.0, 0.004, N)
    times = seconds * np.random.default_rng(3).lognormal(0.0, 0.02, N)
    return write(
        path, rows_of(loss.tolist(), step_time_s=times.tolist()), info={"name": name or path.stem, **info}
    )


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, str]:
    return {
        "good": log(tmp_path / "fp8.jsonl", 0.0, 0.7),
        "worse": log(tmp_path / "worse.jsonl", 0.05, 0.7),
        "base": log(tmp_path / "bf16.jsonl", 0.0, 1.0),
        "words": log(tmp_path / "words.jsonl", 0.05, 0.7, vocab_size=9),
        "vocab": log(tmp_path / "vocab.jsonl", 0.0, 1.0, vocab_size=8),
    }


def test_the_decision_stands_first(logs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([logs["good"], logs["base"]]) == 0
    text = capsys.readouterr().out
    assert text.index("✓ GO") < text.index("✓ SAME")
    for part in (
        "for these 270 steps",
        "✓ loss",
        "- findings",
        "not looked for",
        "✓ cost",
        "% less cost",
        "Limits",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("run", "options", "code"),
    [
        ("good", [], 0),
        ("good", ["--fail-on", "not-yet"], 0),
        ("worse", [], 1),
        ("worse", ["--fail-on", "no-go"], 1),
        ("worse", ["--margin", "0.1", "--fail-on", "no-go"], 0),
        ("good", ["--min-speedup", "2", "--fail-on", "no-go"], 1),
        ("good", ["--min-speedup", "2"], 0),  # the difference alone sets the code
        ("good", ["--to", "100", "--fail-on", "no-go"], 0),
        ("good", ["--to", "100", "--fail-on", "not-yet"], 1),
    ],
)
def test_exit_codes(
    run: str, options: list[str], code: int, logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([logs[run], logs["base"], *options]) == code
    assert f"Exit code {code}." in capsys.readouterr().out


def test_json_has_the_decision(logs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "megatron", "--preset", "throughput-30", "--planned-tokens", "2T", "--json"]
    assert main([logs["good"], logs["base"], *arguments]) == 0
    go = json.loads(capsys.readouterr().out)["go"]
    assert go["verdict"] == "go"
    assert [g["name"] for g in go["gates"]] == [
        "loss", "drift", "held_out", "evals", "stability", "fp8_health", "speed", "cost",
    ]  # fmt: skip
    assert {g["state"] for g in go["gates"]} <= {"pass", "fail", "undecided", "not_checked"}
    assert go["limits"]["margin_nats"] == 0.01
    assert go["limits"]["min_speedup"] == 1.3
    assert go["limits"]["planned_tokens"] == 2_000_000_000_000
    assert go["limits"]["presets"] == ["megatron", "throughput-30"]
    assert go["quality"]["net_speedup"] > 1.3
    assert {"code", "sentence", "blocks"} == set(go["refused"][0])


def test_a_pair_that_cannot_be_compared_is_refused_with_its_reason(
    logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--fail-on", "not-yet"], ["--fail-on", "no-go"]):
        assert main([logs["words"], logs["vocab"], *options]) == 2
        text = capsys.readouterr().out
        assert "CANNOT BE DECIDED" in text
        assert "The vocabularies differ (9 against 8 tokens)" in text
        assert "Next: A baseline with the same vocabulary" in text
        assert "Exit code 2. This pair cannot be decided." in text
        for word in ("WORSE", "worse by", "<- judged", "To decide"):
            assert word not in text


def test_nothing_else_in_the_document_of_a_refused_pair_decides(
    logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([logs["words"], logs["vocab"], "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["decision"], found["go"]["verdict"], found["go"]["decidable"]) == (
        "undecided", "not_yet", False,
    )  # fmt: skip
    assert found["summary"] == found["go"]["sentence"]
    assert found["needed"]["more_steps"] is None
    assert found["difference"]["judged"]["mean"] > 0.04  # the numbers stay


def test_evaluations_pairs_and_nulls(
    logs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = (np.random.default_rng(1).random(4000) < 0.6).astype(int).tolist()
    right = tmp_path / "right.json"
    right.write_text(json.dumps({"mmlu": {"correct": answers}}))
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"mmlu": {"correct": [0] * 500 + answers[500:]}}))
    base = [logs["good"], logs["base"], "--json"]
    assert main([*base, "--evals", str(right), str(right)]) == 0
    assert json.loads(capsys.readouterr().out)["go"]["verdict"] == "go"
    assert main([*base, "--evals", str(wrong), str(right), "--fail-on", "no-go"]) == 1
    go = json.loads(capsys.readouterr().out)["go"]
    assert go["evals"][0]["name"] == "mmlu"
    assert go["evals"][0]["state"] == "fail"
    more = ["--pair", logs["good"], logs["base"], "--pair", logs["good"], logs["base"]]
    assert main([*base, *more, "--null", logs["base"], logs["base"]]) == 0
    go = json.loads(capsys.readouterr().out)["go"]
    assert len(go["limits"]["seed_means"]) == 3
    assert go["limits"]["null_means"] == [0.0]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_offline_and_escapes_names(
    tmp_path: Path, logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    odd = log(tmp_path / "odd.jsonl", 0.0, 0.7, name="<script>alert(1)</script>")
    target = tmp_path / "decision.html"
    assert main([odd, logs["base"], "--html", str(target)]) == 0
    page = _Page()
    page.feed(target.read_text())
    assert page.fetched == []
    assert "script" not in page.tags
    assert {"svg", "polyline", "table", "h4"} <= set(page.tags)
    said = " ".join(page.text)
    assert "<script>alert(1)</script>" in said
    assert "GO" in said
    assert "less cost" in said
    capsys.readouterr()
    assert main([odd, logs["base"], "--html", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--preset", "none"],
            "preset: expected one of net-10, throughput-30, cost-25, megatron, marin, deepseek, got 'none'",
        ),
        (["--preset", "megatron", "--preset", "marin"], "both set margin_nats"),
        (["--min-speedup", "-1"], "min_speedup: expected"),
        (["--min-saving", "100"], "min_saving_pct: expected"),
        (["--price-ratio", "0"], "price_ratio: expected"),
        (["--price-ratio", "nan"], "price_ratio: expected"),
        (["--planned-tokens", "-3"], "expected a number such as"),
        (["--evals", "nowhere.json", "nowhere.json"], "no such file or folder"),
        (["--pair", "nowhere.jsonl", "BASE"], "nowhere.jsonl: no such file"),
        (["--html", "/nowhere/at/all.html"], "--html"),
        (["--html", "-", "--json"], "both want standard output"),
        (["--fail-on", "go"], "invalid choice"),
    ],
)
def test_bad_options_are_exit_code_2(
    options: list[str], message: str, logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given_options = [logs["base"] if o == "BASE" else o for o in options]
    assert main([logs["good"], logs["base"], *given_options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


@given(st.integers(1, 10**15))
def test_counts_are_read_as_people_write_them(value: int) -> None:
    assert count(str(value)) == value
    assert count(f"{value:,}") == value
    assert count(f"{value % 1000 + 1}B") == (value % 1000 + 1) * 10**9
