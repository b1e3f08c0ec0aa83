"""Gradients are read before they are clipped, however the loop clips; clipping works the same as without.

Every reference is a second, unwatched run of the same model, whose gradients are looked at directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.nn.utils import clip_grad_norm_ as early_import  # before any monitor is there

from tests.agent.training import backward, batch, loss_of, recording, small_model

Clip = Callable[[Any, torch.optim.Optimizer], object]
MAX_NORM = 1e-3


def by_total(model: Any, optimizer: Any) -> None:
    """As torchtitan does, with a generator of parameters."""
    grads = [p.grad for p in model.parameters()]
    total = torch.nn.utils.get_total_norm(grads)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, total)


def by_groups(model: Any, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model[0].parameters(), MAX_NORM)
    torch.nn.utils.clip_grad_norm_(model[1].parameters(), 2 * MAX_NORM)  # the rest is not clipped


def twice(model: Any, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e-5)


CLIPS: dict[str, Clip] = {
    "norm": lambda m, o: torch.nn.utils.clip_grad_norm_(m.parameters(), MAX_NORM),
    "imported early": lambda m, o: early_import(m.parameters(), MAX_NORM),
    "largest": lambda m, o: torch.nn.utils.clip_grad_norm_(m.parameters(), MAX_NORM, math.inf),
    "by name": lambda m, o: torch.nn.utils.clip_grad_norm_(parameters=m.parameters(), max_norm=MAX_NORM),
    "value": lambda m, o: torch.nn.utils.clip_grad_value_(m.parameters(), 1e-5),
    "total": by_total,
    "groups": by_groups,
    "twice": twice,
}


def gradients(model: Any, ids: Tensor) -> dict[str, float]:
    """Norms of the gradients of one backward pass, by weight."""
    model.zero_grad()
    backward(loss_of(model, ids))
    found = {n: float(p.grad.double().norm()) for n, p in model.named_parameters()}
    model.zero_grad()
    return found


def train(model: Any, optimizer: Any, clip: Clip, monitor: Any, steps: int = 3) -> Tensor:
    for step in range(steps):
        backward(loss_of(model, batch(step)))
        clip(model, optimizer)
        optimizer.step()
        if monitor is not None:
            monitor.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_norms_are_those_before_clipping_and_training_is_the_same(tmp_path: Path, clip: Clip) -> None:
    model = small_model()
    expected = gradients(model, batch(0))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with recording(tmp_path, model, optimizer) as found:
        watched = train(model, optimizer, clip, found.monitor)
    other = small_model()
    alone = train(other, torch.optim.AdamW(other.parameters(), 1e-2), clip, None)
    assert torch.equal(watched, alone)
    total = math.sqrt(sum(norm**2 for norm in expected.values()))
    assert found.rows[0]["grad_norm"] == pytest.approx(total, rel=1e-5)
    for name, norm in found.tensors(0, "grad_norm").items():
        assert norm == pytest.approx(expected[name.replace("/", ".")], rel=1e-5)
    assert len(found.tensors(0, "grad_norm")) == 4
    assert found.run["config"]["grad_norm_point"] == "before clipping by torch.nn.utils"


def test_a_nan_is_found_in_its_weight_though_clipping_spreads_it(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(model, batch(0)))
        model[1].weight.grad[0, 0] = math.nan
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert bool(model[4].weight.grad.isnan().all()), "clipping has spread it"
        optimizer.step()
        found.monitor.step()
    norms = found.tensors(0, "grad_norm")
    assert norms["1/weight"] == "NaN"
    assert all(isinstance(norm, float) for name, norm in norms.items() if name != "1/weight")
    assert found.rows[0]["grad_norm"] == "NaN"


def test_the_loop_that_leaves_out_a_step_has_shown_its_gradients(tmp_path: Path) -> None:
    model = small_model()
    expected = gradients(model, batch(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(model, batch(0)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.zero_grad()
        found.monitor.step()
        backward(loss_of(model, batch(0)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.monitor.step()
    total = math.sqrt(sum(norm**2 for norm in expected.values()))
    assert [row.get("grad_norm") for row in found.rows] == pytest.approx([total, total], rel=1e-5)


def test_clipping_after_each_micro_batch_counts_the_sum_that_the_step_uses(tmp_path: Path) -> None:
    def accumulate(model: Any) -> float:
        norm = 0.0
        for micro in range(3):
            backward(loss_of(model, batch(micro)))
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        return norm

    expected = accumulate(small_model())
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        accumulate(model)
        optimizer.step()
        found.monitor.step()
    assert len(found.rows) == 1
    assert found.rows[0]["grad_norm"] == pytest.approx(expected, rel=1e-4)


def test_a_gradient_that_grows_after_clipping_is_read_as_the_step_uses_it(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(model, batch(0)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        backward(loss_of(model, batch(1)))
        expected = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        optimizer.step()
        found.monitor.step()
    assert found.rows[0]["grad_norm"] == pytest.approx(expected, rel=1e-5)


def test_parameters_of_another_model_are_none_of_ours(tmp_path: Path) -> None:
    model, other = small_model(), small_model(1)
    expected = gradients(model, batch(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        backward(loss_of(other, batch(0)))
        torch.nn.utils.clip_grad_norm_(other.parameters(), MAX_NORM)
        backward(loss_of(model, batch(0)))
        optimizer.step()
        found.monitor.step()
    assert found.rows[0]["grad_norm"] == pytest.approx(math.hypot(*expected.values()), rel=1e-5)
    assert found.run["config"]["grad_norm_point"].startswith("at optimizer.step; no clipping")


@pytest.mark.parametrize("unscales", [True, False])
def test_gradients_that_a_loss_scale_multiplies_are_in_true_units(tmp_path: Path, unscales: bool) -> None:
    model = small_model()
    expected = [math.hypot(*gradients(model, batch(step)).values()) for step in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recording(tmp_path, model, optimizer, scaler=scaler) as found:
        for step in range(2):
            scaled: Tensor = scaler.scale(loss_of(model, batch(step)))
            backward(scaled)
            if unscales:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
            scaler.update()
            found.monitor.step()
            optimizer.zero_grad()
    assert [row["grad_norm"] for row in found.rows] == pytest.approx(expected, rel=1e-4)


def test_a_scaler_that_another_run_has_left_divides_nothing(tmp_path: Path) -> None:
    left = torch.amp.GradScaler("cpu", init_scale=1024.0)
    left.scale(torch.ones(()))
    model = small_model()
    expected = math.hypot(*gradients(model, batch(0)).values())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        train(model, optimizer, CLIPS["norm"], found.monitor, steps=1)
    assert left.is_enabled()
    assert found.rows[0]["grad_norm"] == pytest.approx(expected, rel=1e-5)


def test_a_skipped_step_shows_which_gradient_was_infinite(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recording(tmp_path, model, optimizer, scaler=scaler) as found:
        scaled: Tensor = scaler.scale(loss_of(model, batch(0)))
        backward(scaled)
        model[4].weight.grad[0, 0] = math.inf
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.monitor.step()
    norms = found.tensors(0, "grad_norm")
    assert [name for name, norm in norms.items() if not isinstance(norm, float)] == ["4/weight"]


def functions() -> list[Any]:
    utils: Any = torch.nn.utils
    return [
        utils.clip_grad_norm_, utils.clip_grads_with_norm_, utils.clip_grad_value_,
        clip_grad.clip_grad_norm_, clip_grad._clip_grads_with_norm_, clip_grad.clip_grad_value_,
    ]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_monitors_leave_torch_as_it_was_in_any_order(tmp_path: Path, order: tuple[int, int]) -> None:
    before = functions()
    monitors = []
    for index in range(2):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        (tmp_path / str(index)).mkdir()
        context = recording(tmp_path / str(index), model, optimizer)
        context.__enter__()
        monitors.append(context)
    assert functions() != before
    monitors[order[0]].__exit__(None, None, None)
    assert functions() != before
    monitors[order[1]].__exit__(None, None, None)
    assert functions() == before


def test_before_torch_2_6_the_public_function_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old_clip_grad_norm_(parameters: Any, max_norm: float) -> Tensor:
        grads = [p.grad for p in parameters if p.grad is not None]
        total = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in grads]))
        for grad in grads:
            grad.mul_(max_norm / (total + 1e-6))
        return torch.as_tensor(total)

    monkeypatch.delattr(clip_grad, "_clip_grads_with_norm_")
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", old_clip_grad_norm_)
    monkeypatch.setattr(clip_grad, "clip_grad_norm_", old_clip_grad_norm_)
    model = small_model()
    expected = gradients(model, batch(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(tmp_path, model, optimizer) as found:
        train(model, optimizer, CLIPS["norm"], found.monitor, steps=1)
    assert found.rows[0]["grad_norm"] == pytest.approx(math.hypot(*expected.values()), rel=1e-5)


def test_a_step_with_a_closure_is_read_when_the_closure_has_run(tmp_path: Path) -> None:
    """As Lightning and Composer train: zero_grad, forward, backward and clipping inside the step."""
    model = small_model()
    expected = [math.hypot(*gradients(model, batch(step)).values()) for step in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with recording(tmp_path, model, optimizer) as found:
        for step in range(3):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch(step))
                backward(loss)
                if step == 1:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                return loss

            optimizer.step(closure=closure) if step == 2 else optimizer.step(closure)
            found.monitor.step()
    assert [row["grad_norm"] for row in found.rows] == pytest.approx(expected, rel=1e-5)


def test_an_optimizer_that_calls_its_closure_many_times_is_measured_at_the_first(tmp_path: Path) -> None:
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(16, 4, dtype=torch.float64)
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=5)
    with recording(tmp_path, model, optimizer, layer_hooks=False) as found:

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(x).square().mean()
            backward(loss)
            return loss

        closure()
        weight: Any = model.weight
        expected = float(weight.grad.norm())
        optimizer.step(closure)
        found.monitor.step()
    assert found.rows[0]["grad_norm"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its way into the compiler
def test_compiled_clipping_and_steps_stay_whole_and_are_read(tmp_path: Path) -> None:
    """What the agent adds is not traced: as many graphs as without it, and the same weights."""

    def run(path: Path | None) -> tuple[int, Tensor]:
        torch._dynamo.reset()
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        model = nn.Linear(4, 4)
        nn.init.constant_(model.weight, 0.5)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def clip_all() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        def take_step() -> None:
            optimizer.step()

        clip: Any = torch.compile(clip_all, backend=backend)
        step: Any = torch.compile(take_step, backend=backend)

        def steps(monitor: Any) -> None:
            for _ in range(3):
                backward(model(torch.ones(2, 4)).sum())
                clip()
                step()
                if monitor is not None:
                    monitor.step()
                optimizer.zero_grad()

        if path is None:
            steps(None)
        else:
            with recording(path, model, optimizer, layer_hooks=False) as found:
                steps(found.monitor)
            assert [row["grad_norm"] for row in found.rows] == pytest.approx([0.01] * 3, rel=1e-4)
        return len(graphs), torch.cat([p.detach().flatten() for p in model.parameters()])

    alone, watched = run(None), run(tmp_path)
    assert watched[0] == alone[0]
    assert torch.equal(watched[1], alone[1])
