"""``floatscope diagnose``: output, exit codes, start-up."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from floatscope_diagnostics.cli import main
from tests.diagnostics.cases import amax_history_poisoning, scale_state_fault
from tests.diagnostics.synthetic import Run

VERDICT_KEYS = [
    "schema", "source", "status", "summary", "last_clean_step", "confidence_basis", "findings", "not_checked",
]  # fmt: skip
FINDING_KEYS = {
    "id", "state", "replaced_by", "family", "cause", "kind", "symptom", "severity", "confidence",
    "confidence_basis",
    "onset_step",
    "onset_window", "detected_step", "resolved_step", "rank", "segment", "layer", "tensor", "order",
    "affected_tensors", "summary", "evidence", "alternatives", "remedy", "decisive_test", "log_next",
    "rule",
}  # fmt: skip


def log(path: Path, run: Run) -> str:
    lines = [json.dumps({"run": run.info()}), *(json.dumps(r) for r in run.rows())]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    return log(tmp_path / "faulty.jsonl", amax_history_poisoning.POISON)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    return log(tmp_path / "healthy.jsonl", Run(steps=40))


def test_the_report_says_what_since_when_where_why_and_what_to_do(
    faulty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([faulty]) == 1
    text = capsys.readouterr().out
    for part in (
        "WARNING",
        "Since     step 130",
        "last clean step 129",
        "Began at  blocks.0.mlp.fc2/input (forward)",
        "amax_history_poisoning    scale_calibration_blowup, FS202",
        "^ onset",
        "Why",
        "What to do",
        "transformer_engine:",
        "Test that decides",
        "Not checked  ",
        "no baseline is set and ref_loss is not logged: a baseline run, or",
        "Exit code 1.",
    ):
        assert part in text
    assert "\x1b" not in text  # colour only on a terminal
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_healthy_run_says_so(healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([healthy]) == 0
    assert "No fault found in steps 100 to 139." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "but"),
    [
        ("step 1 loss 2.5\nstep 2 loss 2.4\n", "2 points of the loss are too few to judge it"),
        ("step,reward\n1,2\n2,3\n", "no loss that has to fall is logged, so none was judged"),
    ],
)
def test_no_fault_found_is_not_said_of_what_shows_little(
    text: str, but: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "short.log"
    log.write_text(text)
    assert main([str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"] == f"No fault found in steps 1 to 2, but {but}."


def test_json_is_one_document_with_every_field(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([faulty, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document) == VERDICT_KEYS
    assert document["schema"] == "floatscope.verdict/1"
    assert document["source"]["path"] == faulty
    assert set(document["findings"][0]) == FINDING_KEYS
    assert document["findings"][0]["family"] == "scale_calibration_blowup"
    assert document["last_clean_step"] == 129


def test_several_runs_and_one_that_cannot_be_read(
    faulty: str, healthy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([healthy, faulty, str(tmp_path / "gone"), "--json"]) == 2
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert document["status"] == "warning"
    assert [r["status"] for r in document["runs"]] == ["healthy", "warning"]
    assert document["unread"][0]["path"].endswith("gone")
    assert "no such file" in out.err


@pytest.mark.parametrize(("fail_on", "code"), [("warning", 1), ("critical", 0), ("watch", 1), ("never", 0)])
def test_fail_on(faulty: str, fail_on: str, code: int) -> None:
    assert main([faulty, "--json", "--fail-on", fail_on]) == code


def test_a_baseline_is_compared_step_by_step(healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([healthy, "--baseline", healthy, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "FS302" not in [n["rule"] for n in document["not_checked"]]


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["x", "--format", "unknown"]) == 2
    assert main(["--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_a_missing_baseline_is_exit_code_2(healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([healthy, "--baseline", "/nowhere", "--json"]) == 2
    out = capsys.readouterr()
    assert "/nowhere: no such file" in out.err
    assert json.loads(out.out)["unread"][0]["path"] == "/nowhere"


UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "gone.jsonl": (None, "no such file"),
    "empty.jsonl": (b"", "is empty"),
    "blank.jsonl": (b"\n \n\n", "holds only blanks"),
    "binary.bin": (bytes(range(256)) * 8, "binary"),
    "pickle.pt": (b"\x80\x02}q\x00.", "a pickle (checkpoint)"),
    "torn.jsonl": (b'{"step": 1, "lo', "holds no step"),
    "torn.jsonl.gz": (gzip.compress(b'{"step": 1, "loss": 2.0}\n' * 9)[:12], "ends in the middle"),
    "text.log": (b"iteration 1 of many\nall is well\n", "not a log of a known format"),
    "torn.json": (b'{"log_history": [{"step": 1, "loss": 2.', "not complete JSON"),
    "header.csv": (b"step,loss\n", "no row with numbers"),
    "list.jsonl": (b"[1, 2]\n[3]\n", "not a log of a known format"),
    "wide.jsonl": (b'{"run": {"name": "a"}}\n', "holds no step"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_input_that_cannot_be_read_is_a_document_and_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, why = UNREADABLE[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert main([str(path), "--json"]) == 2
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert (document["schema"], document["status"], document["runs"]) == ("floatscope.verdict/1", None, [])
    assert document["unread"][0]["path"] == str(path)
    assert why in document["unread"][0]["error"]
    assert why in out.err
    assert main([str(path)]) == 2
    assert capsys.readouterr().out == ""


def test_a_folder_without_logs_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["unread"][0]["error"]
    assert "holds no training log that is known. Name the log itself" in error


def test_a_torn_last_line_is_passed_over_and_said(healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open(healthy, "a") as file:
        file.write('{"step": 140, "loss": 2.')
    assert main([healthy, "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["source"]
    assert (source["skipped_lines"], source["last_step"]) == (1, 139)
    assert "line 42 passed over" in source["first_skipped"]


def run_cli(*args: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "floatscope_diagnostics.cli", *args]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_standard_input(faulty: str) -> None:
    code, out, _ = run_cli("-", "--json", stdin=Path(faulty).read_bytes())
    assert code == 1
    assert json.loads(out)["source"]["path"] == "-"


def test_start_up_loads_nothing_heavy(healthy: str) -> None:
    probe = (
        "import sys; from floatscope_diagnostics.cli import main; main([sys.argv[1], '--json']); "
        "print(sorted({'pandas','scipy','torch','plotly','fastapi'} & set(sys.modules))); "
        "import time; print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", probe, healthy], capture_output=True, check=True, timeout=60)
    loaded, cpu_s = done.stdout.decode().splitlines()[-2:]
    assert loaded == "[]"
    assert float(cpu_s) < 5  # about 0.5 on a quiet machine


def test_a_bug_is_exit_code_3(
    healthy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("floatscope_diagnostics.cli.diagnose_paths", broken)
    assert main([healthy]) == 3
    assert "internal error" in capsys.readouterr().err


def test_a_scale_fault_names_its_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([log(tmp_path / "a.jsonl", scale_state_fault.LOST)]) == 1
    text = capsys.readouterr().out
    assert "scale_state_fault, lost_at_resume" in text
    assert "CRITICAL" in text
