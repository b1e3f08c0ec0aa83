"""``floatscope export`` and ``floatscope alerts`` as a person calls them, against a real server."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from floatscope.alerts import cli as alerts
from floatscope.exporting import cli as export
from floatscope.exporting.writing import whole_file
from floatscope.protocol.json_rows import rows_from_batch
from floatscope_diagnostics.cli import main as diagnose
from floatscope_diagnostics.importing.cli import main as import_
from floatscope_server import export as server_export
from tests.server.live import TOKEN, Client, wait_for
from tests.server.samples import TABLE, Scripted, as_stored, body, faulty_run, finding, lines, rows, send


@pytest.fixture(autouse=True)
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FLOATSCOPE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FLOATSCOPE_TOKEN", TOKEN)
    if "client" in request.fixturenames:
        client = request.getfixturevalue("client")
        monkeypatch.setenv("FLOATSCOPE_URL", f"http://127.0.0.1:{client.port}")


def log_of(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


def test_what_was_exported_and_imported_is_equal(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.open_run("first", name="first", tensors=TABLE, config={"lr": 1})
    steps = rows(0, 40)
    send(client, "first", steps)
    client.call("POST", "/api/v1/runs/first/finish", {"status": "finished"})
    path = tmp_path / "run.jsonl.gz"
    assert export.main(["first", "-o", str(path)]) == 0
    assert "40 steps" in capsys.readouterr().out
    assert lines(log_of(path)[1:]) == as_stored(steps)
    assert import_([str(path), "--run-id", "second"]) == 0
    again = tmp_path / "again.jsonl"
    capsys.readouterr()
    assert export.main(["second", "-o", str(again), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["bytes"]) == (40, again.stat().st_size)
    assert lines(log_of(again)[1:]) == lines(log_of(path)[1:])
    assert sorted(os.listdir(tmp_path)) == ["again.jsonl", "run.jsonl.gz"]


def test_diagnose_reads_an_export(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described, steps = faulty_run(90, fault_at=60)
    client.open_run("r", **described)
    send(client, "r", steps, size=30)
    path = tmp_path / "run.jsonl"
    assert export.main(["r", "-o", str(path)]) == 0
    capsys.readouterr()
    assert diagnose([str(path), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["cause"] == client.get("/api/v1/runs/r/verdict").json["findings"][0]["cause"]


def test_parts_of_a_run(client: Client, tmp_path: Path) -> None:
    client.open_run("r")
    send(client, "r", rows(0, 20))
    client.put("r", 0, body([{"step": s, "rank": 1, "loss": 1.0} for s in range(20)]), rank=1)
    path = tmp_path / "run.jsonl"

    def exported(*options: str) -> list[tuple[int, int]]:
        assert export.main(["r", "-o", str(path), *options]) == 0
        return [(row["step"], row.get("rank", 0)) for row in log_of(path)[1:]]

    assert exported("--from", "3", "--to", "5") == [(3, 0), (4, 0), (5, 0)]
    assert exported("--from", "18", "--rank", "1") == [(18, 1), (19, 1)]
    assert exported("--to", "0", "--rank", "all") == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none"], "no run 'none'"),
        (["r", "--token", "wrong"], "refuses the token"),
        (["r", "--server", "ftp://x"], "no address"),
        (["r", "--from", "x"], "whole number"),
        (["r", "--json"], "--output"),
        (["r", "-o", "/nowhere/run.jsonl"], "No such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    client: Client, words: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.open_run("r")
    assert export.main(words) == 2
    assert says in capsys.readouterr().err


def test_a_run_that_is_deleted_meanwhile_is_no_whole_log(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.open_run("r")
    send(client, "r", rows(0, 24))
    monkeypatch.setattr(server_export, "PIECE_BYTES", 1)

    def deleting(*args: Any, **more: Any) -> Any:
        yield from rows_from_batch(*args, **more)
        wait_for(lambda: client.call("DELETE", "/api/v1/runs/r").status in (200, 404), seconds=20)

    monkeypatch.setattr("floatscope_server.export.rows_from_batch", deleting)
    path = tmp_path / "run.jsonl"
    assert export.main(["r", "-o", str(path)]) == 2
    assert "no run 'r'" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_ctrl_c_leaves_nothing_new(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client.open_run("r")
    send(client, "r", rows(0, 24))
    path = tmp_path / "run.jsonl"
    path.write_text("as it was\n")

    def stuck(*args: Any, **more: Any) -> Any:
        yield {"step": 0}
        wait_for(lambda: False, seconds=20)

    monkeypatch.setattr(server_export, "PIECE_BYTES", 1)
    monkeypatch.setattr("floatscope_server.export.rows_from_batch", stuck)
    # what is started in the background by a shell ignores Ctrl-C, and so would its children
    heeding = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    heeding += "from floatscope.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", heeding, "export", "r", "-o", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        wait_for(lambda: any(name.endswith(".part") for name in os.listdir(tmp_path)), seconds=20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert os.listdir(tmp_path) == ["run.jsonl"]
    assert path.read_text() == "as it was\n"


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with pytest.raises(TypeError), whole_file(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert path.read_bytes() == b"old"
    with whole_file(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert os.listdir(tmp_path) == ["log"]


def test_alerts_at_the_command_line(
    serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = finding(id="late", summary="red \x1b[31m text")
    client: Client = serve(engines=Scripted(lambda last: [] if last is None else [odd]))
    monkeypatch.setenv("FLOATSCOPE_URL", f"http://127.0.0.1:{client.port}")
    monkeypatch.setenv("COLUMNS", "120")
    assert alerts.main(["--help"]) == 0
    assert "--not-the-cause      close it for good: it names the wrong cause" in capsys.readouterr().out
    assert alerts.main([]) == 0
    assert capsys.readouterr().out.startswith("no open alerts")
    client.open_run("r")
    client.put("r", 0, body(rows(0, 4)))
    assert alerts.main([]) == 0
    shown = capsys.readouterr().out
    assert "late critical firing run r step 4" in shown
    assert "\x1b" not in shown
    assert alerts.main(["late", "--acknowledge", "--note", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "acknowledged"
    assert alerts.main(["--json", "--state", "acknowledged", "--run", "r"]) == 0
    assert [a["id"] for a in json.loads(capsys.readouterr().out)["items"]] == ["late"]
    assert alerts.main(["nothing"]) == 2
    assert alerts.main(["--resolve"]) == 2
    assert alerts.main(["--state", "odd"]) == 2
