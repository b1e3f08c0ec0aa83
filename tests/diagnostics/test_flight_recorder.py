"""``floatscope recorder`` and ``diagnose`` on flight recorders.

The same findings as from the log, and what only the recorder knows.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.ring import ENDING, RUN
from floatscope.recorder_file import RecorderFile
from floatscope.recorder_notes import BETWEEN, IN_STEP, pack_now, pack_scalars
from floatscope.recorder_rows import pack
from floatscope.rows import Block, Row
from floatscope_diagnostics.cli import main as diagnose
from floatscope_diagnostics.recorder.cli import main
from tests.diagnostics.cases.rank_divergence import INFO, two_ranks
from tests.diagnostics.synthetic import Run

GONE = {"host": "elsewhere", "boot": "another", "pid": 1, "began": 1}
STEPS = 200


def row_of(values: Mapping[str, Any]) -> Row:
    """A log's object as the agent has it: tensors by statistic, absent ones masked."""
    batch = batch_from_rows([values])
    scalars = {name: float(value) for name, value in zip(batch.scalar_names, batch.scalars[0], strict=True)}
    row = Row(int(batch.step[0]), float(batch.time[0]), scalars)
    if len(batch.stat_row):
        stats = {name: column[0] for name, column in batch.stats.items()}
        row.blocks.append(Block(batch.tensor_names, stats, {n: m[0] for n, m in batch.stats_present.items()}))
    return row


def record(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    info: Mapping[str, Any],
    rank: int = 0,
    run_id: str = "run-1",
    process: Mapping[str, Any] = GONE,
    ending: Mapping[str, Any] | None = None,
    phase: int = IN_STEP,
    data_id: bytes = b"",
    ended: int | None = None,
) -> Path:
    """A recorder as a process leaves it that died after these steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RecorderFile(path, size=2**24, steps=1000, rank=rank, created=1e9)
    described = {
        "run_id": run_id,
        "rank": rank,
        "process": process,
        "versions": {"torch": "2.13"},
        "run": info,
    }
    file.slot(RUN, json.dumps(described).encode())
    for number, values in enumerate(rows):
        file.append(number, pack(row_of(values), file.number_of))
    last = int(rows[-1]["step"]) if rows else -1
    done = last if ended is None else ended
    step = done + 1 if phase == IN_STEP else done
    ended_time = float(rows[-1].get("time", 1e9)) if rows else 1e9
    scalars = pack_scalars({"loss": 3.5}) if done != last else b""
    file.now(
        pack_now(
            step,
            done,
            time=2e9 if process is not GONE else 1.5e9,
            ended_time=ended_time + (done - last),
            phase=phase,
            data_id=data_id,
            scalars=scalars,
        )
    )
    if ending is not None:
        file.slot(ENDING, json.dumps(ending).encode())
    file.close()
    return path


def log(path: Path, rows: Sequence[Mapping[str, Any]], *, info: Mapping[str, Any]) -> Path:
    """The same steps as a floatscope log."""
    lines = [json.dumps({"run": dict(info)}), *(json.dumps(dict(row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def as_json(command: Any, *argv: object, capsys: pytest.CaptureFixture[str]) -> Any:
    """The document of a command."""
    command([*map(str, argv), "--json"])
    return json.loads(capsys.readouterr().out)


def findings(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is compared of two verdicts: all that a finding says but its id, which hangs on the run's id."""
    return [{k: v for k, v in f.items() if k not in ("id", "replaced_by")} for f in verdict["findings"]]


@pytest.fixture
def stale() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run with a fault, and its rows."""

    def grow(step: int, tensors: dict[str, dict[str, float]], _: dict[str, float]) -> None:
        if step >= 220:
            tensors["blocks.1.mlp.fc2/input"]["amax"] *= 16

    run = Run(steps=STEPS, before=grow)
    return run.info(), run.rows()


def test_the_same_findings_as_from_the_log(
    stale: tuple[dict[str, Any], list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorder that holds the steps gives what their log gives; so does diagnose, and what is exported."""
    info, rows = stale
    path = record(tmp_path / "r" / "rank0.recorder", rows, info=info)
    expected = findings(as_json(diagnose, log(tmp_path / "log.jsonl", rows, info=info), capsys=capsys))
    assert ("stale_scale_saturation", 220) in [(f["cause"], f["onset_step"]) for f in expected]
    exported = tmp_path / "out.jsonl"
    told = as_json(main, path, "--export", exported, capsys=capsys)
    assert findings(told["diagnosis"]) == expected
    assert findings(as_json(diagnose, path, capsys=capsys)) == expected
    assert findings(as_json(diagnose, exported, capsys=capsys)) == expected
    packed = tmp_path / "copy.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert findings(as_json(diagnose, packed, capsys=capsys)) == expected


def test_what_only_the_recorder_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step and phase, batch, exception, versions, what was under way; on the terminal, in JSON and HTML."""
    run = Run(steps=30)
    ending = {
        "kind": "RuntimeError",
        "message": "CUDA error: <misaligned> address",
        "traceback": "File x, line 3",
    }
    path = record(
        tmp_path / "rank0.recorder",
        run.rows(),
        info=run.info(),
        ending=ending,
        data_id="shard-7/12 ü".encode(),
        ended=133,
    )
    page = tmp_path / "page.html"
    assert main([str(path), "--html", str(page)]) in (0, 1)
    shown = capsys.readouterr().out
    for words in (
        "crashed: RuntimeError: CUDA error: <misaligned> address",
        "step 134: forward, backward",
        "shard-7/12 ü",
        "steps 130 to 133: ended, but without a record",
        "steps 100 to 129 (30)",
        "torch 2.13",
        "File x, line 3",
    ):
        assert words in " ".join(shown.split()), words
    html = page.read_text()
    assert "CUDA error: &lt;misaligned&gt; address" in html
    assert "<misaligned>" not in html
    (told,) = as_json(main, path, capsys=capsys)["recorders"]
    assert told["exception"]["type"] == "RuntimeError"
    assert (told["last_step_begun"], told["last_step_ended"], told["values_not_arrived"]) == (
        134,
        133,
        [130, 133],
    )
    assert told["last_batch"] == "shard-7/12 ü"
    assert told["recipe"]["name"] == run.info()["recipe"]["name"]


def test_how_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Silence, a fatal signal, a signal to end, a finish, and a process that lives are told apart."""
    run = Run(steps=20)

    def ended(name: str, **options: Any) -> tuple[str, str]:
        path = record(tmp_path / f"{name}.recorder", run.rows(), info=run.info(), **options)
        (told,) = as_json(main, path, capsys=capsys)["recorders"]
        return told["status"], told["ended"]

    assert ended("silent")[0] == "crashed"
    assert "ended without a word: killed" in ended("silent")[1]
    (tmp_path / "fault.fault.txt").write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent"
    )
    assert ended("fault") == ("crashed", "SIGABRT: Fatal Python error: Aborted")
    assert ended("term", ending={"signal": "SIGTERM"}) == ("failed", "the process was told to end by SIGTERM")
    assert ended("done", ending={"status": "finished"}, phase=BETWEEN) == ("finished", "finished")
    assert ended("odd", ending={"status": "<b>"})[0] == "failed"


def test_a_living_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorder of a process that still trains is read beside it, and not called dead."""
    program = """
    import sys, time, floatscope
    monitor = floatscope.watch(run="alive", run_id="alive", mode="local", gpu=False, diagnose=False)
    for step in range(30):
        monitor.step(loss=1.0)
    time.sleep(0.6)
    print("ready", flush=True)
    sys.stdin.read()
    """
    environment = {**os.environ, "FLOATSCOPE_SPOOL_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        (told,) = as_json(main, tmp_path / "alive", capsys=capsys)["recorders"]
        assert (told["status"], told["recorded"]["steps"]) == ("running", 30)
        child.kill()
    (told,) = as_json(main, tmp_path / "alive", capsys=capsys)["recorders"]
    assert told["status"] == "crashed"


@pytest.mark.parametrize("apart", [True, False])
def test_ranks_of_a_run_are_one_run(apart: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recorders of several ranks are judged together: ranks that part are seen, in a folder and by name."""
    rows = two_ranks(apart=apart)
    for rank in (0, 1):
        own = [row for row in rows if row["rank"] == rank]
        record(tmp_path / f"rank{rank}.recorder", own, info=INFO, rank=rank, ended=own[-1]["step"] - rank)
    told = as_json(main, tmp_path, capsys=capsys)
    assert [r["rank"] for r in told["recorders"]] == [0, 1]
    causes = {f["cause"] for f in told["diagnosis"]["findings"] if f["severity"] != "info"}
    assert causes == ({"rank_divergence"} if apart else set())
    assert findings(as_json(diagnose, *sorted(tmp_path.glob("*.recorder")), capsys=capsys)) == findings(
        told["diagnosis"]
    )
    main([str(tmp_path)])
    assert "the ranks are 1 step apart" in capsys.readouterr().out
    assert main([str(tmp_path), "--export", "-"]) in (0, 1)
    head, *exported = capsys.readouterr().out.splitlines()
    assert json.loads(head)["run"]["ranks"] == 2
    assert len(exported) == len(rows)


def test_a_folder_with_log_and_recorder_is_one_run(
    stale: tuple[dict[str, Any], list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``diagnose FOLDER`` reads the log and leaves the recorder beside it; without a log it reads that."""
    info, rows = stale
    record(tmp_path / "rank0.recorder", rows, info=info)
    record(tmp_path / "rank0.recorder.1", rows[:50], info=info)
    beside = log(tmp_path / "rank0.jsonl", rows, info=info)
    told = as_json(diagnose, tmp_path, capsys=capsys)
    assert told["source"]["format"] == "floatscope"
    beside.unlink()
    told = as_json(diagnose, tmp_path, capsys=capsys)
    assert (told["source"]["format"], told["source"]["steps"]) == ("flight_recorder", STEPS)


def test_two_runs_are_not_exported_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The export is one run; two are refused."""
    run = Run(steps=20)
    for name in ("a", "b"):
        record(tmp_path / f"{name}.recorder", run.rows(), info=run.info(), run_id=name)
    assert main([str(tmp_path), "--export", "-"]) == 2
    assert "writes one run" in capsys.readouterr().err


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no recorder, is cut off, is missing or is an empty folder is named with what to do."""
    run = Run(steps=20)
    whole = record(tmp_path / "whole.recorder", run.rows(), info=run.info()).read_bytes()
    bad = {
        "text": (b'{"step": 1, "loss": 2}\n' * 9, "is no flight recorder"),
        "short": (whole[:90], "cut off in its header"),
        "empty": (b"", "is empty"),
        "hurt": (whole[:60] + b"\xff" + whole[61:], "damaged header"),
    }
    for name, (content, words) in bad.items():
        path = tmp_path / f"{name}.bin"
        path.write_bytes(content)
        assert main([str(path)]) == 2
        error = capsys.readouterr().err
        assert words in error, name
        assert str(path) in error
    assert main([str(tmp_path / "nothing")]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    assert main([str(tmp_path / "folder")]) == 2
    assert "holds no flight recorder" in capsys.readouterr().err
    assert main(["a", "--json", "--export", "-"]) == 2
    assert "both want standard output" in capsys.readouterr().err


def test_a_cut_off_recorder_is_read_as_far_as_it_goes(
    stale: tuple[dict[str, Any], list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that ended early keeps its scalars, and statistics as far as they came."""
    info, rows = stale
    path = record(tmp_path / "rank0.recorder", rows, info=info)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 20_000])
    told = as_json(main, path, capsys=capsys)
    assert told["recorders"][0]["recorded"]["steps"] == STEPS
    assert any(f["cause"] == "stale_scale_saturation" for f in told["diagnosis"]["findings"])


def test_a_run_that_died_before_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No step at all is still a report: the exception and the batch."""
    ending = {"kind": "ValueError", "message": "no data"}
    path = record(tmp_path / "rank0.recorder", [], info={"name": "early"}, ending=ending, data_id=b"first")
    main([str(path)])
    shown = capsys.readouterr().out
    assert "ValueError: no data" in shown
    assert "no step" in shown


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in batch names, exceptions and hosts are shown as question marks."""
    ending = {"kind": "\x1b[31mBad", "message": "\x1b]0;x\x07", "traceback": "\x1b[2J\nline"}
    path = record(
        tmp_path / "rank0.recorder",
        [{"step": 0, "loss": 1.0, "time": 1.0}],
        info={"name": "r\x1b[1m"[:1]},
        process={**GONE, "host": "\x1b[5mhost"},
        ending=ending,
        data_id=b"\x1b[7mbatch",
    )
    main([str(path), "--html", str(tmp_path / "page.html")])
    assert "\x1b" not in capsys.readouterr().out
    assert "\x1b" not in (tmp_path / "page.html").read_text()


def test_steps_that_go_back_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that went back to a checkpoint in one life is read in the order in which it happened."""
    rows = [{"step": s, "loss": 2.0, "time": 1e9 + k} for k, s in enumerate([*range(40), *range(20, 60)])]
    path = record(tmp_path / "rank0.recorder", rows, info={"name": "back"})
    told = as_json(main, path, capsys=capsys)
    assert told["diagnosis"]["source"]["last_step"] == 59
    assert told["recorders"][0]["recorded"]["steps"] == 80


def test_values_of_float32_survive_the_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Non-finite and tiny statistics are the same numbers in the exported log."""
    values = [np.nan, np.inf, -np.inf, 1e-45, 3.4e38, 0.0]
    tensors = {f"t{k}/input": {"amax": float(np.float32(v))} for k, v in enumerate(values)}
    path = record(
        tmp_path / "rank0.recorder", [{"step": 3, "time": 1.0, "tensors": tensors}], info={"name": "f"}
    )
    main([str(path), "--export", "-"])
    row = json.loads(capsys.readouterr().out.splitlines()[1])
    back = [np.float32(float(row["tensors"][f"t{k}/input"]["amax"])) for k in range(len(values))]
    np.testing.assert_array_equal(back, np.array(values, np.float32))
