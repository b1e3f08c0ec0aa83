"""The demo's processes: a worker that trains, a pool that schedules, a server that answers."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from floatscope_trainer.demo.pool import Job, PoolError, train_all
from floatscope_trainer.demo.server import Server, ServerError, running_server
from floatscope_trainer.demo.worker import work

TINY = ("--layers", "1", "--width", "16", "--heads", "1", "--hidden", "16", "--context", "8", "--batch", "1")
GOOD = [*TINY, "--steps", "2", "--run", "tiny", "--quiet"]


class Events:
    """What a pool tells."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def start(self, run: str) -> None:
        self.seen.append(("start", run))

    def step(self, run: str, *, step: int, loss: float) -> None:
        self.seen.append(("step", run, step))

    def end(self, run: str, *, code: int) -> None:
        self.seen.append(("end", run, code))


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Runs write their logs to a directory of the test."""
    monkeypatch.delenv("FLOATSCOPE_URL", raising=False)
    monkeypatch.setenv("FLOATSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path


def test_a_worker_tells_every_step_and_how_each_run_ended(local: Path) -> None:
    jobs = [
        {"run": "good", "commands": [GOOD, GOOD]},
        {"run": "bad", "commands": [[*GOOD, "--inject", "id_out_of_range@1"], GOOD]},
        {"run": "wrong", "commands": [["--steps", "none"]]},
    ]
    told = io.StringIO()
    work(io.StringIO("".join(json.dumps(job) + "\n" for job in jobs)), told)
    messages = [json.loads(line) for line in told.getvalue().splitlines()]
    assert [m["step"] for m in messages if m["run"] == "good" and "step" in m] == [0, 1] * 2
    assert [m["step"] for m in messages if m["run"] == "bad" and "step" in m] == [0]
    assert all(float(m["loss"]) > 0 for m in messages if "loss" in m)
    assert [(m["run"], m["exit"]) for m in messages if "exit" in m] == [("good", 0), ("bad", 1), ("wrong", 2)]


@pytest.fixture
def fake_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Worker processes without torch: the first word of a command says what to do."""
    code = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        "    if job['commands'][0][0] == 'die': sys.exit('broken')\n"
        "    print(json.dumps({'run': job['run'], 'step': 0, 'loss': 'nan'}), flush=True)\n"
        "    print(json.dumps({'run': job['run'], 'exit': int(job['commands'][0][0])}), flush=True)\n"
    )
    script = tmp_path / "worker.py"
    script.write_text(code, encoding="utf-8")
    monkeypatch.setattr("floatscope_trainer.demo.pool.WORKER", (sys.executable, str(script)))


@pytest.mark.usefixtures("fake_worker")
def test_a_fork_starts_after_its_parent_is_over(tmp_path: Path) -> None:
    events = Events()
    jobs = [Job("fork", (("0",),), after="parent"), Job("other", (("1",),)), Job("parent", (("0",),))]
    train_all(jobs, workers=2, env={}, log=tmp_path / "log", watcher=events)
    assert events.seen.index(("start", "fork")) > events.seen.index(("end", "parent", 0))
    assert {event for event in events.seen if event[0] == "end"} == {
        ("end", "fork", 0),
        ("end", "other", 1),
        ("end", "parent", 0),
    }


@pytest.mark.usefixtures("fake_worker")
@pytest.mark.parametrize(("argv", "message"), [("die", "ended by itself"), ("2", "could not be started")])
def test_a_broken_worker_ends_the_demo_and_names_its_output(argv: str, message: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(PoolError, match=message) as error:
        train_all([Job("a", ((argv,),))], workers=1, env={}, log=log, watcher=Events())
    assert str(log) in str(error.value)
    if argv == "die":
        assert "broken" in log.read_text(encoding="utf-8")


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ok = self.headers["Authorization"] == "Bearer good"
        self.send_response(200 if ok else 401)
        self.end_headers()
        self.wfile.write(b'{"a": 1}' if self.path.endswith("/json") else b"text")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_of_the_environment_is_used(address: str, tmp_path: Path) -> None:
    env = {"FLOATSCOPE_URL": f"{address}/", "FLOATSCOPE_TOKEN": "good"}
    with running_server(port=None, data_dir=tmp_path, env=env) as server:
        assert server.process is None
        assert server.get("/json") == {"a": 1}
        assert server.get_text("/text") == "text"
        assert server.link() == f"{address}/?token=good"


def test_answers_that_are_no_answers_are_named(address: str) -> None:
    with pytest.raises(ServerError, match="answered 401"):
        Server(url=address, token="bad").get("/json")
    with pytest.raises(ServerError, match="did not answer with JSON"):
        Server(url=address, token="good").get("/text")
    with pytest.raises(ServerError, match="does not answer"):
        Server(url="http://127.0.0.1:9", token="").get("/json")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="expected an address like http"),
        running_server(port=None, data_dir=tmp_path, env={"FLOATSCOPE_URL": "host:8321"}),
    ):
        pass


def test_a_server_that_cannot_start_says_why(tmp_path: Path, address: str) -> None:
    port = int(address.rpartition(":")[2])
    with (
        pytest.raises(ServerError, match=r"floatscope serve ended with code .*serve\.log"),
        running_server(port=port, data_dir=tmp_path, env={"PATH": ""}),
    ):
        pass
