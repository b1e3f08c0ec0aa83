"""Brings small tensors of one step to the host without waiting for the device.

Everything that probes want to read of a step is gathered, joined into one vector per device and copied into
pinned memory on a stream of its own (see ``lanes``). An event tells when the copy is done; nobody waits for
it. On the CPU the values are there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.probes.lanes import Lanes
from floatscope.rows import Row

Consumer = Callable[[NDArray[np.float64], Row], None]
"""Takes the values of what was added, flattened, and puts what they mean into the row."""


class Readout:
    """What is to be read of one step. Add, then ``seal``."""

    def __init__(self) -> None:
        self._parts: dict[torch.device, list[tuple[torch.Tensor, Consumer]]] = {}
        self._ready: list[Callable[[Row], None]] = []
        self._ready_bytes = 0

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
            self.add_work(partial(consumer, values), nbytes=values.nbytes)
        elif tensor.device.type != "meta":
            self._parts.setdefault(tensor.device, []).append((tensor.reshape(-1), consumer))

    def add_values(self, values: Sequence[float] | NDArray[np.float64], consumer: Consumer) -> None:
        """Numbers that are on the host already."""
        found = np.asarray(values, np.float64)
        self.add_work(partial(consumer, found), nbytes=found.nbytes)

    def add_work(self, work: Callable[[Row], None], *, nbytes: int) -> None:
        """Something to do with the row in the sender's thread.  nbytes: memory it holds until then."""
        self._ready.append(work)
        self._ready_bytes += nbytes

    def join(self, other: Readout) -> None:
        """Takes over what another readout has gathered."""
        for device, parts in other._parts.items():
            self._parts.setdefault(device, []).extend(parts)
        self._ready.extend(other._ready)
        self._ready_bytes += other._ready_bytes

    def seal(self, lanes: Lanes) -> Reading:
        """Starts the copies. None while a CUDA graph is recorded: device readings are missing."""
        if any(device.type == "cuda" for device in self._parts) and lanes.is_capturing():
            return Reading([], self._ready, self._ready_bytes)
        parcels = [_Parcel(device, parts, lanes) for device, parts in self._parts.items()]
        return Reading(parcels, self._ready, self._ready_bytes)


class Reading:
    """A sealed readout (see ``probes.Pending``)."""

    def __init__(
        self, parcels: list[_Parcel], ready: list[Callable[[Row], None]], ready_bytes: int = 0
    ) -> None:
        self._parcels = parcels
        self._ready = ready
        self._ready_bytes = ready_bytes

    def is_ready(self) -> bool:
        """Whether all copies are done."""
        return all(parcel.copy.is_done() for parcel in self._parcels)

    def deliver(self, row: Row) -> None:
        """Leaves the work with the values to the sender's thread."""
        row.late.extend(self._ready)
        row.late_bytes += self._ready_bytes
        for parcel in self._parcels:
            if parcel.copy.is_done():
                row.late.extend(parcel.results())
                row.late_bytes += parcel.nbytes


class _Copying(Protocol):
    def is_done(self) -> bool: ...

    def take(self) -> NDArray[np.float64]: ...


class _Waited:
    """The copy of a few kilobytes from a backend without events here, which waits."""

    def __init__(self, joined: torch.Tensor) -> None:
        self._values: NDArray[np.float64] = joined.cpu().to(torch.float64).numpy()

    def is_done(self) -> bool:
        return True

    def take(self) -> NDArray[np.float64]:
        return self._values


class _Parcel:
    """One device's readings, joined, with who gets which part."""

    def __init__(
        self, device: torch.device, parts: list[tuple[torch.Tensor, Consumer]], lanes: Lanes
    ) -> None:
        self._consumers = [(consumer, tensor.numel()) for tensor, consumer in parts]
        self.nbytes = 8 * sum(count for _, count in self._consumers)
        vectors = _one_dtype([tensor for tensor, _ in parts], device)
        self.copy: _Copying
        if device.type == "cuda":
            lane = lanes.of(device)
            self.copy = lane.send(torch.cat([*vectors, lane.end()]))
        else:
            self.copy = _Waited(torch.cat(vectors))

    def results(self) -> list[Callable[[Row], None]]:
        values = self.copy.take()
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
