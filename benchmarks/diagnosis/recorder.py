"""Records a training run as columns: what the agent measures, on every step, without a log file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.diagnosis.clock import step_times, time_of
from floatscope.probes.measure import FIELDS, on_cpu
from floatscope.protocol.batch import Batch
from floatscope.protocol.formats import FORMATS
from floatscope_trainer.data import IGNORED_LABEL, TokenBatch
from floatscope_trainer.training import StepRecord, Training

_AT = {name: index for index, name in enumerate(FIELDS)}
_UPDATES = ("grad_norm", "update_ratio", "unchanged_pct")


class Recorder:
    """Measures every quantized tensor, the embedding's output and the head of an emulated run.

    Definitions are the agent's (``floatscope.probes.measure``). Per weight the gradient norm after clipping,
    the update ratio and the unchanged share.

    layers: the run's quantized linear layers by name, in call order.
    """

    def __init__(self, training: Training, *, layers: Mapping[str, Any]) -> None:
        self._training = training
        model = training.model
        order = ["tok_emb", *layers, "head"]
        self._call_order = {layer: index for index, layer in enumerate(order)}
        self._formats = {
            f"{name}/{role}": q.fmt for name, m in layers.items() for role, q in m.quantizers.items()
        }
        self._formats |= {"tok_emb/output": "fp32"}
        self._formats |= {f"head/{role}": "fp32" for role in ("input", "weight", "grad_output")}
        self.tensor_names = tuple(sorted(self._formats))
        self._slot = {name: index for index, name in enumerate(self.tensor_names)}
        self._layer_of = {id(module): name for name, module in layers.items()}
        state = next(iter(layers.values())).fp8_global_state
        self._handles: list[Any] = [state.register_inspector(self._inspect)]
        self._handles.append(model.get_submodule("blocks.0").register_forward_pre_hook(self._embedding))
        self._handles.append(model.get_submodule("head").register_forward_hook(self._head))
        self._handles.append(training.optimizer.register_step_pre_hook(self._keep))
        self._parameters = [(n, p) for n, p in model.named_parameters()]
        self._weight_rows = [
            (index, self._slot[n.replace(".weight", "/weight")])
            for index, (n, _) in enumerate(self._parameters)
            if n.replace(".weight", "/weight") in self._slot
        ]
        self._now: list[list[float] | None] = [None] * len(self.tensor_names)
        self._labels = 0
        self._old: list[Tensor] = []
        self._steps: list[int] = []
        self._scalars: list[dict[str, float]] = []
        self._measured: list[list[list[float] | None]] = []
        self._updates: list[NDArray[np.float64]] = []

    def tensors(self) -> dict[str, dict[str, Any]]:
        """The table of the run object: format and call order by tensor."""
        return {
            name: {"format": fmt, "call_order": self._call_order[name.rpartition("/")[0]]}
            for name, fmt in self._formats.items()
        }

    def step(self) -> StepRecord:
        """Trains one step and records it. Nothing of a step that raises is kept."""
        self._now = [None] * len(self.tensor_names)
        self._labels = 0
        self._old = []
        record = self._training.step(see_batch=self._batch)
        scalars = record.scalars()
        updates, more = self._compare()
        seconds, data_s = step_times(self._training.config.seed, record.step)
        scalars |= more
        scalars |= {"label_tokens": self._labels, "step_time_s": seconds, "data_time_s": data_s}
        self._steps.append(record.step)
        self._scalars.append(scalars)
        self._measured.append(self._now)
        self._updates.append(updates)
        return record

    def mark(self, name: str, value: float) -> None:
        """Sets a scalar of the last recorded step."""
        self._scalars[-1][name] = value

    def close(self) -> None:
        """Takes the probes off."""
        for handle in self._handles:
            handle.remove()

    def take(self) -> Batch:
        """The steps recorded since the last call."""
        made = columns(
            steps=self._steps,
            scalars=self._scalars,
            tensor_names=self.tensor_names,
            measured=self._measured,
            updates=self._updates,
            has_scale=np.array([FORMATS[self._formats[n]].is_scaled for n in self.tensor_names], bool),
        )
        self._steps, self._scalars, self._measured, self._updates = [], [], [], []
        return made

    def _keep(self, *_: Any) -> None:
        """Just before the optimizer's update, so that what changes a weight earlier is not part of it."""
        self._old = [p.detach().clone() for _, p in self._parameters]

    def _batch(self, batch: TokenBatch) -> None:
        self._labels += int((batch.labels != IGNORED_LABEL).sum())

    @torch.no_grad()
    def _inspect(
        self, module: nn.Module, role: str, tensor: Tensor, used: Tensor, scale: Tensor | None, fmt: str
    ) -> None:
        slot = self._slot[f"{self._layer_of[id(module)]}/{role}"]
        self._now[slot] = on_cpu(tensor, used, scale, FORMATS[fmt])

    def _embedding(self, module: nn.Module, args: Any) -> None:
        if args[0].requires_grad:  # an evaluation is not recorded
            self._plain("tok_emb/output", args[0])

    def _head(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if not output.requires_grad:
            return
        self._plain("head/input", args[0])
        self._plain("head/weight", self._training.model.get_parameter("head.weight"))
        output.register_hook(partial(self._plain, "head/grad_output"))  # type: ignore[no-untyped-call]

    def _plain(self, name: str, tensor: Tensor) -> None:
        self._now[self._slot[name]] = on_cpu(tensor.detach(), None, None, FORMATS["fp32"])

    @torch.no_grad()
    def _compare(self) -> tuple[NDArray[np.float64], dict[str, float]]:
        """Per tensor (grad_norm, update_ratio, unchanged_pct), NaN for all but weights; and scalars."""
        parameters = [p.detach() for _, p in self._parameters]
        if not self._old:  # the loss scaler skipped the update
            self._old = [p.clone() for p in parameters]
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for _, p in self._parameters]
        differences = torch._foreach_sub(parameters, self._old)
        grad_norms, updates, sizes = (
            torch.stack(torch._foreach_norm(t)).double().numpy() for t in (grads, differences, self._old)
        )
        total = sum(p.numel() for p in parameters)
        flat = torch.cat([g.reshape(-1) for g in grads])
        out = np.full((3, len(self.tensor_names)), np.nan)
        for index, slot in self._weight_rows:
            same = parameters[index].numel() - int(torch.count_nonzero(differences[index]))
            with np.errstate(invalid="ignore"):
                ratio = updates[index] / sizes[index] if sizes[index] else math.nan
            out[:, slot] = grad_norms[index], ratio, 100.0 * same / parameters[index].numel()
        return out, {
            "update_norm": float(np.sqrt(np.sum(np.square(updates)))),
            "param_norm": float(np.sqrt(np.sum(np.square(sizes)))),
            "zero_grad_pct": 100.0 * (total - int(torch.count_nonzero(flat))) / total,
        }


def columns(
    *,
    steps: list[int],
    scalars: list[dict[str, float]],
    tensor_names: tuple[str, ...],
    measured: list[list[list[float] | None]],
    updates: list[NDArray[np.float64]],
    has_scale: NDArray[np.bool_],
) -> Batch:
    """A batch from what was recorded.

    measured: per step and tensor the fields of ``measure``, or None where nothing was measured.
    updates: per step float64 [3, S].  has_scale: [S].
    """
    if not steps:
        return Batch(np.empty(0, np.int64), np.empty(0), (), np.empty((0, 0)), np.empty((0, 0), bool))
    names = tuple(sorted({name for row in scalars for name in row}))
    values = np.array([[row.get(name, np.nan) for name in names] for row in scalars], np.float64)
    present = np.array([[name in row for name in names] for row in scalars], bool)
    blank = [math.nan] * len(FIELDS)
    fields = np.array([[blank if m is None else m for m in row] for row in measured], np.float64)
    was_measured = np.array([[m is not None for m in row] for row in measured], bool)
    stats, masks = statistics(fields, was_measured, has_scale)
    change = np.array(updates, np.float64)
    for index, name in enumerate(_UPDATES):
        is_weight = np.array([n.endswith("/weight") for n in tensor_names])
        mask = np.broadcast_to(is_weight, change[:, index].shape).copy()
        if name == "update_ratio":  # a weight of zeros has none; a NaN update is a value
            mask &= ~np.isnan(change[:, index]) | np.isnan(change[:, 0])
        stats[name], masks[name] = change[:, index], mask
    narrow: dict[str, NDArray[np.float32]] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, wide in stats.items():
            small = wide.astype(np.float32)
            masks[name] &= ~(np.isinf(small) & np.isfinite(wide))
            narrow[name] = np.where(masks[name], small, np.float32(0))
    return Batch(
        step=np.array(steps, np.int64),
        time=np.array([time_of(step) for step in steps]),
        scalar_names=names,
        scalars=np.where(present, values, 0.0),
        scalars_present=present,
        tensor_names=tensor_names,
        stat_row=np.arange(len(steps), dtype=np.int64),
        stats=narrow,
        stats_present=masks,
    )


def statistics(
    fields: NDArray[np.float64], measured: NDArray[np.bool_], has_scale: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.bool_]]]:
    """The protocol's statistics, float64 [T, S] with masks, from fields [T, S, FIELDS] of single passes."""
    f: Mapping[str, NDArray[np.float64]] = {name: fields[..., index] for name, index in _AT.items()}
    finite = f["n"] - f["nan"] - f["inf"]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {
            "amax": f["amax"],
            "rms": f["norm"] / np.sqrt(finite),
            "nan_count": f["nan"],
            "inf_count": f["inf"],
            "zero_pct": 100.0 * f["zero"] / f["n"],
            "scale": f["scale"],
            "amax_min_block": f["min_block"],
            "overflow_pct": 100.0 * f["over"] / f["n"],
            "underflow_pct": 100.0 * f["under"] / f["n"],
            "sqnr_db": 20.0 * np.log10(f["signal"] / f["noise"]),
        }
        present = {
            "amax": ~np.isnan(f["amax"]),
            "rms": finite > 0,
            "nan_count": measured.copy(),
            "inf_count": measured.copy(),
            "zero_pct": measured.copy(),
            "scale": measured & has_scale,
            "amax_min_block": f["min_block"] >= 0,
            "overflow_pct": f["over"] >= 0,
            "underflow_pct": f["under"] >= 0,
            "sqnr_db": (f["signal"] > 0) & (f["noise"] > 0),
        }
    kept = {name: mask & measured for name, mask in present.items()}
    used = [name for name, mask in kept.items() if mask.any()]
    return {name: values[name] for name in used}, {name: kept[name] for name in used}
