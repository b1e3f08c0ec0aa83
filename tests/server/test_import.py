"""``floatscope import``: any log becomes a run, once, and the server says of it what ``diagnose`` says."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from floatscope.client import Answer, TransportError
from floatscope.protocol.json_rows import batch_from_rows
from floatscope.protocol.runinfo import RunInfo, TensorTable
from floatscope_diagnostics.cli import main as diagnose
from floatscope_diagnostics.importing.cli import main
from floatscope_diagnostics.importing.server import ImportFailed, Position, Server, Target, target
from tests.agent.fake_server import FakeServer
from tests.diagnostics.cases import amax_history_poisoning
from tests.diagnostics.synthetic import Run
from tests.server.live import TOKEN, Client

SAID = ("status", "summary", "last_clean_step", "findings", "not_checked", "confidence_basis")


def write(path: Path, run: Run, *, ranks: int = 1) -> str:
    lines = [json.dumps({"run": run.info()})]
    for row in run.rows():
        lines += [json.dumps({**row, "rank": rank}) for rank in range(ranks)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def curve(path: Path, losses: list[float], *, first: int = 1) -> str:
    rows = [{"step": first + k, "loss": v} for k, v in enumerate(losses)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def run_import(client: Client, *args: str) -> tuple[int, list[str]]:
    return main([*args, "--server", f"http://127.0.0.1:{client.port}", "--token", TOKEN]), []


@pytest.fixture
def imported(client: Client, capsys: pytest.CaptureFixture[str]) -> Any:
    """Imports with --json; returns the document."""

    def call(*args: str, code: int = 0) -> Any:
        assert run_import(client, *args, "--json")[0] == code
        return json.loads(capsys.readouterr().out)

    return call


def without_ids(verdict: dict[str, Any]) -> dict[str, Any]:
    said = {key: verdict[key] for key in SAID}
    said["findings"] = [
        {k: v for k, v in f.items() if k not in ("id", "replaced_by")} for f in said["findings"]
    ]
    return said


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_server_says_what_diagnose_says(
    ranks: int, client: Client, imported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl", amax_history_poisoning.POISON, ranks=ranks)
    (run,) = imported(path)["runs"]
    diagnose([path, "--json"])
    offline = json.loads(capsys.readouterr().out)
    live = client.get(f"/api/v1/runs/{run['run_id']}/verdict").json
    assert without_ids(live) == without_ids(offline)
    assert run["health"] == offline["status"] != "healthy"
    assert run["url"].endswith(run["run_id"])


def test_importing_twice_changes_nothing(client: Client, imported: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", Run(steps=40))
    (first,) = imported(path)["runs"]
    before = client.get(f"/api/v1/runs/{first['run_id']}").json
    (again,) = imported(path)["runs"]
    assert (first["sent"], first["present"]) == (40, 0)
    assert (again["sent"], again["present"], again["run_id"]) == (0, 40, first["run_id"])
    assert client.get(f"/api/v1/runs/{first['run_id']}").json == before
    assert before["status"] == "finished"


def test_a_log_that_grew_brings_only_what_is_new(client: Client, imported: Any, tmp_path: Path) -> None:
    losses = [3.0 - 0.001 * k for k in range(3000)]
    path = tmp_path / "run.jsonl"
    (first,) = imported(curve(path, losses[:1500]))["runs"]
    (later,) = imported(curve(path, losses))["runs"]
    assert later["run_id"] == first["run_id"]
    assert (later["sent"], later["present"]) == (1500, 1500)
    steps = client.steps(first["run_id"])
    assert [row["step"] for row in steps] == list(range(1, 3001))
    assert [row["loss"] for row in steps] == losses


def test_nan_inf_missing_and_zero_stay_different(client: Client, imported: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2.0, "lr": 0.0}\n{"step": 2, "loss": "NaN"}\n'
        '{"step": 3, "loss": "Infinity", "lr": 1}\n'
    )
    (run,) = imported(str(path))["runs"]
    rows = client.steps(run["run_id"])
    assert [(r["loss"], r.get("lr")) for r in rows] == [(2.0, 0.0), ("NaN", None), ("Infinity", 1.0)]


def test_steps_that_go_back_become_a_segment(client: Client, imported: Any, tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 2.0} for s in [*range(10), *range(5, 12)]]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (run,) = imported(str(path))["runs"]
    (rank,) = client.get(f"/api/v1/runs/{run['run_id']}").json["ranks"]
    assert (rank["segment"], rank["last_step"]) == (1, 11)
    assert imported(str(path))["runs"][0]["sent"] == 0


def test_several_runs_in_one_file_are_several_runs(client: Client, imported: Any, tmp_path: Path) -> None:
    text = ""
    for name in ("a", "b"):
        text += json.dumps({"run": {"name": name}}) + "\n"
        text += "".join(json.dumps({"step": s, "loss": 2.0}) + "\n" for s in range(20))
    path = tmp_path / "both.jsonl"
    path.write_text(text)
    one, two = imported(str(path), "--project", "nightly")["runs"]
    assert one["run_id"] != two["run_id"]
    assert client.get(f"/api/v1/runs/{two['run_id']}").json["project"] == "nightly"
    one, two = imported(str(path), "--run-id", "mine")["runs"]
    assert (one["run_id"], two["run_id"]) == ("mine", "mine-2")


def test_another_run_under_the_same_id_is_refused(client: Client, imported: Any, tmp_path: Path) -> None:
    imported(curve(tmp_path / "a.jsonl", [2.0] * 30), "--run-id", "same")
    document = imported(curve(tmp_path / "b.jsonl", [1.0] * 40), "--run-id", "same", code=2)
    assert "it is another run. Give --run-id" in document["unread"][0]["error"]
    document = imported(curve(tmp_path / "c.jsonl", [2.0] * 9, first=100), "--run-id", "same", code=2)
    assert "which this log does not hold" in document["unread"][0]["error"]


def test_how_the_run_ended_comes_along(client: Client, imported: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    head = {"run": {"name": "x", "status": "crashed", "reason": "CUDA error: device-side assert"}}
    path.write_text(json.dumps(head) + "\n" + '{"step": 1, "loss": 2.0}\n')
    (run,) = imported(str(path))["runs"]
    shown = client.get(f"/api/v1/runs/{run['run_id']}").json
    assert (shown["status"], shown["reason"]) == ("crashed", "CUDA error: device-side assert")


def test_the_link_is_printed(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = curve(tmp_path / "run.jsonl", [2.0] * 30)
    assert run_import(client, path)[0] == 0
    out = capsys.readouterr().out
    assert "run.jsonl: 30 steps sent" in out
    assert f"http://127.0.0.1:{client.port}" in out or "/runs/run-" in out


def test_a_wrong_token_says_where_the_right_one_is(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = curve(tmp_path / "run.jsonl", [2.0] * 30)
    assert main([path, "--server", f"http://127.0.0.1:{client.port}", "--token", "wrong"]) == 2
    assert "refuses the token (401): give --token or FLOATSCOPE_TOKEN" in capsys.readouterr().err


class Away:
    """A server that is not there."""

    def request(self, *_: object) -> Any:
        raise TransportError("connection refused")

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def test_a_server_that_is_away_is_asked_again_and_then_told() -> None:
    waits: list[float] = []
    server = Server(Target("http://127.0.0.1:1", None), transport=Away(), sleep=waits.append)
    with pytest.raises(ImportFailed, match="start it with floatscope serve"):
        server.find("x")
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_the_token_of_a_local_server_goes_to_no_other_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    env = {"FLOATSCOPE_DATA_DIR": str(tmp_path)}
    assert target(None, None, env).token == "secret"
    assert target("http://elsewhere:8321", None, env).token is None
    assert target(None, "given", env).token == "given"
    assert target(None, None, {**env, "FLOATSCOPE_TOKEN": "set"}).token == "set"


class Odd:
    """Answers every request with one document."""

    def __init__(self, body: dict[str, Any] | None) -> None:
        self._answer = Answer(200, body, "<html>" if body is None else "")

    def request(self, *_: object) -> Answer:
        return self._answer

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize(
    "body", [{"ranks": [5, None]}, {"ranks": "x", "health": {"a": 1}}, {"series": {"loss": [1]}}]
)
def test_a_server_that_answers_otherwise_is_no_internal_error(body: dict[str, Any]) -> None:
    server = Server(Target("http://127.0.0.1:1", None), transport=Odd(body))
    stored = server.find("x")
    assert stored is not None
    assert (stored.positions, stored.health) == ({}, None)
    assert server.scalars_at("x", 0, Position(3, 0, 5), ("loss",)) in ({}, {"loss": None})


def test_another_program_behind_the_address_is_named() -> None:
    server = Server(Target("http://127.0.0.1:1", None), transport=Odd(None))
    with pytest.raises(ImportFailed, match="is not a floatscope server: it answered <html>"):
        server.find("x")


class Counted:
    """Counts the batches that are put."""

    def __init__(self) -> None:
        self.inner = FakeServer()
        self.bodies: dict[str, set[bytes]] = {}
        self.puts = 0

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if method == "PUT":
            self.puts += 1
            self.bodies.setdefault(path, set()).add(body)
        return self.inner.request(method, path, body, headers)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("tensors", [False, True])
def test_two_imports_of_one_log_at_once_send_the_same_bytes(tensors: bool) -> None:
    stats = {"tensors": {"a/input": {"amax": 1.0}}} if tensors else {}
    rows: list[dict[str, Any]] = [{"step": s, "loss": 2.0, **stats} for s in range(9)]
    batch = batch_from_rows(rows, strict=False)
    table: TensorTable = {name: {} for name in batch.tensor_names}
    counted = Counted()
    imports = [Server(Target("http://127.0.0.1:1", None), transport=counted) for _ in range(2)]
    for server in imports:
        server.open("both", RunInfo())
    for seq in range(3):
        part = batch.rows(3 * seq, 3 * seq + 3)
        for server in imports:
            assert server.put("both", 0, seq, part, table) == seq + 1
    assert counted.puts == 6
    assert [len(bodies) for bodies in counted.bodies.values()] == [1, 1, 1]


def test_imports_of_one_log_at_once_help_each_other(client: Client, tmp_path: Path) -> None:
    path = curve(tmp_path / "run.jsonl", [3.0 - 0.0001 * k for k in range(8000)])
    codes: list[int] = []
    imports = [
        threading.Thread(target=lambda: codes.append(run_import(client, path, "--run-id", "both")[0]))
        for _ in range(3)
    ]
    for each in imports:
        each.start()
    for each in imports:
        each.join(60)
    shown = client.get("/api/v1/runs/both").json
    assert codes == [0, 0, 0]
    assert (shown["status"], shown["ranks"][0]["last_step"]) == ("finished", 8000)
    assert len(client.steps("both")) == 8000


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://"])
def test_an_address_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    assert main([curve(tmp_path / "run.jsonl", [2.0] * 3), "--server", url]) == 2
