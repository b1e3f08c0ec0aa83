"""Optimizers of every make: several at once, wrapped, stepping in backward, with state of any kind."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floatscope.probes.optimizers import optimizers_of, where_clipped
from tests.agent.training import backward, batch, loss_of, recording, small_model


def gradients(model: Any, step: int = 0) -> dict[str, float]:
    backward(loss_of(model, batch(step)))
    found = {n.replace(".", "/"): float(p.grad.double().norm()) for n, p in model.named_parameters()}
    model.zero_grad()
    return found


class Chained:
    """As Megatron's: it refuses to name one optimizer when it holds several."""

    def __init__(self, *optimizers: Any) -> None:
        self.chained_optimizers = list(optimizers)

    @property
    def optimizer(self) -> Any:
        raise AssertionError("more than one")


class Container(torch.optim.Optimizer):
    """As torchtitan's: an optimizer that holds others."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = list(optimizers)
        super().__init__([p for o in optimizers for g in o.param_groups for p in g["params"]], {})


class Prepared(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by class that was never set up as one."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_the_optimizers_behind_wrappers_and_containers_are_found() -> None:
    one, two = (torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1) for _ in range(2))
    wrapped = SimpleNamespace(optimizer=SimpleNamespace(_optimizer=one))
    for given in ([one, two], (one, wrapped, two), Chained(SimpleNamespace(optimizer=one), two),
                  Container(one, two), {"a": Prepared(one), "b": two}, [[one], [two, one]]):  # fmt: skip
        assert optimizers_of(given) == [one, two]
    assert optimizers_of(Prepared(one)) == [one]
    assert optimizers_of(None) == optimizers_of(object()) == optimizers_of([object()]) == []
    loop: Any = SimpleNamespace()
    loop.optimizer = SimpleNamespace(optimizer=loop)
    assert optimizers_of(loop) == []


@pytest.mark.parametrize("clips", [False, True])
def test_what_several_optimizers_train_counts_as_one(tmp_path: Path, clips: bool) -> None:
    model = small_model()
    expected = gradients(model)
    optimizers = [
        torch.optim.AdamW(model[1].parameters(), 1e-2),
        torch.optim.SGD([*model[0].parameters(), *model[3].parameters(), *model[4].parameters()], 1e-2),
    ]
    before = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    with recording(tmp_path, model, Chained(*optimizers)) as found:
        backward(loss_of(model, batch(0)))
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for optimizer in optimizers:
            optimizer.step()
        found.monitor.step()
    row = found.rows[0]
    assert row["grad_norm"] == pytest.approx(math.hypot(*expected.values()), rel=1e-5)
    moved = [(p.detach().double() - before[n]).norm() for n, p in model.named_parameters()]
    assert row["update_norm"] == pytest.approx(math.hypot(*moved), rel=1e-3)
    sizes = [p.detach().double().norm() for p in model.parameters()]
    assert row["param_norm"] == pytest.approx(math.hypot(*sizes), rel=1e-6)
    assert len(found.tensors(0, "grad_norm")) == len(found.tensors(0, "update_ratio")) == 4


def test_optimizers_share_one_budget_of_copies(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(8)])  # 4 kB each
    optimizers = [torch.optim.SGD(layer.parameters(), 0.01) for layer in model]
    with recording(tmp_path, model, optimizers, stats_every=4, copy_budget_bytes=8192) as found:
        for _ in range(16):
            backward(model(torch.ones(2, 32)).sum())
            for optimizer in optimizers:
                optimizer.step()
            found.monitor.step()
            model.zero_grad()
    seen = [set(found.tensors(step, "update_ratio")) for step in range(16)]
    assert set().union(*seen) == {f"{i}/weight" for i in range(8)}
    assert all("update_norm" not in row for row in found.rows)


def test_optimizers_that_step_in_backward(tmp_path: Path) -> None:
    def run(path: Path | None) -> Tensor:
        model = small_model()
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def step_now(parameter: Tensor) -> None:
            optimizers[parameter].step()
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_now)
        if path is None:
            for step in range(2):
                backward(loss_of(model, batch(step)))
        else:
            expected = gradients_of_small_model(0)
            with recording(path, model, list(optimizers.values())) as found:
                for step in range(2):
                    backward(loss_of(model, batch(step)))
                    found.monitor.step()
            assert found.rows[0]["grad_norm"] == pytest.approx(expected, rel=1e-5)
            assert "update_norm" in found.rows[1]
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(run(None), run(tmp_path))


def gradients_of_small_model(step: int) -> float:
    return math.hypot(*gradients(small_model(), step).values())


def test_alternating_optimizers_count_in_the_steps_they_take(tmp_path: Path) -> None:
    model = small_model()
    expected = gradients(model)
    optimizers = [torch.optim.SGD(model[i].parameters(), 0.0) for i in (1, 4)]
    with recording(tmp_path, model, optimizers) as found:
        for step in range(2):
            model.zero_grad()
            backward(loss_of(model, batch(0)))
            optimizers[step].step()
            found.monitor.step()
    for step, layer in ((0, "1"), (1, "4")):
        own = math.hypot(expected[f"{layer}/weight"], expected[f"{layer}/bias"])
        assert found.rows[step]["grad_norm"] == pytest.approx(own, rel=1e-5)
        assert set(found.tensors(step, "grad_norm")) == {f"{layer}/weight"}


@pytest.mark.parametrize(
    "options",
    [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}, {"differentiable": False, "foreach": False}],
    ids=str,
)
def test_second_moments_that_are_zero_after_two_steps_are_counted(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **options)
    x = torch.ones(2, 4)
    x[:, 3] = 0  # one input is never there: a quarter of the gradients is 0
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:
        for _ in range(3):
            backward(model(x).square().sum())
            optimizer.step()
            found.monitor.step()
            optimizer.zero_grad()
    assert [row.get("zero_second_moment_pct") for row in found.rows] == [None, 25.0, 25.0]
    assert [row.get("optimizer_state_nonfinite") for row in found.rows] == [0.0, 0.0, 0.0]


def test_state_is_read_on_sampled_steps_only(tmp_path: Path) -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with recording(tmp_path, model, optimizer, stats_every=3) as found:
        for _ in range(6):
            backward(model(torch.ones(2, 4)).sum())
            optimizer.step()
            found.monitor.step()
    has = ["optimizer_state_nonfinite" in row for row in found.rows]
    assert has == ["param_norm" in row for row in found.rows]
    assert sum(has) == 2


def test_state_tensors_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    with recording(tmp_path, model, optimizer) as found:
        for step in range(3):
            model.zero_grad()
            backward(model(torch.ones(2, 4)).sum())
            if step == 1:
                model.weight.grad[0, 0] = math.inf  # type: ignore[index]
            optimizer.step()
            found.monitor.step()
    assert [row["optimizer_state_nonfinite"] for row in found.rows] == [0.0, 1.0, 1.0]
    assert "zero_second_moment_pct" not in found.rows[2]


def test_steps_counted_per_group_are_read(tmp_path: Path) -> None:
    """As Apex and Transformer Engine count."""

    class Fused(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.0})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for parameter in group["params"]:
                    self.state[parameter].setdefault("exp_avg_sq", torch.tensor([0.0, 1.0, 0.0, 0.0]))

    weight = nn.Parameter(torch.ones(4))
    optimizer = Fused([weight])
    model = nn.ParameterList([weight])
    with recording(tmp_path, model, optimizer) as found:
        for _ in range(2):
            weight.grad = torch.ones(4)
            optimizer.step()
            found.monitor.step()
    assert [row.get("zero_second_moment_pct") for row in found.rows] == [None, 75.0]


def test_state_of_8_bits_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class EightBit(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.0})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter] = {"step": 3, "state1": torch.zeros(4, dtype=torch.uint8),
                                             "state2": torch.zeros(4, dtype=torch.uint8)}  # fmt: skip

    weight = nn.Parameter(torch.ones(4))
    optimizer = EightBit([weight])
    with recording(tmp_path, nn.ParameterList([weight]), optimizer) as found:
        for _ in range(2):
            weight.grad = torch.ones(4)
            optimizer.step()
            found.monitor.step()
    said = [r.getMessage() for r in caplog.records if "uint8" in r.getMessage()]
    assert len(said) == 1
    assert "zero_second_moment_pct" not in found.rows[1]
    assert found.rows[1]["grad_norm"] == 2.0


def test_copies_that_an_optimizer_holds_have_the_names_of_their_weights(tmp_path: Path) -> None:
    """As Megatron trains in bf16: a float32 copy of each parameter, or the rank's shard of it."""
    model: Any = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)).bfloat16()
    copies = []
    for index, layer in enumerate(model):
        copy = nn.Parameter(layer.weight.detach().float().flatten()[: 8 if index else 16].clone())
        layer.weight.main_param, layer.weight.main_param_sharded = copy, index == 1
        copies.append(copy)
    optimizer = torch.optim.SGD(copies, 0.1)
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:
        copies[0].grad, copies[1].grad = torch.full((16,), 1.0), torch.full((8,), 2.0)
        optimizer.step()
        found.monitor.step()
    assert found.tensors(0, "grad_norm") == {"0/weight": 4.0, "1/weight": pytest.approx(math.sqrt(32))}
    assert found.rows[0]["local_grad_norm"] == pytest.approx(math.sqrt(16 + 32))
    assert "grad_norm" not in found.rows[0]


def test_where_trainers_of_packages_clip_is_said() -> None:
    model = nn.Linear(1, 1)
    kinds = {name: type("O", (), {"__module__": f"{name}.optimizer"}) for name in ("megatron", "deepspeed")}
    one: Any = kinds["megatron"]()
    one.config = SimpleNamespace(clip_grad=1.0)
    assert where_clipped(model, one) == ", after Megatron's clipping"
    one.config.clip_grad = 0.0
    assert where_clipped(model, [one]) == ", without clipping"
    assert where_clipped(model, kinds["deepspeed"]()) == ", after DeepSpeed's clipping"
    assert "no clipping by torch" in where_clipped(model, torch.optim.SGD(model.parameters(), 0.1))
    sharded: Any = type("FullyShardedDataParallel", (nn.Module,), {})()
    sharded.sharding_strategy = SimpleNamespace(name="FULL_SHARD")
    assert "FullyShardedDataParallel.clip_grad_norm_" in where_clipped(sharded, None)
