"""The terminal report: names stay whole, and an open cause shows no percentage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from floatscope.cli import main as floatscope

NAME = "a_model_with_long_names.decoder.layers.17.feed_forward_network.second_projection/grad_weight"


def test_the_name_of_a_tensor_is_never_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"step": k, "loss": 2.0 + 0.01 * k, "grad_norm": 1.0, "tensors": {NAME: {"grad_norm": 0.5}}}
        for k in range(5)
    ]
    rows.append({"step": 5, "loss": 2.0, "grad_norm": "NaN", "tensors": {NAME: {"grad_norm": "NaN"}}})
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    assert floatscope(["diagnose", str(path)]) == 1
    text = capsys.readouterr().out
    assert NAME in text
    assert NAME[:50] not in text.replace(NAME, "")


def test_an_open_cause_has_no_percentage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": k, "loss": "NaN" if k > 20 else 2.0 + 0.01 * (k % 7)} for k in range(30)]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    assert floatscope(["diagnose", str(path)]) == 1
    text = capsys.readouterr().out
    assert "cause open" in text
    assert "% sure" not in text
    assert "Either  invalid_input" in text


def test_evidence_about_the_loss_is_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"step": k, "loss": 2.0 + 0.01 * (k % 7) + (3.0 if k > 60 else 0.0), "lr": 0.02 if k >= 60 else 0.001}
        for k in range(90)
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    floatscope(["diagnose", str(path), "--json"])
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["cause"] == "lr_divergence"
    values = [e["value"] for e in finding["evidence"] if e["signal"] == "loss"]
    assert values
    assert all(4.9 < v < 5.2 for v in values)
