"""Whatever a loop hands to the monitor, and however it calls it: training is the same bit for bit with and
without the agent, and what is good in a call is recorded."""

from __future__ import annotations

import threading
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import floatscope
from tests.agent.conftest import read_log
from tests.agent.same_weights import SETTINGS, Watcher, check
from tests.agent.test_same_weights import adam, data, net, turn

each_setting = pytest.mark.parametrize("settings", SETTINGS)


class Hostile:
    """Raises whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("refused")

    __len__ = __iter__ = __bool__ = __float__ = __int__ = __index__ = __str__ = __repr__ = __hash__ = _refuse
    __getitem__ = __eq__ = __contains__ = _refuse


class HostileDict(UserDict[Any, Any]):
    """A mapping that cannot be gone through."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not to be gone through")

    def items(self) -> Any:
        """Refused."""
        raise RuntimeError("no items")


class HostileList(list[Any]):
    """A list without a length, a slice or an end."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not to be gone through")

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("no items")


class HostileReal(float):
    """A number that is none."""

    def __float__(self) -> float:
        raise RuntimeError("no number")


def cyclic() -> list[Any]:
    """Holds itself, twice."""
    made: list[Any] = [torch.ones(2)]
    made += [made, {"again": made}]
    return made


def cyclic_dict() -> dict[str, Any]:
    """A number, and itself."""
    made: dict[str, Any] = {"x": 1.0}
    made["self"] = made
    return made


def deep(depth: int = 5000) -> Any:
    """Dicts in lists, beyond what recursion bears."""
    made: Any = torch.ones(2)
    for level in range(depth):
        made = [made] if level % 2 else {"in": made}
    return made


BATCHES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "text": lambda: "a batch",
    "number": lambda: 7,
    "huge dict": lambda: {f"key{n}": torch.ones(1) for n in range(10_000)},
    "long list": lambda: [torch.ones(1)] * 100_000,
    "deep": deep,
    "cyclic": cyclic,
    "generator": lambda: (torch.ones(1) for _ in range(3)),
    "endless": lambda: iter(int, 1),
    "hostile": Hostile,
    "hostile dict": lambda: HostileDict(x=torch.ones(1)),
    "hostile list": lambda: HostileList([torch.ones(1)]),
    "hostile parts": lambda: {"a": Hostile(), "x": torch.ones(2), "l": HostileList(), "d": HostileDict()},
    "odd keys": lambda: {None: torch.ones(1), ("a", 1): torch.ones(1), 3: torch.ones(1), "\0\ud800": 1},
    "numpy": lambda: {"a": np.ones(3), "o": np.array([object()]), "s": np.array(["x"]), "z": np.float32(1)},
    "read-only numpy": lambda: np.broadcast_to(np.ones(1), (4,)),
    "empty": lambda: [torch.empty(0), [], {}, ()],
    "dtypes": lambda: [
        torch.ones(2, dtype=d) for d in (torch.bool, torch.uint8, torch.complex64, torch.int16)
    ],
    "low": lambda: [torch.ones(4).to(torch.float8_e5m2), torch.ones(2, dtype=torch.bfloat16)],
    "strange ids": lambda: {"input_ids": torch.tensor([[-(2**62), 2**62]]), "labels": torch.tensor(3)},
    "nan": lambda: torch.full((3,), float("nan")),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.empty(3, device="meta"),
    "expanded": lambda: torch.ones(1).expand(1_000_000),
    "with a graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "names": lambda: [nn.Linear(2, 2), torch.nn.functional, int, defaultdict(list)],
}


@pytest.mark.filterwarnings("ignore")
@each_setting
def test_batches_of_anything(settings: str, tmp_path: Path) -> None:
    """Each of them is passed over or looked at in part; steps before and after are all recorded."""

    def job(watch: Watcher) -> Any:
        model = net()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step, make in enumerate(BATCHES.values()):
            given = make()
            monitor.batch(given)
            monitor.batch(given, data_id=given, step=given)
            turn(model, optimizer, monitor, step)
            monitor.capture(step=given)
        return model

    found = check(
        job, tmp_path, settings=settings, rows=len(BATCHES), fails=("keeping batches", "input check")
    )
    assert all(row["loss"] > 0 for row in found.rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_does_not_spoil_the_next(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Thirty of a kind in a row: the check of batches still works on the one after; only after containers
    that cannot be gone through is it switched off, with a line."""
    log = tmp_path / "run.jsonl"
    monitor = floatscope.watch(run="batches", mode="local", log_path=log, gpu=False, diagnose=False)
    for _ in range(30):
        monitor.batch(BATCHES[name]())
        monitor.step(loss=1.0)
    monitor.batch({"x": torch.tensor([1.0, float("inf")])})
    monitor.step(loss=1.0)
    monitor.finish()
    _, rows = read_log(log)
    assert len(rows) == 31
    if name in ("hostile dict", "hostile list", "hostile parts"):
        assert "input check failed 20 times and is switched off" in caplog.text
    else:
        assert rows[-1]["input_inf_count"] == 1


JUNK: dict[str, Callable[[], Any]] = {
    "hostile": Hostile,
    "hostile_number": lambda: HostileReal(1.0),
    "hostile_dict": lambda: HostileDict(x=1),
    "text": lambda: "1.0",
    "huge": lambda: 10**4000,
    "complex": lambda: 1j,
    "many": lambda: torch.ones(3),
    "empty": lambda: torch.empty(0),
    "meta": lambda: torch.empty((), device="meta"),
    "sparse": lambda: torch.ones(1).to_sparse(),
    "low": lambda: torch.ones(()).to(torch.float8_e4m3fn),
    "flag": lambda: torch.tensor(True),
    "graph": lambda: torch.ones(1, requires_grad=True) * 3,
    "nested": lambda: {"a": {"b": Hostile()}, "c": 1},
    "deep": deep,
    "cyclic": lambda: cyclic_dict(),
    "list": lambda: [1.0, 2.0],
    "array": lambda: np.array([[5.0]]),
    "object": lambda: np.array([object()]),
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "function": lambda: print,
}


@pytest.mark.filterwarnings("ignore")
@each_setting
def test_scalars_of_anything(settings: str, tmp_path: Path) -> None:
    """What is no number is left out, with one line; the numbers beside it are recorded at every step."""

    def job(watch: Watcher) -> Any:
        model = net()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step in range(30):
            junk = {name: make() for name, make in JUNK.items()}
            odd: dict[Any, Any] = {5: 1.0, "": 2.0, "a" * 10_000: 3.0, ("x",): 1.0}
            monitor.log({**junk, **odd, "before": 1.0})
            for bad in (Hostile(), None, [("a", 1)], "text", 5, *([HostileDict()] if step < 5 else [])):
                monitor.log(bad)
            turn(model, optimizer, monitor, step)
            monitor.step(step, **junk, after=2.0)
        return model

    fails = ("recording a scalar failed", "log() failed")
    found = check(job, tmp_path, settings=settings, fails=fails)
    assert [row["step"] for row in found.rows if row.get("after") == 2.0] == list(range(30))
    assert sum(row.get("before") == 1.0 for row in found.rows) == 30
    assert found.rows[-1]["array"] == 5.0
    assert len(found.said) < 2 * len(JUNK) + 20


@each_setting
def test_huge_dicts_of_scalars(settings: str, tmp_path: Path) -> None:
    """Ten thousand names at a step: as many as a run may have are recorded, the loop's own among them."""

    def job(watch: Watcher) -> Any:
        model = net()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step in range(3):
            monitor.step(step, loss=1.0)
            monitor.log({f"group{n % 100}": {f"value{n}": n} for n in range(10_000)} | {"big": {"x": 1}})
            monitor.log({f"flat{n}": torch.tensor(n) for n in range(10_000)})
            turn(model, optimizer, monitor, step)
        return model

    found = check(job, tmp_path, settings=settings)
    assert all("loss" in row for row in found.rows)
    assert max(len(row) for row in found.rows) > 100


def train_by(calls: Callable[[Any, int, Tensor], None], *, steps: int = 8) -> Callable[[Watcher], Any]:
    """A job that calls the monitor as ``calls(monitor, step, loss)`` says."""

    def job(watch: Watcher) -> Any:
        model = net()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step in range(steps):
            loss = model(data(step)).pow(2).mean()
            torch.autograd.backward(loss)
            optimizer.step()
            calls(monitor, step, loss)
            optimizer.zero_grad()
        return model

    return job


def in_a_thread(monitor: Any, step: int, loss: Tensor) -> None:
    """Each step from a thread of its own."""
    thread = threading.Thread(target=monitor.step, kwargs={"loss": loss})
    thread.start()
    thread.join()


def in_two_threads(monitor: Any, step: int, loss: Tensor) -> None:
    """Two threads call everything at once."""

    def call() -> None:
        for _ in range(20):
            monitor.batch({"x": torch.ones(2)})
            monitor.log({"a": 1.0})
            monitor.step(loss=1.0)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def out_of_order(monitor: Any, step: int, loss: Tensor) -> None:
    """Steps backwards, with gaps, with numbers that are none."""
    odd = [5, 3, 3, 2**62, -1, "7", 2.5, float("nan")][step]
    monitor.step(odd, loss=loss)


def twice(monitor: Any, step: int, loss: Tensor) -> None:
    """Each step ended twice, with the same number and with the next."""
    monitor.step(step, loss=loss)
    monitor.step(step, loss=loss)
    monitor.step(loss=loss)


def never(monitor: Any, step: int, loss: Tensor) -> None:
    """A monitor that nobody calls."""


def after_finish(monitor: Any, step: int, loss: Tensor) -> None:
    """The run ends in the middle, and the loop goes on calling."""
    if step == 3:
        monitor.finish()
        monitor.finish("nonsense", 5)
    monitor.batch(loss)
    monitor.log({"a": 1})
    monitor.step(loss=loss)


def only_log(monitor: Any, step: int, loss: Tensor) -> None:
    """Nothing but log, with steps that go back."""
    monitor.log({"loss": loss}, step=[0, 1, 1, 0, 5, 4, -3, 2][step])


@each_setting
@pytest.mark.parametrize(
    "calls", [in_a_thread, in_two_threads, out_of_order, twice, never, after_finish, only_log]
)
def test_calls_in_any_order(calls: Any, settings: str, tmp_path: Path) -> None:
    """From other threads, out of order, twice, never, after the end."""
    check(train_by(calls), tmp_path, settings=settings)


@each_setting
def test_two_monitors_on_one_model(settings: str, tmp_path: Path) -> None:
    """Both record the same, whichever ends first."""

    def job(watch: Watcher) -> Any:
        model = net()
        optimizer = adam(model)
        first, second = watch(model, optimizer), watch(model, optimizer)
        for step in range(4):
            if step == 2:
                first.finish()
            loss = model(data(step)).pow(2).mean()
            torch.autograd.backward(loss)
            optimizer.step()
            first.step(loss=loss)
            second.step(loss=loss)
            optimizer.zero_grad()
        third = watch(model, optimizer)
        third.step(loss=1.0)
        second.finish()
        return model

    check(job, tmp_path, settings=settings, rows=2)
    _, rows = read_log(tmp_path / "watched" / "run1.jsonl")
    first_rows = read_log(tmp_path / "watched" / "run0.jsonl")[1]
    assert len(rows) == 4
    assert rows[0]["tensors"] == first_rows[0]["tensors"]
    assert rows[1]["grad_norm"] == first_rows[1]["grad_norm"]


MODELS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "empty list": list,
    "empty dict": dict,
    "text": lambda: "a model",
    "number": lambda: 5,
    "hostile": Hostile,
    "a class": lambda: nn.Linear,
    "numbers": lambda: [1, 2],
    "mixed": lambda: [nn.Linear(2, 2), None],
    "tensor": lambda: torch.ones(3),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_none(name: str, tmp_path: Path) -> None:
    """Scalars are recorded whatever stands in the place of the model and the optimizer."""
    model = MODELS[name]()
    log = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        model, model, run="none", mode="local", log_path=log, gpu=False, diagnose=False
    )
    monitor.batch(model)
    monitor.step(loss=1.0)
    monitor.finish()
    assert [row["loss"] for row in read_log(log)[1]] == [1.0]
