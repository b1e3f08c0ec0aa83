"""The terminal report as people see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floatscope_diagnostics.cli import main
from floatscope_diagnostics.diagnose import diagnose_paths
from floatscope_diagnostics.reports.terminal import Style
from floatscope_diagnostics.reports.text import report
from floatscope_diagnostics.reports.words import names_of
from tests.diagnostics.reports.logs import HOSTILE, broken, healthy, write


def text_of(*paths: str, style: Style | None = None, everything: bool = False) -> str:
    done, _ = diagnose_paths(paths)
    return report(done, style or Style(), everything=everything)


def test_a_healthy_run_has_a_short_report(tmp_path: Path) -> None:
    text = text_of(write(tmp_path / "run.jsonl", healthy()))
    assert "✓ HEALTHY   No fault found in steps 1 to 60." in text
    assert text.count("\n") <= 12
    assert "  loss  " in text


def test_thirty_healthy_runs_are_a_table_and_not_thirty_pages(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"run{k:02}.jsonl", healthy()) for k in range(30)]
    text = text_of(*paths)
    assert text.startswith("30 runs: 30 healthy\n")
    assert text.count("\n") < 40
    assert "run29.jsonl" in text
    assert text_of(*paths, everything=True).count("HEALTHY") == 30


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    run = {"name": "same"}
    paths = [write(tmp_path / folder / "run.jsonl", healthy(), run) for folder in ("a", "b")]
    done, _ = diagnose_paths(paths)
    assert names_of(done) == [f"same ({path})" for path in paths]
    both = tmp_path / "both.jsonl"
    texts = [write(both, healthy(), {"name": name}) and both.read_text() for name in ("x", "y")]
    both.write_text("".join(texts))
    done, _ = diagnose_paths([str(both)])
    assert names_of(done) == ["x, run 1 of 2", "y, run 2 of 2"]


def test_only_runs_with_findings_are_told_in_detail_worst_first(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl", healthy()), write(tmp_path / "b.jsonl", broken())]
    text = text_of(*paths)
    table, details = text.split("====", 1)
    assert table.index("b.jsonl") < table.index("a.jsonl")
    assert "step 41" in table
    assert "▲ CRITICAL" in details
    assert "HEALTHY" not in details


def test_many_broken_runs_are_cut_off_and_that_is_said(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{k}.jsonl", broken()) for k in range(11)]
    text = text_of(*paths)
    assert text.count("▲ CRITICAL") == 8
    assert "Details of 3 more runs with findings: --full" in text


@pytest.mark.parametrize("width", [56, 80, 120])
def test_the_report_keeps_to_the_width(width: int, tmp_path: Path) -> None:
    text = text_of(write(tmp_path / "run.jsonl", broken()), style=Style(width=width))
    too_long = [line for line in text.splitlines() if len(line) > width and str(tmp_path) not in line]
    assert too_long == []
    marked = next(line for line in text.splitlines() if "onset" in line)
    assert "^" in marked


def test_the_onset_stands_below_the_first_bad_value(tmp_path: Path) -> None:
    lines = text_of(write(tmp_path / "run.jsonl", broken())).splitlines()
    curve = next(line for line in lines if line.startswith("  loss "))
    mark = next(line for line in lines if "^ onset" in line)
    assert abs(curve.index("✕") - mark.index("^")) <= 1


def test_a_run_without_a_loss_has_a_picture_too(tmp_path: Path) -> None:
    rows = [{"step": s, "reward": 0.1 * s, "kl": 0.01} for s in range(1, 50)]
    text = text_of(write(tmp_path / "run.jsonl", rows))
    assert "  reward  " in text
    assert "█" in text


def test_names_from_the_log_cannot_drive_the_terminal(tmp_path: Path) -> None:
    rows = [{**row, HOSTILE: 1.0} for row in broken()]
    text = text_of(write(tmp_path / "run.jsonl", rows), everything=True)
    assert "\x1b" not in text


def test_escapes_in_the_name_of_a_file_are_shown_as_questions(tmp_path: Path) -> None:
    text = text_of(write(tmp_path / "run\x1b[31m.jsonl", healthy()))
    assert "run?[31m.jsonl" in text


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e12, 1e29])
def test_very_large_and_small_values_are_printed_sanely(scale: float, tmp_path: Path) -> None:
    rows = [{"step": s, "loss": scale * (3.0 - 0.01 * s)} for s in range(1, 60)]
    text = text_of(write(tmp_path / "run.jsonl", rows))
    assert max(len(word) for line in text.splitlines() for word in line.split(" ") if "█" not in line) < 120
    assert "e+" not in text


def test_how_the_file_was_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    lines = ["Step,Train Loss", *(f"{s},{3 - 0.01 * s:.3f}" for s in range(1, 40)), "what,is,this"]
    path.write_text("\n".join(lines))
    text = text_of(str(path))
    assert "Read as      " in text
    assert "Train Loss as loss" in text
    assert "1 line not understood; the first: line 41" in text


def test_a_run_that_crashed_says_how(tmp_path: Path) -> None:
    run = {"status": "crashed", "reason": "Traceback\nRuntimeError: CUDA out of memory"}
    text = text_of(write(tmp_path / "run.jsonl", healthy(), run))
    assert "Ended  crashed: RuntimeError: CUDA out of memory" in text


def test_an_output_without_unicode_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    import subprocess
    import sys

    path = write(tmp_path / "run\u00fc.jsonl", broken(), {"name": "l\u00e4uft"})
    command = [sys.executable, "-m", "floatscope_diagnostics.cli", path]
    env = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, env=env, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.isascii()
    assert b"! CRITICAL" in done.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, env=env, timeout=60, check=False)
    assert json.loads(done.stdout)["source"]["path"] == path


def test_the_last_line_says_how_to_get_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([write(tmp_path / "run.jsonl", healthy())])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Exit code 0. As JSON: --json. As a page: --html report.html"
