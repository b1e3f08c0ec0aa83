"""Optimizer state must stay in FP32.

What people say
    Do not touch the precision of optimizer states, or training diverges.
What is true
    It depends on which state, which format and when it is rounded. Adam's second moment spans more than
    E4M3's 17.8 binades, so with one scale its smallest elements become 0, and an update that divides by what
    is left moves by thousands of learning rates, where Adam moves by about one. The loss follows later: a
    fifth of a nat at once in this small run, +182 nats within 32 steps in a longer trained one. In E5M2 with
    a scale, or in BF16, the second moment is harmless, and so is the first one in E4M3.
How it is measured
    The bundled model, trained for 150 steps in FP32; from there AdamW with a moment stored in each of these
    ways, one scale per tensor, for 12 steps, against FP32 moments on the same batches. "Between steps": the
    update itself still uses the unrounded moment, as Transformer Engine's FusedAdam does.
What to do
    BF16 moments, as DeepSeek-V3. Before FP8 moments look at the format of the second one: Transformer
    Engine's uint8 moments are scaled to 448, E4M3's range. FS422 watches the update-to-weight ratio.
Source
    Measured; DeepSeek-V3 (arXiv 2412.19437); arXiv 2409.12517; Transformer Engine, fused_adam.py.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from floatscope_trainer.facts.bundled import config, in_fp32, training
from floatscope_trainer.facts.fact import Fact, Figure, Measured, Statement
from floatscope_trainer.facts.samples import tensor_scale, through, underflow_pct
from floatscope_trainer.training import Training

WARM_STEPS, STEPS = 150, 12
FAR = 20.0  # learning rates; Adam with sane moments stays below about 5
HARMLESS_NATS = 0.02


@dataclass(frozen=True)
class Way:
    """A way to keep a moment.  before_use: whether the update divides by the rounded one."""

    name: str
    moment: str
    fmt: str
    before_use: bool


WAYS = (
    Way("v in E4M3", "exp_avg_sq", "e4m3", before_use=True),
    Way("v in E4M3 between steps", "exp_avg_sq", "e4m3", before_use=False),
    Way("v in E5M2", "exp_avg_sq", "e5m2", before_use=True),
    Way("v in BF16", "exp_avg_sq", "bf16", before_use=True),
    Way("m in E4M3", "exp_avg", "e4m3", before_use=True),
)


def stored(moment: Tensor, fmt: str) -> Tensor:
    """What the format keeps of a moment: FP8 with a scale of its own, BF16 without."""
    if fmt == "bf16":
        return moment.to(torch.bfloat16).to(torch.float32)
    return through(moment, fmt, tensor_scale(moment, fmt)) if bool(moment.any()) else moment


def adamw_step(optimizer: torch.optim.Optimizer, way: Way | None) -> float:
    """One step of torch.optim.AdamW's formula, with a moment kept in the given way.

    Returns the largest update of an element, in learning rates, without weight decay.
    """
    farthest = 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            state["step"] += 1
            beta1, beta2 = group["betas"]
            m, v = state["exp_avg"], state["exp_avg_sq"]
            m.lerp_(p.grad, 1 - beta1)
            v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            if way is not None and way.before_use:
                state[way.moment].copy_(stored(state[way.moment], way.fmt))
            count = float(state["step"])
            root = (v / (1 - beta2**count)).sqrt_().add_(group["eps"])
            p.mul_(1 - group["lr"] * group["weight_decay"])
            update = (m / root).div_(1 - beta1**count)
            farthest = max(farthest, float(update.abs().amax()))
            p.sub_(update, alpha=group["lr"])
            if way is not None and not way.before_use:
                state[way.moment].copy_(stored(state[way.moment], way.fmt))
    return farthest


def _continue(start: Training, way: Way | None) -> tuple[list[float], float]:
    """Losses of the next steps, and the largest update in learning rates."""
    run = copy.deepcopy(start)
    updates: list[float] = []

    @torch.no_grad()
    def step(*unused: Any) -> None:
        updates.append(adamw_step(run.optimizer, way))

    run.optimizer.step = step  # type: ignore[method-assign, assignment]
    losses = [run.step(see_batch=lambda batch: None).loss for _ in range(STEPS)]
    return losses, max(updates)


def measure() -> Measured:
    """Six continuations of one run."""
    start = training(in_fp32(config(steps=WARM_STEPS + 10 * STEPS)))
    for _ in range(WARM_STEPS):
        start.step(see_batch=lambda batch: None)
    lost = {
        fmt: max(
            underflow_pct(state["exp_avg_sq"], stored(state["exp_avg_sq"], fmt))
            for state in start.optimizer.state.values()
        )
        for fmt in ("e4m3", "e5m2")
    }
    exact, usual = _continue(start, None)
    rises, updates = {}, {}
    for way in WAYS:
        losses, updates[way.name] = _continue(start, way)
        gaps = [a - b if math.isfinite(a) else math.inf for a, b in zip(losses, exact, strict=True)]
        rises[way.name] = max(gaps)
    safe = [name for name in rises if not name.startswith("v in E4M3")]
    return Measured(
        figures=(
            Figure("elements of v lost in E4M3, worst tensor", lost["e4m3"], "%"),
            Figure("elements of v lost in E5M2, worst tensor", lost["e5m2"], "%"),
            Figure("largest update, moments in FP32", usual, "learning rates", (0, FAR)),
            *(Figure(f"largest update, {name}", value, "learning rates") for name, value in updates.items()),
            *(Figure(f"largest rise of the loss, {name}", value, "nats") for name, value in rises.items()),
        ),
        claimed=tuple(
            Statement(f"{name}: updates of more than {FAR:g} learning rates", value > FAR)
            for name, value in updates.items()
        ),
        true=(
            Statement("dividing by a second moment in E4M3 fails", updates["v in E4M3"] > FAR),
            Statement("its loss rises most", max(rises, key=rises.__getitem__) == "v in E4M3"),
            Statement(
                f"v in E5M2 and BF16, m in E4M3: less than {HARMLESS_NATS:g} nats, normal updates",
                all(rises[n] < HARMLESS_NATS and updates[n] < FAR for n in safe),
            ),
        ),
    )


FACT = Fact("adam-second-moment", "partly", measure)
