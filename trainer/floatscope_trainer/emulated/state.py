"""What all FP8 modules of one model share, in the shape of Transformer Engine's `FP8GlobalStateManager`.

Transformer Engine keeps this in one class per process. Here `make_global_state` gives every model a class of
its own, so that two models in one process, or two tests, do not share scales; whoever patches or reads the
class finds the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from floatscope_trainer.emulated.casts import fp8_max
from floatscope_trainer.emulated.recipes import DelayedScaling, Recipe
from floatscope_trainer.emulated.scaling import ScalingArena

Inspector = Callable[[nn.Module, str, Tensor, Tensor, Tensor | None, str], None]
"""(module, role, tensor before the cast, what the GEMM uses instead, scale used or None, format name)."""

FORWARD_SLOTS = ("input", "weight", "output")
"""Roles by slot of the forward state, as FP8FwdTensors: GEMM1_INPUT 0, GEMM1_WEIGHT 1, GEMM1_OUTPUT 2
(unused: no FP8 output).
"""
BACKWARD_SLOTS = ("grad_output", "grad_input")
"""Roles by slot of the backward state, as FP8BwdTensors: GRAD_OUTPUT1 0, GRAD_INPUT1 1 (unused)."""


class InspectorHandle:
    """Takes an inspector off again."""

    def __init__(self, inspectors: dict[int, Inspector], key: int) -> None:
        self._inspectors = inspectors
        self._key = key

    def remove(self) -> None:
        """Removes the inspector; a second call does nothing."""
        self._inspectors.pop(self._key, None)


class FP8Module(Protocol):
    """A module with FP8 state."""

    fp8_meta: dict[str, Any]


class GlobalState:
    """The calls and names of the class; the buffers belong to the class that `make_global_state` returns.

    Buffers by key "forward_<recipe>" and "backward_<recipe>": each a list of views in order of registration.
    recording: whether casts write their amax and call the inspectors; off during evaluation.
    """

    global_amax_buffer: ClassVar[dict[str, list[Tensor]]]
    global_amax_history_buffer: ClassVar[dict[str, list[Tensor]]]
    global_scale_buffer: ClassVar[dict[str, list[Tensor]]]
    inspectors: ClassVar[dict[int, Inspector]]
    recording: ClassVar[bool] = True
    _arenas: ClassVar[dict[str, tuple[ScalingArena, DelayedScaling]]]
    _first_pending: ClassVar[bool] = False

    @classmethod
    def add_modules(cls, modules: Sequence[FP8Module], recipe: Recipe) -> None:
        """Gives each module, in call order, its `fp8_meta`; with delayed scaling scales and histories too."""
        for module in modules:
            module.fp8_meta = {
                "recipe": recipe,
                "num_gemms": 1,
                "fp8_checkpoint": True,
                "fp8_group": None,
                "fp8_max_fwd": fp8_max(recipe.fp8_format.of("input").name),
                "fp8_max_bwd": fp8_max(recipe.fp8_format.of("grad_output").name),
            }
        if isinstance(recipe, DelayedScaling):
            cls._add_scales(modules, recipe, direction="forward", meta_key="scaling_fwd", slots=FORWARD_SLOTS)
            cls._add_scales(
                modules, recipe, direction="backward", meta_key="scaling_bwd", slots=BACKWARD_SLOTS
            )

    @classmethod
    def _add_scales(
        cls,
        modules: Sequence[FP8Module],
        recipe: DelayedScaling,
        *,
        direction: str,
        meta_key: str,
        slots: Sequence[str],
    ) -> None:
        key = f"recipe={recipe!r},group=None"
        buffer = f"{direction}_{key}"
        limits = [fp8_max(recipe.fp8_format.of(role).name) for role in slots] * len(modules)
        arena = ScalingArena(limits, history_len=recipe.amax_history_len)
        states = [arena.columns(i * len(slots), len(slots)) for i in range(len(modules))]
        cls._arenas[buffer] = (arena, recipe)
        cls.global_amax_buffer[buffer] = [state.amax_history[0] for state in states]
        cls.global_amax_history_buffer[buffer] = [state.amax_history for state in states]
        cls.global_scale_buffer[buffer] = [state.scale for state in states]
        for position, (module, state) in enumerate(zip(modules, states, strict=True)):
            module.fp8_meta[meta_key] = state
            module.fp8_meta.setdefault("buffer_index_and_autocast_key", []).extend([position, key])

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Ends a pass in one direction: every history is rolled, every scale set for the next pass."""
        prefix = "forward_" if forward else "backward_"
        for buffer, (arena, recipe) in cls._arenas.items():
            if buffer.startswith(prefix):
                arena.update(algo=recipe.amax_compute_algo, margin=recipe.margin)

    @classmethod
    @contextmanager
    def autocast(cls) -> Iterator[None]:
        """One forward pass (micro-batch). At its end the forward update, as in `te.autocast`, if gradients
        are on.

        The backward update comes with the backward of the pass's first FP8 module, which is the last to run.
        """
        cls._first_pending = True
        try:
            yield
        finally:
            cls._first_pending = False
            if torch.is_grad_enabled() and cls.recording:
                cls.reduce_and_update_fp8_tensors(forward=True)

    @classmethod
    @contextmanager
    def paused(cls) -> Iterator[None]:
        """No amax is written, nothing inspected, no scale updated: an evaluation leaves no trace in training.

        In Transformer Engine an evaluation under autocast adds its amax to the open row; see `te_backend.py`.
        """
        before, cls.recording = cls.recording, False
        try:
            yield
        finally:
            cls.recording = before

    @classmethod
    def claim_first(cls) -> bool:
        """True for the first module of a pass that asks."""
        first, cls._first_pending = cls._first_pending, False
        return first

    @classmethod
    def register_inspector(cls, inspector: Inspector) -> InspectorHandle:
        """Has `inspector` called at every quantizer of the model, under no_grad, after any injected fault."""
        key = max(cls.inspectors, default=-1) + 1
        cls.inspectors[key] = inspector
        return InspectorHandle(cls.inspectors, key)


def make_global_state() -> type[GlobalState]:
    """A class with buffers of its own."""

    class FP8GlobalState(GlobalState):
        """Scales, histories and inspectors of one model."""

        global_amax_buffer: ClassVar[dict[str, list[Tensor]]] = {}
        global_amax_history_buffer: ClassVar[dict[str, list[Tensor]]] = {}
        global_scale_buffer: ClassVar[dict[str, list[Tensor]]] = {}
        inspectors: ClassVar[dict[int, Inspector]] = {}
        _arenas: ClassVar[dict[str, tuple[ScalingArena, DelayedScaling]]] = {}

        @classmethod
        def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
            """Here too, not only inherited: probes replace it in this class's own namespace."""
            super().reduce_and_update_fp8_tensors(forward=forward)

    return FP8GlobalState
