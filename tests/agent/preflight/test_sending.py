"""The preflight that the agent sends with a run, and the one that a user hands over."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import floatscope
from floatscope.catalog import Catalog
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.preflight.facts import Facts
from floatscope.preflight.sending import SentPreflight
from floatscope.protocol.runinfo import RunInfo
from tests.agent.conftest import read_log
from tests.agent.fake_server import HttpServer
from tests.agent.preflight.made import FACTS, check, preflight

DOCUMENT = preflight([check("a", "warn")]).to_json()


def outlet(catalog: Catalog, *, gather: Any = lambda: FACTS, strict: bool = True) -> SentPreflight:
    def examine(facts: Facts, recipe: Mapping[str, Any]) -> Mapping[str, Any]:
        return preflight([check(f"recipe.{recipe.get('name')}", "pass")], facts=facts).to_json()

    return SentPreflight(catalog, gather=gather, examine=examine, guard=Guard(strict=strict))


def works(made: SentPreflight, catalog: Catalog, *, until: str) -> None:
    """Turns of the sender's thread until the description names that check."""
    for _ in range(200):
        made.work()
        if until in str(catalog.info().preflight):
            return
        time.sleep(0.01)
    raise AssertionError(f"{until} did not come: {catalog.info().preflight}")


def test_it_waits_for_a_step_and_is_made_anew_when_the_recipe_is_known() -> None:
    catalog = Catalog(RunInfo(name="r"))
    made = outlet(catalog)
    made.work()
    time.sleep(0.05)
    made.work()
    assert catalog.info().preflight == {}
    made.accept([])
    works(made, catalog, until="recipe.None")
    first = catalog.info()
    made.work()
    assert catalog.info() is first
    catalog.describe(recipe={"name": "mxfp8"})
    works(made, catalog, until="recipe.mxfp8")
    made.finish("finished", None)
    assert made.is_done


def test_a_machine_that_does_not_answer_holds_nothing_up() -> None:
    catalog, stuck = Catalog(RunInfo()), threading.Event()
    made = outlet(catalog, gather=lambda: stuck.wait(20) and FACTS)
    made.accept([])
    began = time.monotonic()
    for _ in range(20):
        made.work()
    made.finish("finished", None)
    assert time.monotonic() - began < 1
    assert made.is_done
    assert catalog.info().preflight == {}
    stuck.set()


def test_what_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Facts:
        raise OSError("no disk")

    catalog = Catalog(RunInfo())
    made = outlet(catalog, gather=broken, strict=False)
    made.accept([])
    for _ in range(5):
        made.work()
        time.sleep(0.01)
    made.finish("finished", None)
    assert catalog.info().preflight == {}
    assert [r.message for r in caplog.records if "no disk" in r.message]


def train(steps: int = 6, **settings: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = (
        floatscope.watch(model, optimizer, run="r", gpu=False, diagnose=False, **settings)
        if settings
        else None
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(step, loss=loss)
    if monitor is not None:
        monitor.finish()
    return [p.detach().clone() for p in model.parameters()]


def test_a_run_has_it_and_the_weights_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    log, before = tmp_path / "x.jsonl", set(threading.enumerate())
    watched = train(mode="local", log_path=log, strict=True)
    assert all(torch.equal(a, b) for a, b in zip(train(), watched, strict=True))
    run, rows = read_log(log)
    found = run["preflight"]
    assert len(rows) == 6
    assert found["light"] is True
    assert found["versions"]["torch"] == torch.__version__
    assert found["casts"]["saturating_cast"] is run["recipe"]["saturating_cast"]
    assert len(json.dumps(found)) < 32_768
    for thread in set(threading.enumerate()) - before:
        if "preflight" in thread.name:
            thread.join(20)
            assert not thread.is_alive(), "nothing goes on behind a run that has ended"


def test_it_reaches_the_server_and_only_the_first_rank_sends_it(server: HttpServer, tmp_path: Path) -> None:
    for rank in (0, 1):
        train(mode="server", url=server.url, run_id=f"r{rank}", rank=rank, strict=True)
    assert {run_id for run_id, run in server.server.runs.items() if "preflight" in run} == {"r0"}
    assert set(server.server.runs) == {"r0", "r1"}


def test_one_that_is_handed_over_is_sent_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "preflight.json"
    path.write_text(json.dumps(DOCUMENT))
    for settings in ({"preflight": path}, {"preflight": DOCUMENT}, {"preflight": str(path)}):
        train(mode="local", log_path=tmp_path / "a.jsonl", run_id="a", **settings)
        assert read_log(tmp_path / "a.jsonl")[0]["preflight"] == DOCUMENT
    monkeypatch.setenv("FLOATSCOPE_PREFLIGHT", str(path))
    train(mode="local", log_path=tmp_path / "b.jsonl", run_id="b")
    assert read_log(tmp_path / "b.jsonl")[0]["preflight"] == DOCUMENT
    train(mode="local", log_path=tmp_path / "c.jsonl", run_id="c", preflight=False)
    assert "preflight" not in read_log(tmp_path / "c.jsonl")[0]


def test_a_wrong_argument_raises_and_a_wrong_variable_is_said() -> None:
    with pytest.raises(ValueError, match=r"preflight: /none: expected a file written by"):
        from_env({"run": "x", "preflight": "/none"}, {})
    with pytest.raises(ValueError, match=r"document\.schema"):
        from_env({"run": "x", "preflight": {"schema": "x"}}, {})
    config, complaints = from_env({"run": "x"}, {"FLOATSCOPE_PREFLIGHT": "/none"})
    assert config.preflight is None
    assert complaints[0].startswith("FLOATSCOPE_PREFLIGHT: /none")
    assert from_env({"run": "x", "preflight": True}, {})[0].preflight is None


def test_the_agent_starts_no_process_and_loads_neither_torch_nor_nvml(tmp_path: Path) -> None:
    code = (
        "import sys, subprocess, os, floatscope\n"
        "def no(*a, **k): raise AssertionError('a process was started')\n"
        "subprocess.Popen.__init__ = no; os.system = no; os.fork = no\n"
        f"m = floatscope.watch(run='x', mode='local', gpu=False, log_path={str(tmp_path / 'x.jsonl')!r}, "
        "diagnose=False, strict=True)\n"
        "import time\n"
        "m.step(loss=1.0); time.sleep(1.0); m.step(loss=1.0); m.finish()\n"
        "assert not {'torch', 'pynvml', 'transformer_engine', 'torchao'} & set(sys.modules), 'loaded'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found = read_log(tmp_path / "x.jsonl")[0]["preflight"]
    nvml = next(one for one in found["checks"] if one["name"] == "gpu.nvml")
    assert (nvml["status"], found["decision"]) == ("unknown", "unknown")
