"""A compiled model trains the same watched and unwatched: no further graphs, no breaks, the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from tests.agent.training import recording, train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
CASES = [
    ("eager", False),
    ("eager", True),
    ("aot_eager", False),
    ("aot_eager", True),
    pytest.param(
        "inductor",
        False,
        marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: g++"),
    ),
]
"""Backend, and whether hidden layers are recomputed; inductor compiles the graph that aot_eager traces."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """An embedding, hidden layers that may be recomputed in the backward pass, a head."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.hidden = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
        self.head = nn.Linear(8, 11)
        self.recomputes = recomputes

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = checkpoint(self.hidden, x, use_reentrant=False) if self.recomputes else self.hidden(x)
        out: Tensor = self.head(x)
        return out


Compile = Callable[[nn.Module], Any]


def alone(model: nn.Module, compiled: Compile) -> tuple[Tensor, int]:
    """Weights after five steps that nobody watches, and the graphs it took."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weights = train(compiled(model), optimizer, None, steps=5)
    graphs = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    return weights, graphs


@pytest.mark.parametrize(("backend", "recomputes"), CASES)
@pytest.mark.parametrize("attach", ["before", "after"])
def test_watched_and_unwatched_are_the_same(
    tmp_path: Path, backend: str, attach: str, recomputes: bool
) -> None:
    """Attached before compilation or after, sampled steps and others: one graph, the same weights.

    ``fullgraph=True`` would raise if a hook broke the graph.
    """

    def compiled(model: nn.Module) -> Any:
        return torch.compile(model, backend=backend, fullgraph=True)

    wanted, graphs = alone(Model(recomputes=recomputes), compiled)
    model = Model(recomputes=recomputes)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watched = compiled(model) if attach == "after" else model
    with recording(tmp_path, watched, optimizer, stats_every=2, diagnose=False) as found:
        running = watched if attach == "after" else compiled(model)
        weights = train(running, optimizer, found.monitor, steps=5)
    assert torch.equal(weights, wanted)
    assert counters["stats"]["unique_graphs"] == graphs, "no second compilation, sampled or not"
    assert not counters["graph_break"]
    names = {"embed/weight", "hidden.0/weight", "hidden.3/weight", "head/weight"}
    for step in range(5):
        assert names <= set(found.tensors(step, "grad_norm"))
        assert isinstance(found.rows[step]["grad_norm"], float)


def test_what_is_read_of_a_compiled_model_is_what_is_read_of_the_model(tmp_path: Path) -> None:
    """Gradients, weights and updates carry the same numbers, under the same names."""
    read = []
    for is_compiled in (False, True):
        path = tmp_path / str(is_compiled)
        path.mkdir()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        running = torch.compile(model, backend="eager") if is_compiled else model
        with recording(path, running, optimizer, diagnose=False) as found:
            train(running, optimizer, found.monitor, steps=3)
        stats = ("grad_norm", "update_ratio", "unchanged_pct")
        read.append([{stat: found.tensors(step, stat) for stat in stats} for step in range(3)])
    assert read[0] == read[1]


def test_layers_compiled_one_by_one_leave_the_others_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With regional compilation the layers outside the compiled ones are measured as always."""

    def compiled(model: Any) -> Any:
        model.hidden.compile(backend="eager")
        return model

    wanted, _ = alone(Model(), compiled)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, diagnose=False) as found:
        weights = train(compiled(model), optimizer, found.monitor, steps=5)
    assert torch.equal(weights, wanted)
    amax = found.tensors(1, "amax")
    assert {"head/input", "head/grad_output", "embed/output"} <= set(amax)
    assert not {name for name in amax if name.startswith("hidden")}


def test_a_compiled_model_and_a_watched_one_beside_it(tmp_path: Path) -> None:
    """What a compiled model leaves out of a step does not stop the measuring of another."""
    teacher = torch.compile(Model(), backend="eager")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(ids)
        loss: Tensor = (model(ids) - wanted - 1).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    with recording(tmp_path, model, optimizer, diagnose=False) as found:
        train(model, optimizer, found.monitor, steps=2, step=step)
    assert "hidden.0/input" in found.tensors(1, "amax")
