"""Brings small tensors of one step to the host without waiting for the device.

Everything that probes want to read of a step is gathered, joined into one vector per device and copied into
pinned memory on the stream the training uses. An event tells when the copy is done; nobody waits for it. On
the CPU the values are there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.rows import Row

Consumer = Callable[[NDArray[np.float64], Row], None]
"""Takes the values of what was added, flattened, and puts what they mean into the row."""

MAGIC = (
    739.25  # ends each copied vector: shows that the copy arrived when the device cannot be asked any more
)


class Readout:
    """What is to be read of one step. Add, then ``seal``."""

    def __init__(self) -> None:
        self._parts: dict[torch.device, list[tuple[torch.Tensor, Consumer]]] = {}
        self._ready: list[Callable[[Row], None]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._parts and not self._ready

    def add(self, tensor: torch.Tensor, consumer: Consumer) -> None:
        """A small tensor of any shape and real dtype; the consumer gets it flattened, as float64.

        A host tensor is copied now, a device tensor when sealed.
        """
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            values = tensor.reshape(-1).to(torch.float64, copy=True).numpy()
            self._ready.append(partial(consumer, values))
        elif tensor.device.type != "meta":
            self._parts.setdefault(tensor.device, []).append((tensor.reshape(-1), consumer))

    def add_values(self, values: Sequence[float] | NDArray[np.float64], consumer: Consumer) -> None:
        """Numbers that are on the host already."""
        self._ready.append(partial(consumer, np.asarray(values, np.float64)))

    def add_work(self, work: Callable[[Row], None]) -> None:
        """Something to do with the row in the sender's thread."""
        self._ready.append(work)

    def join(self, other: Readout) -> None:
        """Takes over what another readout has gathered."""
        for device, parts in other._parts.items():
            self._parts.setdefault(device, []).extend(parts)
        self._ready.extend(other._ready)

    def seal(self) -> Reading:
        """Starts the copies."""
        return Reading([_Copy(device, parts) for device, parts in self._parts.items()], self._ready)


class Reading:
    """A sealed readout (see ``probes.Pending``)."""

    def __init__(self, copies: list[_Copy], ready: list[Callable[[Row], None]]) -> None:
        self._copies = copies
        self._ready = ready

    def is_ready(self) -> bool:
        """Whether all copies are done."""
        return all(copy.is_done() for copy in self._copies)

    def deliver(self, row: Row) -> None:
        """Leaves the work with the values to the sender's thread."""
        row.late.extend(self._ready)
        for copy in self._copies:
            if copy.is_done():
                row.late.extend(copy.results())


class _Copy:
    """One device's vector on its way to the host."""

    def __init__(self, device: torch.device, parts: list[tuple[torch.Tensor, Consumer]]) -> None:
        self._event: Any = None
        self._is_done = False
        self._consumers = [(consumer, tensor.numel()) for tensor, consumer in parts]
        joined = torch.cat(_one_dtype([tensor for tensor, _ in parts], device))
        if device.type == "cuda":
            end = torch.full((1,), MAGIC, dtype=joined.dtype, device=device)
            joined = torch.cat([joined, end])
            self._host = torch.zeros(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
            self._host.copy_(joined, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        else:  # backends without events here: a copy of a few kilobytes that waits
            self._host = joined.cpu()
            self._is_done = True

    def is_done(self) -> bool:
        if not self._is_done:
            try:
                self._is_done = bool(self._event.query())
            except RuntimeError:  # the device has died; what was copied before is still in host memory
                self._is_done = float(self._host[-1]) == MAGIC
        return self._is_done

    def results(self) -> list[Callable[[Row], None]]:
        values = self._host.to(torch.float64).numpy()
        found: list[Callable[[Row], None]] = []
        start = 0
        for consumer, count in self._consumers:
            found.append(partial(consumer, values[start : start + count]))
            start += count
        return found


def _one_dtype(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors in one dtype that holds them all, with one kernel per dtype and not one per tensor."""
    wide = torch.float32 if device.type == "mps" else torch.float64
    order: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        order.setdefault(tensor.dtype, []).append(index)
    out = list(tensors)
    for indices in order.values():
        joined = torch.cat([tensors[i] for i in indices]).to(wide)
        parts = torch.split(joined, [tensors[i].numel() for i in indices])
        for i, part in zip(indices, parts, strict=True):
            out[i] = part
    return out
