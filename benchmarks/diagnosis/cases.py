"""A case of the library: a fault at one severity with what a diagnosis should say, or a control that it
should stay silent on; and where and when a case is put into a run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from benchmarks.diagnosis.rank_views import View
from benchmarks.diagnosis.settings import RECIPES, Base
from benchmarks.diagnosis.store import CHUNK_STEPS, chunk_ends
from floatscope.protocol.batch import Batch
from floatscope_trainer.faults.fault import Fault, Scene
from floatscope_trainer.precision import linear_names
from floatscope_trainer.training import Training

On = Literal["any", "fp8", "delayed", "window", "fp16", "not_fp16"]
"""Recipes a case makes sense with; window: delayed scaling by the largest of the history."""
When = Literal["any", "early", "late"]
"""Part of the learning-rate schedule.  early: first half.  late: last quarter."""

PARTS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")

Inject = Callable[[int, str], Sequence[str]]
"""From a step and a layer to the trainer's ``--inject`` values."""
Edit = Callable[[Batch, int], Batch]
"""Changes the stored columns of a run, given the step of the fault."""


@dataclass(frozen=True)
class Place:
    """Where a fault of the library's own is put: a run that is about to take ``step``, and a layer of it.

    old_weights: by parameter name, of a checkpoint before the fork; empty unless the case needs them.
    """

    training: Training
    scene: Scene
    step: int
    layer: str
    old_weights: Mapping[str, Tensor]

    @property
    def block(self) -> str:
        return ".".join(self.layer.split(".")[:2])


Build = Callable[[Place], Fault]
"""Makes a fault of the library's own."""


def no_injection(step: int, layer: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Case:
    """One fault at one severity, or one control.

    cause: of the verdict's list, ``healthy`` for controls.  kinds: equally right ones.  also: other causes
    that count as right; ``healthy`` in it means that silence does.
    layers, tensors: right answers, with ``{layer}``, ``{block}`` and ``{next}`` (the layer that reads this
    one's output); empty where the fault is everywhere or nowhere.  parts: layers it can be put into.
    held_back: a severity that the tuning split does not have.
    slow: steps after the injection in which the onset may lie; an abrupt fault has 0 or 1.  within: steps
    after that window in which it should be detected.  horizon: steps trained.
    ranks: what several ranks log of it; None for one rank.
    resumed: the first step says it follows a resume.  other_data: the data order changes with it.  cast:
    another rule of casts from the injection on.
    """

    name: str
    cause: str
    kinds: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    on: On = "any"
    when: When = "any"
    inject: Inject = no_injection
    build: Build | None = None
    edits: tuple[Edit, ...] = ()
    ranks: View | None = None
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    held_back: bool = False
    slow: int = 1
    within: int = 3
    horizon: int = 60
    resumed: bool = False
    other_data: bool = False
    cast: Literal["nonsaturating"] | None = None
    needs_old_weights: bool = False

    @property
    def is_control(self) -> bool:
        return self.cause == "healthy"

    @property
    def repeats(self) -> bool:
        """Whether a control's steps are, number by number, those of the run it is forked from."""
        return self.is_control and self.build is None and not self.other_data

    @property
    def is_abrupt(self) -> bool:
        return not self.is_control and self.slow <= 1

    def suits(self, recipe: str) -> bool:
        """Whether the case can happen under a recipe of the library."""
        precision = RECIPES[recipe]
        is_fp8 = precision.precision == "fp8"
        return {
            "any": True,
            "fp8": is_fp8,
            "delayed": is_fp8 and precision.recipe == "delayed",
            "window": is_fp8 and precision.recipe == "delayed" and precision.amax_compute_algo == "max",
            "fp16": precision.precision == "fp16",
            "not_fp16": precision.precision != "fp16",
        }[self.on]


def inside(case: Case, role: str) -> Case:
    """The case with the tensor it is put into, and that tensor's layer, as the right answers."""
    return replace(case, layers=("{layer}",), tensors=("{layer}/" + role,))


@dataclass(frozen=True)
class Scenario:
    """A case in its place.

    step: the first faulty step, at which the run is forked.  layer: the linear layer it is put into.
    """

    case: Case
    step: int
    layer: str

    @property
    def id(self) -> str:
        return f"{self.case.name}-{self.layer}-{self.step}"


def fill(patterns: Sequence[str], *, layer: str, depth: int) -> list[str]:
    """Names from patterns with ``{layer}``, ``{block}`` and ``{next}``."""
    block = ".".join(layer.split(".")[:2])
    order = [*linear_names(depth), "head"]
    following = order[order.index(layer) + 1]
    return [p.format(layer=layer, block=block, next=following) for p in patterns]


def draw_scenarios(base: Base, cases: Sequence[Case], *, depth: int, count: int) -> list[Scenario]:
    """``count`` cases for a run, each in a layer and at a step.

    The tuning split gets no severity that is held back. What is drawn depends on the names of the run and the
    case alone, so that a new case leaves the others where they are; over many runs all cases are met.
    """
    allowed = [c for c in cases if base.split != "tune" or not c.held_back]
    fitting = [c for c in allowed if c.suits(base.recipe) and fork_steps(base, c)]
    chosen = sorted(fitting, key=lambda case: _number(base, case))[:count]
    return [_placed(base, case, depth=depth) for case in chosen]


def _placed(base: Base, case: Case, *, depth: int) -> Scenario:
    draw = np.random.default_rng(_number(base, case))
    steps = fork_steps(base, case)
    layers = [name for name in linear_names(depth) if name.split(".", 2)[2] in case.parts]
    step, layer = steps[int(draw.integers(len(steps)))], layers[int(draw.integers(len(layers)))]
    return Scenario(case=case, step=step, layer=layer)


def _number(base: Base, case: Case) -> int:
    return zlib.crc32(f"{base.id}/{case.name}".encode())


def fork_steps(base: Base, case: Case) -> list[int]:
    """Ends of stored pieces at which the case can start, with room for its horizon and its healthy pair.

    Empty for a run that is too short.
    """
    ends = [e for e in chunk_ends(base)[:-1] if e + case.horizon <= base.steps]
    if case.needs_old_weights:
        ends = [e for e in ends if e - CHUNK_STEPS in ends]
    if case.when == "early":
        return [e for e in ends if e <= base.steps // 2] or ends[:1]
    if case.when == "late":
        return [e for e in ends if e >= 3 * base.steps // 4] or ends[-1:]
    return ends
