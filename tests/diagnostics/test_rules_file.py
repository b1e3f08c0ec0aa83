"""``floatscope diagnose --rules FILE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.cli import main
from floatscope_diagnostics.rule_settings_file import MAX_BYTES
from tests.diagnostics.cases import amax_history_poisoning


@pytest.fixture
def log(tmp_path: Path) -> str:
    run = amax_history_poisoning.POISON
    path = tmp_path / "run.jsonl"
    lines = [json.dumps({"run": run.info()}), *(json.dumps(row) for row in run.rows())]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def verdict(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_rule_is_switched_off_by_a_file(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "off.toml"
    path.write_text("[FS202]\nenabled = false\n")
    _, off = verdict(capsys, log, "--rules", str(path))
    assert "FS202" not in {f["rule"] for f in off["findings"]}
    assert "FS202" in {n["rule"] for n in off["not_checked"] if n["why"].startswith("switched off")}
    main([log, "--rules", str(path), "--full"])
    assert "switched off for this project: amax history poisoning (FS202)" in capsys.readouterr().out


def test_a_severity_and_a_threshold_from_a_file(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plain = verdict(capsys, log, "--fail-on", "critical")
    assert (code, plain["status"], plain["findings"][0]["rule"]) == (0, "warning", "FS202")
    assert "rule_settings" not in plain
    path = tmp_path / "rules.json"
    path.write_text('{"FS202": {"severity": "critical", "thresholds": {"idle_bits": 0.5}}}')
    code, louder = verdict(capsys, log, "--rules", str(path), "--fail-on", "critical")
    assert (code, louder["status"]) == (1, "critical")
    assert louder["rule_settings"]["FS202"]["thresholds"] == {"idle_bits": 0.5}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rules.toml", b"[FS202\n", "not TOML"),
        ("rules.json", b"{", "not JSON"),
        ("rules.json", b"\xff\xfe", "not JSON"),
        ("rules.json", b"[" * 100_000, "not JSON"),
        ("rules.yaml", b"", "ends in .toml or .json"),
        ("rules.json", b'{"FS202": {"thresholds": {"idle_bits": 99}}}', "FS202.thresholds.idle_bits"),
        ("rules.json", b'{"FS9": {}}', "expected the code of a rule"),
        ("rules.json", b" " * (MAX_BYTES + 1), "larger than 1 MiB"),
    ],
    ids=["toml", "json", "bytes", "deep", "kind", "range", "code", "large"],
)  # fmt: skip
def test_a_file_that_is_wrong_is_usage_and_says_what_was_expected(
    log: str, tmp_path: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main([log, "--rules", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert str(path) in captured.err


def test_a_file_that_is_not_there_is_usage(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([log, "--rules", "missing.toml"]) == 2
    assert "missing.toml: cannot be read: No such file" in capsys.readouterr().err
