"""However the loop trains: the weights are the same bit for bit with and without the agent, the agent does
not fail, and nothing of it is left afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.agent.same_weights import Job, Watcher, check, parametrise
from tests.agent.test_same_weights import WIDTH, adam, data, net, train, turn


def evaluates_in_between(watch: Watcher) -> Any:
    """eval(), no_grad and inference_mode between and inside steps, with dropout and batch norm."""
    model = net(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    seen: list[Any] = []
    for step in range(4):
        model.eval()
        with torch.no_grad():
            seen.append(model(data(step + 50)))
        with torch.inference_mode():
            seen.append(model(data(step + 60)).sum().item())
        model.train()
        turn(model, optimizer, monitor, step)
        with torch.inference_mode():
            monitor.log({"eval_loss": model(data(step)).sum()})
    return model, seen


def only_inference(watch: Watcher) -> Any:
    """A whole loop inside inference_mode: steps without any gradient."""
    model = net()
    optimizer = adam(model)
    with torch.inference_mode():
        monitor = watch(model, optimizer)
        for step in range(3):
            monitor.batch(data(step))
            monitor.step(loss=model(data(step)).sum())
    return model


def functional_transforms(watch: Watcher) -> Any:
    """torch.func: functional_call, grad, vmap over samples, jvp, through the watched model."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = watch(model, optimizer)
    weights = dict(model.named_parameters())

    def loss_of(weights: Any, x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (x,)).pow(2).mean()
        return out

    for step in range(3):
        monitor.batch(data(step))
        whole = torch.func.grad(loss_of)(weights, data(step))
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(weights, data(step))
        moved: Any = torch.func.jvp(model, (data(step),), (data(step + 1),))
        for name, weight in weights.items():
            weight.grad = whole[name].detach() + each[name].mean(0).detach() + moved[1].mean().detach()
        optimizer.step()
        monitor.step()
    return model


def hooks_of_the_user_that_raise(watch: Watcher) -> Any:
    """Hooks of the user before and after the agent's, some of which raise and are caught by the loop."""
    model = net()
    optimizer = adam(model)
    calls: list[int] = []

    def angry(*args: Any) -> None:
        calls.append(1)
        if len(calls) % 3 == 0:
            raise RuntimeError("the user's own hook")

    model[0].register_forward_hook(angry)
    monitor = watch(model, optimizer)
    model[0].register_forward_pre_hook(angry)
    model[-1].register_full_backward_hook(angry)
    optimizer.register_step_post_hook(angry)
    for step in range(8):
        with contextlib.suppress(RuntimeError):
            turn(model, optimizer, monitor, step)
    return model, len(calls)


def errors_in_forward_and_backward(watch: Watcher) -> Any:
    """Exceptions in the middle of forward, backward and the optimizer's step that the loop survives."""

    class Failing(nn.Module):
        at = ""

        def forward(self, x: Tensor) -> Tensor:
            """x: any shape."""
            if self.at == "forward":
                raise ValueError("no forward today")
            x = x * 1.0
            if self.at == "backward":
                watched: Any = x
                watched.register_hook(lambda g: g.reshape(77))
            return x

    part = Failing()
    model = net(part)
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step, at in enumerate(["", "forward", "backward", "", "forward", ""]):
        part.at = at
        with contextlib.suppress(ValueError, RuntimeError):
            turn(model, optimizer, monitor, step)
    return model


def accumulates(watch: Watcher) -> Any:
    """Micro-batches, clipping after each, a second forward before the first backward, a retained graph."""
    model = net(nn.ReLU(inplace=True))
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        first, second = model(data(step)).mean(), model(data(step + 10)).mean()
        torch.autograd.backward(second)
        torch.autograd.backward(first, retain_graph=True)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.autograd.backward(first)
        nn.utils.clip_grad_value_(model.parameters(), 0.2)
        optimizer.step()
        optimizer.step()
        monitor.step(loss=first, norm=norm)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return model


def second_derivatives(watch: Watcher) -> Any:
    """A gradient penalty: gradients of gradients through the hooked layers."""
    model = net()
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        x = data(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (slope.norm(dim=1) - 1).pow(2).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        monitor.step(loss=loss)
        optimizer.zero_grad()
    return model


def recomputes(watch: Watcher) -> Any:
    """Activation checkpointing of both kinds with dropout, saved-tensor hooks, anomaly detection."""
    model = net(nn.Dropout(0.5))

    def call(x: Tensor) -> Tensor:
        x = checkpoint(model[0:2], x, use_reentrant=False)
        out: Tensor = checkpoint(model[2:], x, use_reentrant=True)
        return out

    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t),
            torch.autograd.set_detect_anomaly(step == 1, check_nan=False),
        ):
            turn(call, optimizer, monitor, step)
    return model


def closures(watch: Watcher) -> Any:
    """L-BFGS, which calls the loop's closure several times a step."""
    model = net()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
    monitor = watch(model, optimizer)
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(data(step)).pow(2).mean()
            torch.autograd.backward(loss)
            return loss

        monitor.step(loss=optimizer.step(closure))
    return model


def scaled_losses(watch: Watcher) -> Any:
    """A GradScaler that meets infinities and leaves out steps."""
    model = net()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    monitor = watch(model, optimizer, scaler=scaler)
    for step in range(5):
        loss = model(data(step)).mean() * (float("inf") if step == 2 else 1.0)
        torch.autograd.backward(scaler.scale(loss))
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        monitor.step(loss=loss)
        optimizer.zero_grad()
    return model, scaler.state_dict()


def every_kind_of_layer(watch: Watcher) -> Any:
    """Recurrent, convolutional, attention and normalised layers; parametrised and scripted ones."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
            self.mixed = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
            self.pair = nn.Bilinear(WIDTH, WIDTH, WIDTH)
            trace: Any = torch.jit.trace
            self.scripted = trace(nn.Linear(WIDTH, WIDTH), torch.ones(1, WIDTH))
            self.loose = nn.ParameterList([nn.Parameter(torch.ones(WIDTH))])
            self.norm = nn.GroupNorm(2, WIDTH)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            """x: (batch, WIDTH). Returns a dict, as models of the transformers library do."""
            x, _ = self.lstm(x[:, None].expand(-1, 3, -1))
            x = self.conv(x.transpose(1, 2)).transpose(1, 2)
            x = x + self.mixed(x, x, x, need_weights=False)[0]
            x = self.scripted(self.pair(self.spectral(x), x)) * self.loose[0]
            return {"out": self.norm(x.transpose(1, 2))}

    model = Mixed()
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        turn(lambda x: model(x)["out"], optimizer, monitor, step)
    return model


class Picky(Tensor):
    """A tensor that refuses what it does not know, as quantised weights of some packages do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = ("linear", "detach", "requires_grad", "grad", "__get__", "__set__", "is_leaf", "mul", "add_")
        name = getattr(func, "__name__", "")
        if not any(part in name for part in known):
            raise NotImplementedError(f"{name} of a picky tensor")
        above: Any = super()
        return above.__torch_function__(func, types, args, kwargs or {})


def picky_tensors(watch: Watcher) -> Any:
    """Weights and activations of a subclass that raises on most functions."""
    model = net()
    model[0].weight.data = model[0].weight.detach()
    picky = torch.ones(2, WIDTH).as_subclass(Picky)
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        monitor.batch({"picky": picky, "x": data(step)})
        with torch.no_grad():
            model[0](picky)
        turn(lambda x: model(x * 1.0), optimizer, monitor, step)
        monitor.log({"picky": torch.ones(()).as_subclass(Picky)})
    return model


def shapes_of_calls(watch: Watcher) -> Any:
    """Layers called by keyword, with nothing, by themselves; outputs in tuples, None, changed in place."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(WIDTH))

        def forward(self, *, x: Tensor | None = None) -> Any:
            """x: (..., WIDTH) or None."""
            return None if x is None else (x @ self.weight, {"aux": [x]}, "text")

    model: Any = nn.ModuleDict({"net": net(), "odd": Odd()})
    optimizer = adam(model)
    monitor = watch(model, optimizer)
    for step in range(3):
        model["odd"]()

        def call(x: Tensor) -> Tensor:
            out = model["net"][0](input=x)
            out.mul_(2.0).relu_()
            out3: Tensor = model["net"][2](out[None])
            out3.add_(1.0)
            found: Tensor = model["odd"](x=out3)[0]
            return found

        turn(call, optimizer, monitor, step)
    return model


def trained_by_hand(watch: Watcher) -> Any:
    """An optimizer that is not torch's, and none at all."""

    class Mine:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)
            self.param_groups = "not a list of groups"

        def step(self) -> None:
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter -= 0.1 * parameter.grad

        def zero_grad(self) -> None:
            for parameter in self.parameters:
                parameter.grad = None

        def state_dict(self) -> dict[str, Any]:
            return {"state": None}

    model = net()
    return train(watch, model, Mine(model.parameters()))


def groups_come_and_go(watch: Watcher) -> Any:
    """Groups are added, emptied, replaced by others, and given odd entries."""
    model, other = net(), net()
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1)
    monitor = watch([model, other], optimizer)
    for step in range(6):
        if step == 1:
            optimizer.add_param_group({"params": list(other.parameters()), "lr": torch.tensor(0.05)})
        if step == 3:
            optimizer.param_groups.pop(0)
        if step == 4:
            optimizer.param_groups[0]["params"] = []
        turn(lambda x: model(x) + other(x), optimizer, monitor, step)
    return model, other


JOBS = (
    evaluates_in_between, only_inference, functional_transforms, hooks_of_the_user_that_raise,
    errors_in_forward_and_backward, accumulates, second_derivatives, recomputes, closures, scaled_losses,
    every_kind_of_layer, picky_tensors, shapes_of_calls, trained_by_hand, groups_come_and_go,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@parametrise(*JOBS)
def test_any_kind_of_loop(job: Job, settings: str, tmp_path: Path) -> None:
    """The ways people train, and the ways training fails and goes on."""
    check(job, tmp_path, settings=settings)
