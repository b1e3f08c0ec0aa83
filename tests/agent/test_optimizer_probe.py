"""Gradients and weight updates against what the training loop itself can see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floatscope.probes.gradients import RootOfSquares
from floatscope.probes.readout import Readout
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.probes.weights import Weight
from tests.agent.training import backward, batch, loss_of, recording, small_model, train

WEIGHTS = {"0/weight", "1/weight", "3/weight", "4/weight"}


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name.replace(".weight", "/weight"): p for name, p in model.named_parameters()}


def test_norms_ratios_and_shares_are_those_of_the_step(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(model, batch(0)))
        before = {name: p.detach().double().clone() for name, p in parameters(model).items()}
        grads = {name: p.grad.double().clone() for name, p in parameters(model).items() if p.grad is not None}
        optimizer.step()
        after = {name: p.detach().double().clone() for name, p in parameters(model).items()}
        found.monitor.step()
    row = found.rows[0]

    def root(parts: Iterator[Tensor]) -> float:
        return math.sqrt(sum(float(part.square().sum()) for part in parts))

    assert row["grad_norm"] == pytest.approx(root(iter(grads.values())), rel=1e-6)
    assert row["param_norm"] == pytest.approx(root(iter(after.values())), rel=1e-6)
    assert row["update_norm"] == pytest.approx(root(after[n] - before[n] for n in before), rel=1e-4)
    zeros = sum(int((grad == 0).sum()) for grad in grads.values())
    assert row["zero_grad_pct"] == pytest.approx(100 * zeros / sum(g.numel() for g in grads.values()))
    assert set(found.tensors(0, "grad_norm")) == WEIGHTS, "biases have no statistics of their own"
    for name in WEIGHTS:
        assert found.tensors(0, "grad_norm")[name] == pytest.approx(float(grads[name].norm()), rel=1e-5)
        ratio = float((after[name] - before[name]).norm() / before[name].norm())
        assert found.tensors(0, "update_ratio")[name] == pytest.approx(ratio, rel=1e-3)
        unchanged = 100 * float((after[name] == before[name]).double().mean())
        assert found.tensors(0, "unchanged_pct")[name] == pytest.approx(unchanged)
    assert "grad_norm_point" in found.run["config"]


def test_what_the_loop_gives_itself_is_not_overwritten(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(model, batch(0)))
        optimizer.step()
        found.monitor.step(grad_norm=123.0, param_norm=4.0, update_norm=5.0, zero_grad_pct=6.0)
    row = found.rows[0]
    assert [row[n] for n in ("grad_norm", "param_norm", "update_norm", "zero_grad_pct")] == [123, 4, 5, 6]


def test_a_nan_in_a_gradient_shows_in_its_weight_and_in_the_total(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, stats_every=100) as found:
        train(model, optimizer, found.monitor, steps=1)
        backward(loss_of(model, batch(0)))
        assert model[1].weight.grad is not None
        model[1].weight.grad[0, 0] = math.nan
        optimizer.step()
        found.monitor.step()
    assert found.rows[1]["grad_norm"] == "NaN"
    norms = found.tensors(1, "grad_norm")
    assert norms["1/weight"] == "NaN"
    assert norms["4/weight"] != "NaN"


def test_weights_that_do_not_move_are_seen(tmp_path: Path) -> None:
    model = small_model().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    with recording(tmp_path, model, optimizer) as found:
        train(model, optimizer, found.monitor, steps=1)
    assert found.tensors(0, "unchanged_pct") == dict.fromkeys(WEIGHTS, 100.0)
    assert found.tensors(0, "update_ratio") == dict.fromkeys(WEIGHTS, 0.0)
    assert found.run["tensors"]["4/weight"]["format"] == "bf16"
    assert math.isfinite(found.rows[0]["grad_norm"])


def test_a_weight_of_zeros_has_no_ratio(tmp_path: Path) -> None:
    model = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:
        backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        found.monitor.step()
    assert found.rows[0]["tensors"] == {
        "model/weight": {"grad_norm": pytest.approx(8.0), "unchanged_pct": 0.0}
    }


def test_where_copies_do_not_fit_every_weight_has_its_turn(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(10)])  # 4 kB each
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recording(tmp_path, model, optimizer, stats_every=5, copy_budget_bytes=9000) as found:
        for _ in range(10):
            backward(model(torch.ones(2, 32)).sum())
            optimizer.step()
            found.monitor.step()
            optimizer.zero_grad()
    turns = [set(found.tensors(step, "update_ratio")) for step in range(10)]
    assert all(len(turn) <= 2 for turn in turns), "9,000 bytes hold two weights"
    assert set().union(*turns[:5]) == {f"{i}/weight" for i in range(10)}
    assert all("update_norm" not in row for row in found.rows), "no total out of parts of different steps"


def test_of_a_weight_larger_than_the_budget_rows_are_measured_in_turn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8, bias=False), nn.Linear(8, 512, bias=False), nn.Linear(512, 4, bias=False)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    weight: Any = model[1].weight
    with recording(tmp_path, model, optimizer, copy_budget_bytes=9000) as found:
        for _ in range(12):
            backward(model(torch.ones(2, 8)).sum())
            optimizer.step()
            with torch.no_grad():
                weight[:256] = 1.0  # the first half is larger, so its ratio is smaller
                weight[256:] = 0.01
            found.monitor.step()
            optimizer.zero_grad()
    turns = [found.tensors(step, "update_ratio") for step in range(12)]
    assert set().union(*turns) == {"0/weight", "1/weight", "2/weight"}
    ratios = [turn["1/weight"] for turn in turns[1:] if "1/weight" in turn]
    assert len(ratios) >= 2
    assert max(ratios) > 10 * min(ratios), "other rows have their turn"


@pytest.mark.parametrize("sizes", [[(32, 32)] * 10, [(8, 8), (512, 8), (1, 4096), (3, 50)], [(40, 40)]])
def test_copies_never_exceed_the_budget_and_reach_everything(sizes: list[tuple[int, int]]) -> None:
    budget, turn_steps = 4000, 20
    values = [
        torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) for rows, columns in sizes
    ]
    weights = [
        Weight(nn.Parameter(value.clone()), f"{i}/weight", is_sharded=False, is_plain=True)
        for i, value in enumerate(values)
    ]
    updates = WeightUpdates(budget_bytes=budget, turn_steps=turn_steps)
    seen = [torch.zeros(value.shape, dtype=torch.bool) for value in values]
    copied = 0
    for step in range(400):
        updates.before(weights, is_sampled=step % 5 == 0)
        assert updates.copied_bytes <= budget
        copied += updates.copied_bytes
        for copy in updates._copies:
            index = next(i for i, weight in enumerate(weights) if weight is copy.weight)
            seen[index].view(-1)[copy.old.flatten().long()] = True  # a weight's elements are their own places
        updates.after(Readout(), RootOfSquares("update_norm"))
        assert updates.copied_bytes == 0
    assert all(bool(one.all()) for one in seen)
    assert copied >= 400 / turn_steps * sum(min(v.numel() * 4, budget) for v in values) * 0.5


def test_gradients_in_main_grad_are_read(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weight: Any = model.weight
    weight.main_grad = torch.full((3, 3), 2.0)
    with recording(tmp_path, model, optimizer) as found:
        weight.grad = None
        optimizer.step()
        found.monitor.step()
        weight.grad = torch.zeros(3, 3)  # a dummy that fused accumulation leaves
        weight.grad_added_to_main_grad = True
        optimizer.step()
        found.monitor.step()
    assert [row["grad_norm"] for row in found.rows] == [6.0, 6.0]


class Strange(nn.Module):
    """Parameters of every kind that an optimizer may meet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = nn.Linear(4, 4)
        self.sparse = nn.Embedding(6, 4, sparse=True)
        self.turn = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.wide = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
        self.unused = nn.Parameter(torch.randn(4, 4))
        self.frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.tied = self.plain.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.plain(self.sparse(ids)) @ self.wide.float() * self.scalar
        out: Tensor = (x.to(torch.complex64) @ self.turn).abs().sum()
        return out


def test_parameters_of_every_kind_train_the_same(tmp_path: Path) -> None:
    def run(path: Path | None) -> list[Tensor]:
        model = Strange()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        ids = torch.tensor([1, 2, 3])
        if path is None:
            for _ in range(3):
                backward(model(ids))
                optimizer.step()
                optimizer.zero_grad()
            return [p.detach() for p in model.parameters()]
        with recording(path, model, optimizer) as found:
            for _ in range(3):
                backward(model(ids))
                optimizer.step()
                found.monitor.step()
                optimizer.zero_grad()
        assert "grad_norm" not in found.rows[0], "with a sparse gradient there is no norm of all"
        norms = found.tensors(0, "grad_norm")
        assert set(norms) == {"tied/weight", "turn/weight", "wide/weight"}
        assert {"turn/weight", "wide/weight", "sparse/weight"} <= set(found.tensors(0, "update_ratio"))
        return [p.detach() for p in model.parameters()]

    for alone, watched in zip(run(None), run(tmp_path), strict=True):
        assert torch.equal(alone, watched)


def test_meta_parameters_and_an_empty_optimizer_are_passed_over(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        model.weight.grad = torch.empty(3, 3, device="meta")
        optimizer.step()
        found.monitor.step(loss=1.0)
    assert found.rows[0]["loss"] == 1.0
    assert "grad_norm" not in found.rows[0]


def test_a_sharded_parameter_gives_local_norms(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    tensor = pytest.importorskip("torch.distributed.tensor")
    mesh_module = pytest.importorskip("torch.distributed.device_mesh")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = mesh_module.init_device_mesh("cpu", (1,))
        weight = tensor.distribute_tensor(torch.ones(4, 4), mesh, [tensor.Shard(0)])
        model = nn.Module()
        model.weight = nn.Parameter(weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with recording(tmp_path, model, optimizer) as found:
            model.weight.grad = tensor.distribute_tensor(torch.full((4, 4), 2.0), mesh, [tensor.Shard(0)])
            optimizer.step()
            found.monitor.step()
    finally:
        distributed.destroy_process_group()
    row = found.rows[0]
    assert row["local_grad_norm"] == pytest.approx(8.0)
    assert "grad_norm" not in row
    assert row["tensors"]["model/weight"]["update_ratio"] == pytest.approx(0.2)


def test_a_wrapped_optimizer_is_found_and_a_foreign_one_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrapper:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    model = small_model()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, Wrapper(Wrapper(inner))) as found:
        train(model, inner, found.monitor, steps=1)
    assert "grad_norm" in found.rows[0]
    with recording(tmp_path, model, object()) as found:
        found.monitor.step(loss=1.0)
    assert any("not a torch optimizer" in r.getMessage() for r in caplog.records)


def test_parameters_added_later_are_seen(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        train(model, optimizer, found.monitor, steps=1)
        optimizer.add_param_group({"params": model[4].parameters()})
        train(model, optimizer, found.monitor, steps=1)
    assert set(found.tensors(0, "grad_norm")) == {"1/weight"}
    assert set(found.tensors(1, "grad_norm")) == {"1/weight", "4/weight"}
