"""Whatever the model is and whatever happens to it while it is watched: the training is the same bit for bit
with and without the agent, the agent does not fail, and nothing of it is left afterwards."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.agent.same_weights import Job, Watcher, check, parametrise

WIDTH = 6


def data(step: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers that depend on the step only."""
    return torch.randn(*(shape or (4, WIDTH)), generator=torch.Generator().manual_seed(step)).to(dtype)


def net(*extra: nn.Module) -> Any:
    """Two linear layers, and more."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), *extra, nn.Linear(WIDTH, WIDTH))


def call_in_order(model: Any, x: Tensor) -> Tensor:
    """Sequential's forward pass, without calling the model itself."""
    for part in model:
        x = part(x)
    return x


def adam(model: Any) -> torch.optim.Optimizer:
    """AdamW over all parameters."""
    return torch.optim.AdamW(model.parameters(), 0.01)


def turn(model: Any, optimizer: Any, monitor: Any, step: int, x: Tensor | None = None) -> None:
    """One step of a plain loop."""
    x = data(step) if x is None else x
    monitor.batch({"x": x})
    out = model(x)
    loss = out.abs().float().pow(2).mean()
    torch.autograd.backward(loss)
    optimizer.step()
    monitor.step(loss=loss)
    optimizer.zero_grad()


def train(watch: Watcher, model: Any, optimizer: Any = None, *, steps: int = 3, **more: Any) -> Any:
    """A plain loop over a watched model."""
    optimizer = adam(model) if optimizer is None else optimizer
    monitor = watch(model, optimizer, **more)
    for step in range(steps):
        turn(model, optimizer, monitor, step)
    return model, optimizer.state_dict()["state"]


def no_layers(watch: Watcher) -> Any:
    """A module of one loose parameter, called as a function of the loop's own."""
    model = nn.Module()
    model.p = nn.Parameter(torch.ones(WIDTH))
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        loss = (model.p * data(step)).sum()
        torch.autograd.backward(loss)
        optimizer.step()
        monitor.step(loss=loss)
    return model


def no_parameters(watch: Watcher) -> Any:
    """A model with nothing to train, and an optimizer of something else."""
    model, loose = nn.Sequential(nn.ReLU()), nn.Parameter(torch.ones(WIDTH))
    optimizer = torch.optim.SGD([loose], 0.1)
    monitor = watch(model, optimizer)
    for step in range(3):
        turn(lambda x: model(x * loose), optimizer, monitor, step)
    return loose


def shared_layers(watch: Watcher) -> Any:
    """One layer under three names, and a weight tied to another's."""
    layer = nn.Linear(WIDTH, WIDTH)
    model = net(layer, nn.Sequential(layer, layer))
    model[0].weight = model[-1].weight
    return train(watch, model)


def added_removed_renamed(watch: Watcher) -> Any:
    """Layers come, go, move and are replaced between steps."""
    model = net(nn.Linear(WIDTH, WIDTH))
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(6):
        if step == 1:
            model.append(nn.Linear(WIDTH, WIDTH))
            optimizer.add_param_group({"params": list(model[-1].parameters())})
        if step == 2:
            del model[2]
        if step == 3:
            model[0] = nn.Linear(WIDTH, WIDTH, bias=False)
            optimizer.param_groups[0]["params"] = list(model.parameters())
            optimizer.param_groups[1]["params"] = []
        if step == 4:
            model.add_module("moved", model[1])
            model.register_module("2", nn.Identity())
        turn(model, optimizer, monitor, step)
    return model


def frozen_and_unused(watch: Watcher) -> Any:
    """Frozen weights, weights never used, weights thawed in between."""
    model = net()
    model[1].register_module("none", None)
    model[0].weight.requires_grad_(False)
    spare = nn.ModuleDict({"model": model, "spare": nn.Linear(3, 3)})
    optimizer = adam(spare)
    monitor = watch(spare, optimizer)
    for step in range(4):
        if step == 2:
            model[0].weight.requires_grad_(True)
            model[-1].requires_grad_(False)
        turn(model, optimizer, monitor, step)
    return spare


def meta_part(watch: Watcher) -> Any:
    """A part that has shapes and no memory, whose weights the optimizer does not hold."""
    model = net()
    whole = nn.ModuleList([model, nn.Linear(4, 4, device="meta")])
    optimizer = adam(model)
    monitor = watch(whole, optimizer)
    for step in range(3):
        whole[1](torch.empty(2, 4, device="meta"))
        turn(model, optimizer, monitor, step)
    return model


class Complex(nn.Module):
    """A linear map over complex numbers, with a complex layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., WIDTH) real."""
        out: Tensor = self.inner(x.to(torch.complex64)) @ self.weight
        return out


def complex_weights(watch: Watcher) -> Any:
    """Complex parameters, gradients and activations."""
    return train(watch, nn.Sequential(nn.Linear(WIDTH, WIDTH), Complex()))


def sparse_gradients(watch: Watcher) -> Any:
    """An embedding with sparse gradients beside dense layers, each with its own optimizer."""
    model = nn.Sequential(nn.Embedding(9, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH))
    sparse: Any = torch.optim.SparseAdam(model[0].parameters(), 0.1)
    dense = adam(model[1])
    monitor = watch(model, [sparse, dense])
    for step in range(3):
        ids = torch.randint(0, 9, (3, 4), generator=torch.Generator().manual_seed(step))
        monitor.batch({"input_ids": ids})
        loss = model(ids).pow(2).mean()
        torch.autograd.backward(loss)
        sparse.step()
        dense.step()
        monitor.step(loss=loss)
        sparse.zero_grad()
        dense.zero_grad()
    return model


def sparse_batch(watch: Watcher) -> Any:
    """Sparse inputs of several layouts, and a sparse weight that is not trained."""
    model = net()
    model.register_buffer("table", torch.eye(WIDTH).to_sparse_csr())
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        monitor.batch([data(step).to_sparse(), data(step).to_sparse_csr(), torch.zeros(2, 2).to_sparse()])
        turn(model, optimizer, monitor, step)
    return list(model.parameters())


class Quantised(nn.Module):
    """Casts its input to 8-bit integers and back, and holds a table of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape. Returns x plus its rounding."""
        return x + torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8).dequantize()


def quantised_parts(watch: Watcher) -> Any:
    """Quantised buffers, weights in float8, quantised batches."""
    model = net(Quantised())
    model.low = nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    monitor = watch(model, optimizer)
    for step in range(3):
        monitor.batch(torch.quantize_per_tensor(data(step), 0.1, 0, torch.qint8))
        turn(lambda x: call_in_order(model, x), optimizer, monitor, step)
    return model[0], model[-1]


def nan_weights(watch: Watcher) -> Any:
    """Weights of NaN and infinity, and inputs of them."""
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
        model[-1].weight[0] = float("inf")
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(4):
        x = data(step)
        x[0, 0], x[1, 1] = float("nan"), float("inf")
        turn(model, optimizer, monitor, step, x)
    return model


def zero_dim_and_empty(watch: Watcher) -> Any:
    """Parameters of no dimension, of no element, and of every float type."""
    model = net()
    model.scale, model.empty = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.zeros(0, 3))
    model.narrow = nn.Parameter(torch.ones(2, 2, dtype=torch.float16))
    model.wide = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    monitor = watch(model, optimizer)

    def call(x: Tensor) -> Tensor:
        parts = model.narrow.sum() + model.wide.sum() + model.empty.sum()
        out: Tensor = call_in_order(model, x) * model.scale * parts.float()
        return out

    for step in range(3):
        turn(call, optimizer, monitor, step)
    return model


def float64(watch: Watcher) -> Any:
    """A model in double precision, made under a default type of it."""
    torch.set_default_dtype(torch.float64)
    try:
        model = net()
        optimizer = adam(model)
        monitor = watch(model, optimizer)
        for step in range(3):
            turn(model, optimizer, monitor, step, data(step, dtype=torch.float64))
        return model
    finally:
        torch.set_default_dtype(torch.float32)


def other_default_device(watch: Watcher) -> Any:
    """A loop under a default device that is not the model's."""
    model = net()
    optimizer = adam(model)
    x = [data(step) for step in range(3)]
    with torch.device("meta"):
        monitor = watch(model, optimizer)
        for step in range(3):
            turn(model, optimizer, monitor, step, x[step])
    return model


def other_dtype_in_mid_run(watch: Watcher) -> Any:
    """The model changes to bfloat16, to double and back to float32 while it trains."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = watch(model, optimizer)
    for step, dtype in enumerate([torch.float32, torch.bfloat16, torch.float64, torch.float32]):
        model.to(dtype)
        turn(model, optimizer, monitor, step, data(step, dtype=dtype))
    return model


def loaded_in_mid_run(watch: Watcher) -> Any:
    """States of model and optimizer are saved and loaded, once by replacing the tensors."""
    model = net()
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    kept: Any = None
    for step in range(5):
        turn(model, optimizer, monitor, step)
        if step == 1:
            kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 2:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
        if step == 3:
            model.load_state_dict(copy.deepcopy(kept[0]), assign=True)
    return model, optimizer.state_dict()["state"]


def weights_replaced(watch: Watcher) -> Any:
    """Storage and parameters are swapped below the optimizer."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    monitor = watch(model, optimizer)
    for step in range(4):
        if step == 1:
            model[0].weight.data = model[0].weight.data.clone().t().contiguous().t()
        if step == 2:
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
        if step == 3:
            del model[0].bias
            model[0].bias = None
        turn(model, optimizer, monitor, step)
    return model


def copied_and_pickled(watch: Watcher) -> Any:
    """Copies of a watched model train on their own, also one that went through a file."""
    model = net()
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    turn(model, optimizer, monitor, 0)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), torch.load(file, weights_only=False)]
    for one in copies:
        other = adam(one)
        loss = one(data(9)).pow(2).mean()
        torch.autograd.backward(loss)
        other.step()
        copy.deepcopy(other).step()
    turn(model, optimizer, monitor, 1)
    return [model, *copies]


def lazy_layers(watch: Watcher) -> Any:
    """Parameters that have no shape until the first forward pass."""
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(inplace=True), nn.LazyLinear(WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return train(watch, model, optimizer)


CHANGING = (
    added_removed_renamed, other_dtype_in_mid_run, loaded_in_mid_run, weights_replaced, copied_and_pickled,
    lazy_layers,
)  # fmt: skip
TENSORS = (
    no_layers, no_parameters, shared_layers, frozen_and_unused, meta_part, complex_weights, sparse_gradients,
    sparse_batch, quantised_parts, nan_weights, zero_dim_and_empty, float64, other_default_device,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:torch.quantize_per_tensor")
@parametrise(*TENSORS)
def test_any_kind_of_tensor(job: Job, settings: str, tmp_path: Path) -> None:
    """Parameters, gradients and batches of every kind: trained as if nobody looked."""
    check(job, tmp_path, settings=settings)


@parametrise(*CHANGING)
def test_a_model_that_changes_while_it_is_watched(job: Job, settings: str, tmp_path: Path) -> None:
    """Layers, types, states and copies may change between steps."""
    check(job, tmp_path, settings=settings)


def test_thousands_of_layers(tmp_path: Path) -> None:
    """All of them are trained, and all of them are recorded."""

    def many(watch: Watcher) -> Any:
        model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(2_000))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        monitor = watch(model, optimizer)
        for step in range(2):
            x = data(step, 4, 2)
            turn(lambda x: sum(layer(x) for layer in model), optimizer, monitor, step, x)
        return model

    found = check(many, tmp_path, settings="default", rows=2)
    assert len(found.run["tensors"]) == 4_000 + 2_000
