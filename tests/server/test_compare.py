"""``floatscope compare`` with run ids of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from floatscope_diagnostics.compare.cli import main
from tests.diagnostics.compare.logs import Rows, pair_of, write
from tests.server.live import TOKEN, Client


def send(client: Client, run_id: str, rows: Rows) -> None:
    assert client.open_run(run_id, name=run_id).status == 201
    for seq, start in enumerate(range(0, len(rows), 256)):
        assert client.put(run_id, seq, {"steps": rows[start : start + 256]}).status == 200


@pytest.fixture
def runs(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[Client, Rows, Rows]:
    run, base = pair_of(np.where(np.arange(600) >= 300, 0.06, 0.0))
    send(client, "fp8-run", run)
    send(client, "bf16-run", base)
    monkeypatch.setenv("FLOATSCOPE_URL", f"http://127.0.0.1:{client.port}")
    monkeypatch.setenv("FLOATSCOPE_TOKEN", TOKEN)
    return client, run, base


def test_run_ids_give_what_their_files_give(
    runs: tuple[Client, Rows, Rows], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run, base = runs
    assert main(["fp8-run", "bf16-run", "--json"]) == 1
    over_http = json.loads(capsys.readouterr().out)
    files = [write(tmp_path / "fp8.jsonl", run), write(tmp_path / "bf16.jsonl", base)]
    assert main([*files, "--json"]) == 1
    from_files = json.loads(capsys.readouterr().out)
    assert over_http["run"]["path"] == "fp8-run"
    for key in ("decision", "difference", "separation", "shape", "pairing"):
        assert over_http[key] == from_files[key]


def test_a_file_wins_and_the_other_may_be_a_run_id(
    runs: tuple[Client, Rows, Rows],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, base = runs
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "fp8-run", base)
    assert main(["fp8-run", "bf16-run"]) == 0
    assert "equal to the last digit" in capsys.readouterr().out
    url = f"http://127.0.0.1:{runs[0].port}"
    assert main(["fp8-run", "bf16-run", "--server", url]) == 1
    assert main(["fp8-run", "bf16-run", "--server", url, "--to", "299"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fp8-run", "no-such-run"], "no run of this id (404)"),
        (["fp8-run", "bf16-run", "--token", "wrong-token-0123456789"], "refuses the token (401)"),
    ],
)
def test_what_the_server_refuses_is_said(
    runs: tuple[Client, Rows, Rows],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_server_that_wants_a_token(
    runs: tuple[Client, Rows, Rows],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLOATSCOPE_TOKEN")
    monkeypatch.setenv("FLOATSCOPE_DATA_DIR", str(tmp_path))
    assert main(["fp8-run", "bf16-run"]) == 2
    assert "wants a token (401)" in capsys.readouterr().err
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert main(["fp8-run", "bf16-run"]) == 1, "the token that a server on this machine keeps"
    capsys.readouterr()
