"""The monitor as a training loop sees it, against a server on a socket."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
import weakref
from decimal import Decimal
from fractions import Fraction
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import floatscope
from tests.agent.conftest import read_log
from tests.agent.fake_server import HttpServer
from tests.agent.training import backward


def watch(server: HttpServer, **settings: Any) -> floatscope.Monitor:
    options: dict[str, Any] = {
        "url": server.url,
        "token": "t",
        "gpu": False,
        "strict": True,
        "flush_every_s": 0.05,
    }
    return floatscope.watch(run="monitor test", **{**options, **settings})


def test_steps_arrive_with_their_numbers_and_times(server: HttpServer) -> None:
    before = time.time()
    with watch(server) as monitor:
        for step in (10, 11, 12):
            monitor.step(step, loss=step / 10)
    rows = server.server.rows(monitor.run_id)
    assert [(row["step"], row["loss"]) for row in rows] == [(10, 1.0), (11, 1.1), (12, 1.2)]
    assert all(before <= row["time"] <= time.time() for row in rows)
    assert "step_time_s" not in rows[0]
    assert 0 <= rows[1]["step_time_s"] < 5
    assert server.server.finished == [(monitor.run_id, {"status": "finished", "reason": None})]


def test_without_a_number_steps_count_from_zero_and_go_on_from_a_given_one(server: HttpServer) -> None:
    with watch(server) as monitor:
        for step in (None, None, 100, None):
            monitor.step(step)
    assert [row["step"] for row in server.server.rows(monitor.run_id)] == [0, 1, 100, 101]


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("not to be touched")


def test_values_of_every_kind(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    grad = (torch.ones(1, requires_grad=True) * 2).sum()
    values: dict[str, Any] = {
        "python": 1.5, "integer": 7, "huge": 10**400, "yes": True, "np": np.float32(0.25),
        "np0d": np.array(3), "np1": np.array([4.0]), "np_many": np.ones(3), "tensor": torch.tensor(5.0),
        "with_grad": grad,
        "bf16": torch.tensor(1.0, dtype=torch.bfloat16), "int_tensor": torch.tensor(2**40),
        "bool_tensor": torch.tensor(True), "one": torch.tensor([[6.0]]), "many": torch.ones(3),
        "complex": torch.tensor(1j), "meta": torch.empty((), device="meta"), "none": None, "text": "1.0",
        "decimal": Decimal("1.5"), "fraction": Fraction(1, 4), "nan": math.nan, "inf": -math.inf, "list": [1],
        "dict": {"a": 1, "b": {"c": 2.5, 3: 1.0, "d": "text"}}, "odd": Odd(), "empty": torch.empty(0),
    }  # fmt: skip
    with watch(server) as monitor:
        monitor.step(**values)
        monitor.step(**values)
    first, second = server.server.rows(monitor.run_id)
    numbers = {key: value for key, value in first.items() if key not in ("step", "time")}
    assert repr(dict(sorted(numbers.items()))) == repr(
        {
            "bf16": 1.0, "bool_tensor": 1.0, "dict/a": 1.0, "dict/b/c": 2.5, "fraction": 0.25,
            "inf": -math.inf,
            "int_tensor": 2.0**40, "integer": 7.0, "nan": math.nan, "np": 0.25, "np0d": 3.0, "np1": 4.0,
            "one": 6.0, "python": 1.5, "tensor": 5.0, "with_grad": 2.0, "yes": 1.0,
        }
    )  # fmt: skip
    assert set(second) - {"step_time_s"} == set(first)
    for name in ("np_many", "many", "complex", "meta", "text", "list", "dict/b/d", "odd", "huge", "decimal"):
        assert sum(f": {name} is a" in r.getMessage() for r in caplog.records) == 1, name
    assert grad.requires_grad, "the loop's tensor is left as it is"


def test_names_that_cannot_be_are_refused_once_and_the_rest_arrives(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["x" * 2000, "line\nbreak", "", "tensors", "rank"]
    with watch(server) as monitor:
        for _ in range(3):
            odd: dict[Any, float] = {7: 1.0, ("a", "b"): 2.0, "<b>markup</b>": 3.0}
            monitor.log({**dict.fromkeys(names, 1.0), **odd})
            monitor.step(loss=1.0)
    rows = server.server.rows(monitor.run_id)
    assert [set(row) - {"step", "time", "step_time_s"} for row in rows] == [{"loss", "<b>markup</b>"}] * 3
    assert sum("not recorded" in r.getMessage() for r in caplog.records) == len(names) + 2


def test_a_huge_dictionary_is_cut_off(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with watch(server) as monitor:
        monitor.log({f"name{i}": float(i) for i in range(20_000)})
        monitor.step(loss=1.0)
    (row,) = server.server.rows(monitor.run_id)
    assert 2000 < len(row) < 4096
    assert sum("different scalars" in r.getMessage() for r in caplog.records) == 1


def test_a_step_that_is_no_number_is_replaced_and_reported(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with watch(server) as monitor:
        for step in (5, "six", -1, 2**60, np.int64(9), torch.tensor(10), 1.5):
            monitor.step(step)  # type: ignore[arg-type]
    assert [row["step"] for row in server.server.rows(monitor.run_id)] == [5, 6, 7, 8, 9, 10, 11]
    assert sum("step has to be" in r.getMessage() for r in caplog.records) == 1


def test_log_adds_to_the_step_under_way(server: HttpServer) -> None:
    with watch(server) as monitor:
        monitor.step(loss=1.0)
        monitor.log({"eval_loss": 2.0})
        monitor.log({"accuracy": torch.tensor(0.5)}, step=1)
        monitor.step(loss=3.0)
        monitor.log({"late": 9.0}, step=1)
        monitor.step()
    rows = server.server.rows(monitor.run_id)
    assert (rows[1]["eval_loss"], rows[1]["accuracy"], rows[1]["loss"]) == (2.0, 0.5, 3.0)
    assert rows[2]["late"] == 9.0


def test_what_the_server_asks_for_is_kept_and_followed(server: HttpServer) -> None:
    server.server.settings = {"stats_every": 1, "until_step": 10_000}
    model = torch.nn.Linear(4, 4)
    monitor = watch(server, model=model)
    deadline = time.monotonic() + 5
    while not monitor.settings and time.monotonic() < deadline:
        backward(model(torch.ones(2, 4)).sum())
        monitor.step()
        time.sleep(0.01)
    for _ in range(3):
        backward(model(torch.ones(2, 4)).sum())
        monitor.step()
    monitor.finish()
    assert monitor.settings == {"stats_every": 1, "until_step": 10_000}
    assert all("model/input" in row["tensors"] for row in server.server.rows(monitor.run_id)[-2:])


def test_a_loss_that_is_not_finite_brings_a_closer_look(server: HttpServer) -> None:
    model = torch.nn.Linear(4, 4)
    with watch(server, model=model, stats_every=100) as monitor:
        for step in range(9):
            backward(model(torch.ones(2, 4)).sum())
            monitor.step(loss=math.nan if step == 2 else 1.0)
    measured = [row["step"] for row in server.server.rows(monitor.run_id) if "tensors" in row]
    assert measured == [0, 3, 4, 5]


def test_two_monitors_of_one_run_and_rank_get_their_own_ids(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with watch(server, run_id="same") as one, watch(server, run_id="same") as two:
        one.step(loss=1.0)
        two.step(loss=2.0)
    assert one.run_id == "same"
    assert two.run_id.startswith("same-")
    assert any("another monitor" in r.getMessage() for r in caplog.records)
    assert server.server.rows(two.run_id)[0]["loss"] == 2.0
    with watch(server, run_id="same") as three:  # the first one has ended: this resumes its run
        three.step(1, loss=3.0)
    assert [row["loss"] for row in server.server.rows("same")] == [1.0, 3.0]


def test_two_ranks_of_one_run_in_one_process(server: HttpServer) -> None:
    with watch(server, run_id="both", rank=0) as zero, watch(server, run_id="both", rank=1) as one:
        zero.step(loss=1.0)
        one.step(loss=2.0)
    assert zero.run_id == one.run_id == "both"
    assert server.server.rows("both", 1)[0]["loss"] == 2.0
    assert len(server.server.finished) == 1, "rank 0 speaks for all when all is well"
    with watch(server, run_id="both", rank=1) as one:
        one.finish("crashed", "only here")
    assert server.server.finished[-1] == ("both", {"status": "crashed", "reason": "only here"})


def test_a_hanging_server_holds_up_neither_steps_nor_the_end_for_long(server: HttpServer) -> None:
    def hang(handler: BaseHTTPRequestHandler) -> bool:
        time.sleep(3.0)
        return True

    server.misbehave = hang
    monitor = watch(server, close_timeout_s=0.3)
    slowest = 0.0
    for _ in range(2000):
        began = time.perf_counter()
        monitor.step(loss=1.0)
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < 1.0  # a step that waited for the server would take 3 s
    began = time.perf_counter()
    monitor.finish()
    assert time.perf_counter() - began < 2.0


def test_a_server_that_comes_back_gets_everything(server: HttpServer) -> None:
    down = threading.Event()
    down.set()

    def refuse(handler: BaseHTTPRequestHandler) -> bool:
        if down.is_set():
            handler.close_connection = True
        return down.is_set()

    server.misbehave = refuse
    monitor = watch(server)
    for _ in range(50):
        monitor.step(loss=1.0)
        time.sleep(0.002)
    down.clear()
    monitor.step(loss=2.0)
    monitor.finish()
    assert [row["step"] for row in server.server.rows(monitor.run_id)] == list(range(51))


def test_after_finish_nothing_happens_any_more(server: HttpServer) -> None:
    before = set(threading.enumerate())
    monitor = watch(server)
    monitor.step(loss=1.0)
    monitor.finish()
    monitor.step(loss=2.0)
    monitor.batch(torch.ones(2))
    monitor.log({"a": 1})
    monitor.finish("failed")
    assert len(server.server.rows(monitor.run_id)) == 1
    assert len(server.server.finished) == 1
    started = set(threading.enumerate()) - before
    assert not [t for t in started if t.name.startswith("floatscope")]


def test_an_unknown_end_is_taken_as_failed(server: HttpServer) -> None:
    monitor = watch(server)
    monitor.finish("exploded")  # not one of the three
    assert server.server.finished[0][1]["status"] == "failed"


def test_off_does_nothing(server: HttpServer) -> None:
    model = torch.nn.Linear(2, 2)
    monitor = watch(server, mode="off", model=model)
    monitor.batch(torch.ones(2))
    monitor.step(loss=1.0)
    monitor.finish()
    assert not server.server.requests
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_forked_child_is_silent_and_the_parent_goes_on(server: HttpServer) -> None:
    monitor = watch(server)
    monitor.step(loss=1.0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(100):
                monitor.step(loss=-1.0)
            monitor.batch(torch.ones(3))
            monitor.finish("crashed", "from the child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    monitor.step(loss=2.0)
    monitor.finish()
    assert [row["loss"] for row in server.server.rows(monitor.run_id)] == [1.0, 2.0]
    assert server.server.finished == [(monitor.run_id, {"status": "finished", "reason": None})]


def test_server_and_log_file_together(server: HttpServer, tmp_path: Path) -> None:
    path = tmp_path / "also.jsonl"
    with watch(server, log_path=path) as monitor:
        for _ in range(5):
            monitor.step(loss=0.5)
    _, rows = read_log(path)
    assert rows == server.server.rows(monitor.run_id)


def test_a_finished_monitor_leaves_no_hook_behind(server: HttpServer) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = watch(server, model=model, optimizer=optimizer)
    assert model[1]._forward_hooks
    monitor.finish()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_finished_monitor_keeps_neither_model_nor_optimizer_alive(server: HttpServer) -> None:
    """A loop that trains one model after another may keep its monitors."""

    def train() -> tuple[floatscope.Monitor, list[weakref.ref[Any]]]:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters())
        monitor = floatscope.watch(model, optimizer, run="kept", mode="local", gpu=False, stats_every=1)
        for _ in range(2):
            ids = torch.ones(2, 4)
            monitor.batch(ids)
            backward(model(ids).sum())
            optimizer.step()
            monitor.step(loss=1.0)
        monitor.finish()
        return monitor, [weakref.ref(thing) for thing in (model, optimizer, model.weight, ids)]

    monitor, held = train()
    gc.collect()
    assert [ref() for ref in held] == [None] * 4
    assert monitor.findings == ()
