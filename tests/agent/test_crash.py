"""What a process leaves behind that ends without ``finish``, tried in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from floatscope.spool import Spool
from tests.agent.conftest import read_log
from tests.agent.fake_server import HttpServer

LOOP = """
    import os, sys, threading
    import torch
    import floatscope
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    monitor = floatscope.watch(model, run="crash", gpu=False, strict=True, **SETTINGS)
    def train(bad_id, at=2):
        for step in range(at + 1):
            ids = torch.zeros(2, 3, dtype=torch.int64)
            if step == at:
                ids[0, 0] = bad_id
            monitor.batch({"input_ids": ids, "labels": ids})
            loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
            monitor.step(loss=loss)
"""

PLAIN = """
    import os, sys, threading
    import floatscope
    monitor = floatscope.watch(run="crash", gpu=False, strict=True, **SETTINGS)
    def train(bad_id, at=2):
        for step in range(at + 1):
            monitor.batch([1, 2])
            if step == at and bad_id:
                raise IndexError("index out of range in self")
            monitor.step(loss=1.0)
"""


def run(code: str, settings: dict[str, Any], *, loop: str = PLAIN) -> subprocess.CompletedProcess[str]:
    """A process of its own; torch takes seconds to import, so most do without."""
    program = textwrap.dedent(loop).replace("SETTINGS", repr(settings)) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def test_an_id_out_of_range_leaves_its_batch_and_its_exception(server: HttpServer) -> None:
    done = run("train(bad_id=10)", {"url": server.url, "run_id": "crash"}, loop=LOOP)
    assert done.returncode == 1
    assert "IndexError" in done.stderr
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames
    assert not any("floatscope" in line for line in frames), "nothing of ours in the traceback"
    (ending,) = [body for _, body in server.server.finished]
    assert ending["status"] == "crashed"
    assert ending["reason"].startswith("IndexError: ")
    rows = server.server.rows("crash")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert (rows[2]["input_id_max"], rows[2]["input_ids_out_of_range"], rows[2]["label_tokens"]) == (10, 1, 6)
    assert "loss" not in rows[2]


def test_the_same_in_a_local_log(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run("train(bad_id=-1)", {"mode": "local", "log_path": str(path)}, loop=LOOP)
    info, rows = read_log(path)
    assert info["status"] == "crashed"
    assert info["vocab_size"] == 10
    assert rows[-1]["input_id_min"] == -1
    assert rows[-1]["input_ids_out_of_range"] == 1


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("train(0)", "finished", None),
        ("train(0); sys.exit(3)", "finished", None),
        ("train(0); raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("train(0); raise RuntimeError('a\\nb' * 3)", "crashed", "RuntimeError: a ba ba b"),
        ("with monitor:\n    train(0)\n    raise ValueError('inside')", "crashed", "ValueError: inside"),
        (
            "thread = threading.Thread(target=train, args=(99,)); thread.start(); thread.join()",
            "crashed",
            None,
        ),
        ("train(0); t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", "finished", None),
    ],
)
def test_how_a_run_ended(server: HttpServer, code: str, status: str, reason: str | None) -> None:
    run(code, {"url": server.url, "run_id": "crash"})
    (ending,) = [body for _, body in server.server.finished]
    assert ending["status"] == status
    if reason is not None or status == "finished":
        assert ending["reason"] == reason
    assert [row["step"] for row in server.server.rows("crash")] == [0, 1, 2]


def test_hooks_of_others_are_called_and_put_back(server: HttpServer) -> None:
    code = """
    calls = []
    mine = lambda *args: calls.append(args[0].__name__)
    first = floatscope.watch(run="first", gpu=False, url=SETTINGS_URL)
    before = sys.excepthook
    sys.excepthook = mine
    second = floatscope.watch(run="second", gpu=False, url=SETTINGS_URL)
    try:
        raise OSError("x")
    except OSError:
        sys.excepthook(*sys.exc_info())
    assert calls == ["OSError"]
    assert sys.excepthook is mine
    first.finish()
    sys.excepthook = before
    """.replace("SETTINGS_URL", repr(server.url))
    done = run(textwrap.dedent(code), {"url": server.url, "run_id": "crash"})
    assert done.returncode == 0, done.stderr


def test_a_crashed_child_process_does_not_speak_for_its_parent(server: HttpServer) -> None:
    code = """
    train(0)
    child = os.fork()
    if child == 0:
        try:
            train(99)
        except IndexError:
            sys.excepthook(*sys.exc_info())
            os._exit(0)
    os.waitpid(child, 0)
    monitor.step(3, loss=1.0)
    """
    run(code, {"url": server.url, "run_id": "crash"})
    assert server.server.finished == [("crash", {"status": "finished", "reason": None})]
    assert [row["step"] for row in server.server.rows("crash")] == [0, 1, 2, 3]


def test_a_server_that_hangs_delays_the_exit_little_and_what_it_did_not_take_is_kept(
    server: HttpServer, tmp_path: Path
) -> None:
    server.misbehave = lambda handler: bool(handler.rfile.read(1))  # waits for a byte that never comes
    given = {"url": server.url, "run_id": "hung", "close_timeout_s": 0.5, "spool_dir": str(tmp_path)}
    done = run("train(10)", given)
    assert done.returncode == 1
    assert done.stderr.index("IndexError") < done.stderr.index("could not be delivered")
    kept = tmp_path / "hung" / "rank0.spool"
    assert str(kept) in done.stderr
    assert f"floatscope resend {tmp_path}" in done.stderr
    about = json.loads((kept / "run.json").read_text())
    assert (about["run"]["run_id"], about["status"]) == ("hung", "crashed")
    assert about["reason"].startswith("IndexError")
    spool = Spool.open(kept, limit_bytes=2**20)
    assert spool.steps == 3  # two whole ones and the batch of the one that crashed
    spool.close()
