"""``compiled_layers=True``: layers inside compiled code are measured, and the code stays in one piece."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import floatscope
from floatscope.look import GLANCE, Look
from tests.agent.test_compile import CASES, Model, alone
from tests.agent.training import backward, batch, loss_of, recording, train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
LAYERS = ("hidden.0", "hidden.3", "head")
MEASURED = {f"{layer}/{role}" for layer in LAYERS for role in ("input", "weight", "grad_output")}
STATS = ("amax", "rms", "zero_pct", "nan_count")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def in_eager(path: Path, *, recomputes: bool, steps: int = 5) -> list[dict[str, dict[str, Any]]]:
    """What is measured of the model without compilation, row by row."""
    path.mkdir()
    model = Model(recomputes=recomputes)
    with recording(path, model, stats_every=2) as found:
        train(model, torch.optim.SGD(model.parameters(), 0.1), found.monitor, steps=steps)
    return [{stat: found.tensors(row, stat) for stat in STATS} for row in range(steps)]


@pytest.mark.parametrize(("backend", "recomputes"), CASES)
def test_compiled_layers_are_measured(tmp_path: Path, backend: str, recomputes: bool) -> None:
    """One graph, the same weights bit for bit, and on sampled steps the numbers of the model in eager mode.

    ``fullgraph=True`` would raise if a hook broke the graph.
    """

    def compiled(model: nn.Module) -> Any:
        return torch.compile(model, backend=backend, fullgraph=True)

    wanted, graphs = alone(Model(recomputes=recomputes), compiled)
    model = Model(recomputes=recomputes)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, stats_every=2, compiled_layers=True) as found:
        weights = train(compiled(model), optimizer, found.monitor, steps=5)
    assert torch.equal(weights, wanted)
    assert counters["stats"]["unique_graphs"] == graphs, "sampled or not, nothing is compiled again"
    assert not counters["graph_break"]
    for row, truth in enumerate(in_eager(tmp_path / "eager", recomputes=recomputes)):
        for stat in STATS:
            read = found.tensors(row, stat)
            assert set(read) == (MEASURED if row % 2 == 0 else set())
            for name, value in read.items():
                assert value == pytest.approx(truth[stat][name], rel=1e-5)
    assert "passes" not in found.rows[0], "recomputation is not a second pass"
    assert found.run["tensors"]["head/input"]["format"] == "fp32"


def test_micro_batches_are_put_together(tmp_path: Path) -> None:
    """Both passes count, with recomputation too: the largest amax, ``passes`` 2."""
    model = Model(recomputes=True)
    seen: list[float] = []
    with recording(tmp_path, model, compiled_layers=True) as found:
        running = torch.compile(model, backend="eager", fullgraph=True)
        for micro in range(2):
            seen.append(float(model.embed(batch(micro)).detach().abs().max()))
            backward(loss_of(running, batch(micro)))
        found.monitor.step()
    assert found.rows[0]["passes"] == 2
    assert found.tensors(0, "amax")["hidden.0/input"] == max(seen)


class Block(nn.Module):
    """A user's layer, compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x).relu()
        return result


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_block_that_is_recomputed_counts_once(tmp_path: Path, reentrant: bool) -> None:
    """Checkpointing around it: if reentrant, the pass in the backward is the one that counts."""
    model = nn.Sequential(nn.Linear(8, 8), Block())
    with recording(tmp_path, model, compiled_layers=True) as found:
        model[1].compile(backend="aot_eager")
        for micro in range(2):
            x = torch.ones(3, 8) * (micro + 1)
            backward(checkpoint(model[1], model[0](x), use_reentrant=reentrant).sum())
        found.monitor.step()
    assert set(found.tensors(0, "amax")) == {
        f"{layer}/{role}" for layer in ("0", "1.inner") for role in ("input", "weight", "grad_output")
    }
    assert found.rows[0]["passes"] == 2
    assert counters["stats"]["unique_graphs"] > 0


def test_suspects_alone_are_measured_between_samples(tmp_path: Path) -> None:
    """What is looked at is decided when compiled code runs; nothing is compiled again."""
    model = Model()
    with recording(tmp_path, model, stats_every=1000, compiled_layers=True) as found:
        running = torch.compile(model, backend="aot_eager", fullgraph=True)
        for step in range(4):
            look = Look(suspects=frozenset({"head"})) if step == 2 else GLANCE
            if step:
                found.monitor._probes.begin(look)
            backward(loss_of(running, batch(step)))
            found.monitor.step()
    assert set(found.rows[2]["tensors"]) == {"head/grad_output", "head/input", "head/weight"}
    assert not found.tensors(1, "amax")
    assert not found.tensors(3, "amax")
    assert counters["stats"]["unique_graphs"] == 1


def test_evaluation_and_other_shapes(tmp_path: Path) -> None:
    """Passes without gradients are not measured; a graph for any size is one graph still."""
    model = Model()
    with recording(tmp_path, model, compiled_layers=True) as found:
        running = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
        with torch.no_grad():
            running(batch(0))
        found.monitor.step()
        for size in (6, 4, 9):
            backward(loss_of(running, batch(size, size)))
            found.monitor.step()
    assert not found.tensors(0, "amax")
    assert all(set(found.tensors(row, "amax")) == MEASURED for row in (1, 2, 3))
    assert counters["stats"]["unique_graphs"] == 2, "one without gradients, one with"


def test_attached_after_the_first_call_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Compiled code never calls hooks that came later: the training goes on, and the log says so."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    running = torch.compile(model, backend="aot_eager", fullgraph=True)
    train(running, optimizer, None, steps=1)
    with recording(tmp_path, running, optimizer, compiled_layers=True) as found:
        train(running, optimizer, found.monitor, steps=2)
    assert not found.tensors(1, "amax")
    assert "hooks inside compiled code do nothing" in caplog.text
    assert counters["stats"]["unique_graphs"] == 1


def test_a_compiled_model_may_be_attached_before_its_first_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``torch.compile`` compiles nothing yet; then there is nothing to warn of."""
    model = Model()
    running = torch.compile(model, backend="aot_eager", fullgraph=True)
    with recording(tmp_path, running, compiled_layers=True) as found:
        train(running, torch.optim.SGD(model.parameters(), 0.1), found.monitor, steps=1)
    assert set(found.tensors(0, "amax")) == MEASURED
    assert "do nothing" not in caplog.text


def test_training_goes_on_after_the_monitor(tmp_path: Path) -> None:
    """The same weights; code that another monitor's calls are left in gives nothing to the next one."""

    def trained(running: Any, optimizer: torch.optim.Optimizer, monitor: floatscope.Monitor | None) -> Tensor:
        train(running, optimizer, monitor, steps=2)
        if monitor is not None:
            monitor.finish()
        return train(running, optimizer, None, steps=2)

    weights = []
    for is_watched in (False, True):
        torch._dynamo.reset()  # or the second model would run the code of the first, without hooks
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        running = torch.compile(model, backend="aot_eager", fullgraph=True)
        if not is_watched:
            weights.append(trained(running, optimizer, None))
            continue
        with recording(tmp_path, model, compiled_layers=True) as found:
            weights.append(trained(running, optimizer, found.monitor))
    assert torch.equal(*weights)
    assert set(found.tensors(1, "amax")) == MEASURED


def test_models_of_one_class_are_told_apart(tmp_path: Path) -> None:
    """Two monitors, and a copy that nobody watches: compiled code of one model is not run for another."""
    first = Model()
    second = Model()
    with torch.no_grad():
        second.head.weight.mul_(3)
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.mkdir()
    with (
        recording(paths[0], first, compiled_layers=True) as one,
        recording(paths[1], second, compiled_layers=True) as two,
    ):
        unwatched = copy.deepcopy(first)
        with torch.no_grad():
            unwatched.embed.weight.mul_(5)
        models = [first, unwatched, second]
        running = [torch.compile(model, backend="aot_eager", fullgraph=True) for model in models]
        for model in running:
            backward(loss_of(model, batch(0)))
        one.monitor.step()
        two.monitor.step()
    x = batch(0)
    for model, found in ((first, one), (second, two)):
        amax = found.tensors(0, "amax")
        assert set(amax) == MEASURED
        assert amax["hidden.0/input"] == float(model.embed(x).detach().abs().max())
        assert amax["head/weight"] == float(model.head.weight.detach().abs().max())
        assert "passes" not in found.rows[0]


def test_compiled_autograd_leaves_out_gradients(tmp_path: Path) -> None:
    """There a hook on a gradient would make a backward pass outside the compiled code raise."""
    settings: Any = torch._dynamo.config
    model = Model()
    with (
        settings.patch(compiled_autograd=True),
        recording(tmp_path, model, compiled_layers=True) as found,
    ):
        running = torch.compile(model, backend="aot_eager", fullgraph=True)
        train(running, torch.optim.SGD(model.parameters(), 0.1), found.monitor, steps=1)
    assert set(found.tensors(0, "amax")) == {name for name in MEASURED if not name.endswith("grad_output")}


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_holds_nothing_of_ours(tmp_path: Path, strict: bool) -> None:
    """It has to load where floatscope is not installed."""
    model = Model()
    with recording(tmp_path, model, compiled_layers=True) as found:
        program = torch.export.export(model, (batch(0),), strict=strict)
        found.monitor.step()
    assert "floatscope" not in str(program.graph)


def test_a_failure_inside_compiled_code_stays_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training goes on to the same weights."""

    def compiled(model: nn.Module) -> Any:
        return torch.compile(model, backend="aot_eager", fullgraph=True)

    wanted, _ = alone(Model(), compiled)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    log = tmp_path / "run.jsonl"
    monitor = floatscope.watch(
        model, optimizer, run="faulty", log_path=log, stats_every=1, gpu=False, compiled_layers=True
    )
    calls: list[str] = []

    def fail(*args: object, **settings: object) -> None:
        calls.append("")
        raise RuntimeError("on purpose")

    monkeypatch.setattr(monitor._probes._stats, "measure", fail)  # type: ignore[attr-defined]
    weights = train(compiled(model), optimizer, monitor, steps=5)
    monitor.finish()
    assert calls
    assert torch.equal(weights, wanted)


def test_half_precision_and_mapped_models(tmp_path: Path) -> None:
    """The format is the one the layer computes in under autocast; ``vmap`` over a layer still compiles."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: Tensor = model(x)
        return result

    def mapped(x: Tensor) -> Tensor:
        result: Tensor = torch.vmap(model)(x)
        return result

    with recording(tmp_path, model, compiled_layers=True) as found:
        backward(torch.compile(call, backend="aot_eager", fullgraph=True)(torch.ones(3, 4)).sum())
        found.monitor.step()
        torch.compile(mapped, backend="aot_eager", fullgraph=True)(torch.ones(3, 4))
    assert found.run["tensors"]["0/input"]["format"] == "bf16"
    assert found.tensors(0, "amax")["0/input"] == 1.0
