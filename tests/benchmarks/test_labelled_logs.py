"""Labelled logs are judged by the columns of EXPECTED.csv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnosis.__main__ import main
from benchmarks.diagnosis.labelled_logs import UnreadableFolder, judge_logs, judge_row

FOUND: dict[str, Any] = {
    "cause": "stale_scale_saturation", "family": "scale_calibration_blowup", "kind": None,
    "severity": "critical", "confidence": 0.9, "onset_step": 12, "detected_step": 14, "tensor": "a.fc1/input",
    "layer": "a.fc1", "state": "raised",
}  # fmt: skip
ROW = {
    "id": "x", "family": "scale_calibration_blowup", "cause": "stale_scale_saturation", "kind": "",
    "onset_lo": "10", "onset_hi": "11", "detect_by_step": "13", "layer": "a|b", "tensor": "a.fc1/input",
    "also_accept": "activation_outlier_growth",
}  # fmt: skip


def test_a_finding_is_held_to_window_limit_layer_and_tensor() -> None:
    run = judge_row(ROW, (60, [FOUND]))
    assert (run.cause_ok, run.family_ok, run.layer_ok, run.tensor_ok) == (True, True, True, True)
    assert (run.abrupt, run.onset_error, run.delay, run.detected) == (True, 1, 4, False)


def test_another_cause_of_the_family_is_half_right() -> None:
    run = judge_row({**ROW, "cause": "scale_state_fault", "also_accept": ""}, (60, [FOUND]))
    assert (run.cause_ok, run.family_ok) == (False, True)


def test_silence_is_wrong_unless_it_is_accepted() -> None:
    missed = judge_row(ROW, (60, []))
    assert (missed.cause_ok, missed.detected, missed.layer_ok, missed.delay) == (False, False, False, None)
    blind = judge_row({**ROW, "also_accept": "healthy"}, (60, []))
    assert (blind.cause_ok, blind.detected, blind.layer_ok) == (True, None, None)


def test_every_alarm_on_a_healthy_log_is_false() -> None:
    row = {"id": "h", "family": "none", "cause": "healthy"}
    assert len(judge_row(row, (60, [FOUND, FOUND])).false_alarms) == 2
    assert judge_row(row, (60, [])).healthy_steps == 60


def test_a_folder_is_read_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"step": step, "loss": 2.0 + 0.01 * (step % 3)} for step in range(20)]
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "EXPECTED.csv").write_text("id,family,cause\nh,none,healthy\n")
    assert main(["logs", str(tmp_path)]) == 0
    assert "healthy steps                                 20" in capsys.readouterr().out


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFolder, match=r"EXPECTED\.csv: cannot be read"):
        list(judge_logs(tmp_path))
    (tmp_path / "EXPECTED.csv").write_text("id,family,cause\ngone,none,healthy\n")
    with pytest.raises(UnreadableFolder, match=r"gone: no such log; expected it with \.jsonl or \.jsonl\.gz"):
        list(judge_logs(tmp_path))
    assert main(["logs", str(tmp_path)]) == 2
