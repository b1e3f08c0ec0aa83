"""Statistics of plain layers, and that a model trains bit for bit the same with them."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.agent.training import backward, batch, loss_of, recording, small_model, train

LINEAR = {f"{layer}/{role}" for layer in ("1", "4") for role in ("input", "weight", "grad_output")}


def test_linear_and_embedding_layers_are_measured(tmp_path: Path) -> None:
    model = small_model()
    seen: dict[str, Tensor] = {}
    model[4].register_forward_hook(lambda m, args, out: seen.update(input=args[0].detach().clone()))
    model[4].register_full_backward_pre_hook(lambda m, grads: seen.update(grad=grads[0].detach().clone()))
    weight = model[1].weight.detach().clone()
    with recording(tmp_path, model) as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
    amax = found.tensors(0, "amax")
    assert set(amax) == LINEAR | {"0/output"}
    assert amax["4/input"] == float(seen["input"].abs().max())
    assert amax["4/grad_output"] == float(seen["grad"].abs().max())
    assert amax["1/weight"] == float(weight.abs().max())
    assert found.tensors(0, "zero_pct")["4/input"] == 100 * float((seen["input"] == 0).float().mean())
    assert "scale" not in found.rows[0]["tensors"]["1/input"]
    assert found.run["recipe"]["name"] == "fp32"
    assert found.run["vocab_size"] == 11
    order = {name: facts["call_order"] for name, facts in found.run["tensors"].items()}
    assert order["0/output"] < order["1/input"] == order["1/weight"] < order["4/grad_output"]


def test_only_sampled_steps_are_measured(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model, stats_every=3) as found:
        for step in range(7):
            backward(loss_of(model, batch(step)))
            found.monitor.step(loss=1.0)
    assert [row["step"] for row in found.rows if "tensors" in row] == [0, 3, 6]


def test_the_first_layer_with_a_nan_is_known(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model) as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
        with torch.no_grad():
            model[1].weight[0, 0] = math.nan
        backward(loss_of(model, batch(1)))
        found.monitor.step()
    nans = found.tensors(1, "nan_count")
    order = {name: found.run["tensors"][name]["call_order"] for name, count in nans.items() if count > 0}
    assert nans["0/output"] == nans["1/input"] == 0
    assert nans["1/weight"] == 1
    assert min(order, key=lambda name: (order[name], name != "1/weight")) == "1/weight"
    assert all(math.isfinite(float(v)) for v in found.tensors(1, "amax").values() if not isinstance(v, str))


def test_an_evaluation_without_gradients_is_not_measured(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model) as found:
        with torch.no_grad():
            model(batch(0))
        found.monitor.step()
    assert "tensors" not in found.rows[0]


def test_passes_of_a_step_are_put_together(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model) as found:
        for micro in range(3):
            backward(loss_of(model, batch(micro)))
        found.monitor.step()
    assert found.rows[0]["passes"] == 3.0
    with torch.no_grad():
        largest = max(float(model[0](batch(micro)).abs().max()) for micro in range(3))
    assert found.tensors(0, "amax")["1/input"] == largest


class Recomputed(nn.Module):
    """Recomputes its hidden layers in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.hidden = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 11)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        x = checkpoint(self.hidden, self.embed(ids), use_reentrant=self.reentrant)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_counts_once(tmp_path: Path, reentrant: bool) -> None:
    model = Recomputed(reentrant=reentrant)
    with recording(tmp_path, model) as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
    assert "passes" not in found.rows[0]
    amax = found.tensors(0, "amax")
    assert {f"hidden.{i}/{role}" for i in (0, 2) for role in ("input", "weight", "grad_output")} <= set(amax)
    assert amax["hidden.0/input"] == float(model.embed(batch(0)).detach().abs().max())
    order = {name: facts["call_order"] for name, facts in found.run["tensors"].items()}
    assert order["embed/output"] < order["hidden.0/input"] < order["hidden.2/input"] < order["head/input"]


def test_wrappers_leave_no_trace_in_names(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.module(ids)
            return out

    model = Wrapper(small_model())
    with recording(tmp_path, model) as found:
        backward(loss_of(model, batch(0)))
        found.monitor.step()
    assert set(found.tensors(0, "amax")) == LINEAR | {"0/output"}


def test_a_compiled_model_is_left_alone_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = torch.compile(model, backend="eager")
    with recording(tmp_path, compiled, optimizer) as found:
        weights = train(compiled, optimizer, found.monitor)
    plain = small_model()
    assert torch.equal(weights, train(plain, torch.optim.SGD(plain.parameters(), 0.1), None))
    assert any("compiled" in r.getMessage() for r in caplog.records)
    assert set(found.tensors(1, "grad_norm")) == {f"{layer}/weight" for layer in ("0", "1", "3", "4")}


def test_a_model_compiled_after_watch_trains_the_same_in_one_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = small_model(inplace=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, stats_every=2) as found:
        weights = train(torch.compile(model, backend=count), optimizer, found.monitor, steps=5)
    plain = small_model(inplace=False)
    assert torch.equal(weights, train(plain, torch.optim.SGD(plain.parameters(), 0.1), None, steps=5))
    assert len(graphs) == 1, "no break in the graph and no second compilation"
    assert sum("compiled code" in r.getMessage() for r in caplog.records) == 1


def autocast_step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, ids)
    backward(loss)
    optimizer.step()
    return loss


def clipped_step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    loss = loss_of(model, ids)
    backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def accumulating_step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    for part in ids.chunk(3):
        loss = loss_of(model, part) / 3
        backward(loss)
    optimizer.step()
    return loss


def dropout_step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    loss = loss_of(model, ids) * nn.functional.dropout(torch.ones(1000), 0.5).mean()
    backward(loss)
    optimizer.step()
    return loss


@pytest.mark.parametrize("step", [None, autocast_step, clipped_step, accumulating_step, dropout_step])
@pytest.mark.parametrize("every", [1, 2])
def test_the_weights_are_the_same_bit_for_bit(
    tmp_path: Path, step: Callable[[Any, torch.optim.Optimizer, Tensor], Tensor] | None, every: int
) -> None:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 1e-2)

    alone = small_model()
    wanted = train(alone, optimizer(alone), None, steps=5, step=step)
    model = small_model()
    with recording(tmp_path, model, (adam := optimizer(model)), stats_every=every) as found:
        weights = train(model, adam, found.monitor, steps=5, step=step)
    assert torch.equal(weights, wanted)
    assert len(found.rows) == 5
    if step is autocast_step:
        assert found.run["recipe"]["name"] == "bf16"
        assert found.run["tensors"]["4/input"]["format"] == "bf16"


def test_a_model_is_copied_and_pickled_as_if_nobody_watched(tmp_path: Path) -> None:
    model = small_model()
    with recording(tmp_path, model) as found:
        twin = copy.deepcopy(model)
        pickled = pickle.dumps(model)
        assert b"floatscope" not in pickled, "it loads where the agent is not installed"
        loaded = pickle.loads(pickled)
        for other in (twin, loaded):
            backward(loss_of(other, batch(0)))
        found.monitor.step()
    assert "tensors" not in found.rows[0], "a copy is not watched"
    assert torch.equal(twin(batch(1)), loaded(batch(1)))


def test_a_layer_used_twice_is_no_second_pass(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.shared(self.shared(self.first(x))))
            return out

    model = Twice()
    with recording(tmp_path, model) as found:
        backward(model(torch.ones(2, 4)).sum())
        found.monitor.step()
    assert "passes" not in found.rows[0]


def test_layers_whose_names_no_record_can_hold_are_left_out_and_train_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential()
    for name in ("good", "x" * 2000, "new\nline", "a/b", "<b>bold"):
        model.add_module(name, nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        found.monitor.step()
    layers = {name.rpartition("/")[0] for name in found.tensors(0, "amax")}
    assert layers == {"good", "a_b", "<b>bold"}
    assert {name.rpartition("/")[0] for name in found.tensors(0, "grad_norm")} == layers
    assert sum("left out" in r.getMessage() for r in caplog.records) == 1


def test_odd_inputs_of_layers_are_passed_over(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    with recording(tmp_path, layer) as found:
        layer(torch.empty(0, 4))
        backward(layer(input=torch.ones(2, 4)).sum())
        found.monitor.step()
    assert set(found.tensors(0, "amax")) == {"model/weight", "model/grad_output"}
