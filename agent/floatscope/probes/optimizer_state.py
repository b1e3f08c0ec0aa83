"""The optimizer's own memory: second moments that are zero, and state that is NaN or Inf.

A second moment of exactly 0 after the first step means that the gradient has always been 0 or has always
underflowed when squared: Adam then divides by its epsilon. Read on sampled steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from floatscope.probes.gradients import by_device, local_values
from floatscope.probes.host_norms import host_amax
from floatscope.probes.readout import Readout
from floatscope.probes.weights import Weight
from floatscope.rows import Row

SECOND_MOMENT = "exp_avg_sq"
ZERO_PCT = "zero_second_moment_pct"
NONFINITE = "optimizer_state_nonfinite"


class StateCheck:
    """Reads the state of optimizers, all of them into the same scalars of a step.

    ``zero_second_moment_pct``: elements of second moments that are exactly 0, of those that have seen two
    steps or more.  ``optimizer_state_nonfinite``: how many tensors of the state hold a NaN or an Inf.
    say_once: tells the user what is left out, under a key.
    """

    def __init__(self, say_once: Callable[[str, str], None]) -> None:
        self._say_once = say_once
        self._sum = _Sums()

    def read(self, optimizer: torch.optim.Optimizer, weights: Sequence[Weight], readout: Readout) -> None:
        """Call after the optimizer's step, on a sampled step."""
        moments: list[Tensor] = []
        steps: list[Any] = []
        states: list[Tensor] = []
        group_steps = _group_steps(optimizer)
        for weight in weights:
            state = optimizer.state.get(weight.parameter)  # a defaultdict: get adds nothing
            if not isinstance(state, Mapping):
                continue
            for name, values in self._readable(state):
                states.append(values)
                if name == SECOND_MOMENT:
                    moments.append(values)
                    steps.append(state.get("step", group_steps.get(id(weight.parameter))))
        self._read_nonfinite(states, readout)
        self._read_zeros(moments, steps, readout)

    def _readable(self, state: Mapping[Any, Any]) -> Iterator[tuple[Any, Tensor]]:
        for name, values in state.items():
            if not isinstance(values, Tensor) or name == "step":
                continue
            found = local_values(values)
            if found is not None and not is_traceable_wrapper_subclass(found):
                yield name, found
            elif values.numel() > 1 and values.device.type != "meta":
                self._say_once(
                    "optimizer state",
                    f"optimizer state {str(name)[:60]!r} is stored as {_kind(values)}; "
                    "it is not checked for zeros and non-finite values.",
                )

    def _read_nonfinite(self, states: Sequence[Tensor], readout: Readout) -> None:
        for indices in by_device(states).values():
            # the largest magnitude of a tensor is NaN or Inf when one element is, and cannot overflow
            here = [states[i] for i in indices]
            if here[0].device.type == "cpu":
                largest = [host_amax(state) for state in here]
            else:
                largest = list(torch._foreach_norm(here, float("inf")))
            readout.add(torch.stack([one.to(torch.float32) for one in largest]), self._sum.nonfinite())

    def _read_zeros(self, moments: Sequence[Tensor], steps: Sequence[Any], readout: Readout) -> None:
        for indices in by_device(moments).values():
            counted = [i for i in indices if steps[i] is not None]
            if not counted:
                continue
            numel = np.array([moments[i].numel() for i in counted], np.float64)
            part = self._sum.zeros(numel)
            nonzero = torch.stack([torch.count_nonzero(moments[i]) for i in counted])
            readout.add(nonzero, part.take_nonzero)
            tensors = [(at, steps[i]) for at, i in enumerate(counted) if isinstance(steps[i], Tensor)]
            for places in by_device(step for _, step in tensors).values():
                stacked = torch.stack([tensors[p][1].detach().reshape(()) for p in places])
                readout.add(stacked, partial(part.take_steps, [tensors[p][0] for p in places]))
            plain = [
                (at, float(steps[i])) for at, i in enumerate(counted) if not isinstance(steps[i], Tensor)
            ]
            if plain:
                readout.add_values([n for _, n in plain], partial(part.take_steps, [at for at, _ in plain]))

    def close(self) -> None:
        """The step is over: what comes is counted anew."""
        self._sum = _Sums()


def _group_steps(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """Step counts by parameter of optimizers that count per group (Apex, Transformer Engine)."""
    return {
        id(parameter): group["step"]
        for group in optimizer.param_groups
        if "step" in group
        for parameter in group["params"]
    }


def _kind(values: Tensor) -> str:
    name = type(values).__name__
    return str(values.dtype).removeprefix("torch.") if name in ("Tensor", "DTensor") else name


class _Sums:
    """What the parts of one step add up to; written by the last of them, in the sender's thread."""

    def __init__(self) -> None:
        self._states_left = 0
        self._bad = 0
        self._parts_left = 0
        self._zero = 0.0
        self._numel = 0.0

    def nonfinite(self) -> Callable[[NDArray[np.float64], Row], None]:
        self._states_left += 1
        return self._add_nonfinite

    def _add_nonfinite(self, values: NDArray[np.float64], row: Row) -> None:
        self._bad += int(np.count_nonzero(~np.isfinite(values)))
        self._states_left -= 1
        if self._states_left == 0:
            row.scalars.setdefault(NONFINITE, float(self._bad))

    def zeros(self, numel: NDArray[np.float64]) -> _Zeros:
        self._parts_left += 1
        return _Zeros(self, numel)

    def add_zeros(self, zero: float, numel: float, row: Row) -> None:
        self._zero += zero
        self._numel += numel
        self._parts_left -= 1
        if self._parts_left == 0 and self._numel:
            row.scalars.setdefault(ZERO_PCT, 100.0 * self._zero / self._numel)


class _Zeros:
    """Second moments on one device: counts and step numbers arrive separately."""

    def __init__(self, sums: _Sums, numel: NDArray[np.float64]) -> None:
        self._sums = sums
        self._numel = numel
        self._nonzero: NDArray[np.float64] | None = None
        self._steps = np.full(len(numel), np.nan)

    def take_nonzero(self, values: NDArray[np.float64], row: Row) -> None:
        self._nonzero = values
        self._finish(row)

    def take_steps(self, at: Sequence[int], values: NDArray[np.float64], row: Row) -> None:
        self._steps[list(at)] = values
        self._finish(row)

    def _finish(self, row: Row) -> None:
        if self._nonzero is None or np.isnan(self._steps).any():
            return
        old = self._steps > 1
        self._sums.add_zeros(
            float((self._numel - self._nonzero)[old].sum()), float(self._numel[old].sum()), row
        )
