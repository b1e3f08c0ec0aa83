"""The way of a step's readings from a device to the host: a side stream and pinned buffers used in turn.

The training's stream only joins the readings and records an event; the copy runs on a stream beside it. A
buffer is used again when its values have been taken: pinning memory stops the device, so it is done once per
buffer and not once per step.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

MAGIC = (
    739.25  # ends each copied vector: shows that the copy arrived when the device cannot be asked any more
)
LEAST_VALUES = 1024  # of a buffer, so that a step with a few readings more does not need another


class Cuda:
    """What a lane needs of ``torch.cuda``; a stand-in takes its place where there is no GPU (tests)."""

    def current_stream(self, device: torch.device) -> Any:
        """The stream the training uses now."""
        return torch.cuda.current_stream(device)

    def side_stream(self, device: torch.device) -> Any:
        """A stream of our own."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def event(self) -> Any:
        """An event without timing, which costs less."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> Any:
        """What is launched in this context goes to the stream."""
        return torch.cuda.stream(stream)

    def pinned(self, size: int) -> torch.Tensor:
        """A float64 buffer that the device can write to by itself."""
        return torch.zeros(size, dtype=torch.float64, device="cpu", pin_memory=True)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """The tensor's memory is not handed out again before the stream has read it."""
        tensor.record_stream(stream)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being recorded on the current stream."""
        return torch.cuda.is_current_stream_capturing()


class Slot:
    """One pinned buffer and the events of the copy into it."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        self.host = cuda.pinned(size)
        self.joined_event = cuda.event()
        self.copied_event = cuda.event()


class Copy:
    """One vector on its way."""

    def __init__(self, lane: Lane, slot: Slot, size: int) -> None:
        self._lane = lane
        self._slot: Slot | None = slot
        self._size = size
        self._is_done = False

    def is_done(self) -> bool:
        """Whether the values are there. Does not wait; also answers when the device has died."""
        if not self._is_done and self._slot is not None:
            try:
                self._is_done = bool(self._slot.copied_event.query())
            except RuntimeError:  # the device has died; what was copied before is still in host memory
                self._is_done = float(self._slot.host[self._size]) == MAGIC
        return self._is_done

    def take(self) -> NDArray[np.float64]:
        """The values, once, when ``is_done``; gives the buffer back."""
        assert self._slot is not None
        values: NDArray[np.float64] = self._slot.host[: self._size].numpy().copy()
        self._lane.give_back(self._slot)
        self._slot = None
        return values


class Lane:
    """The way from one CUDA device. A copy that is never taken keeps its buffer, which is then not reused."""

    def __init__(self, device: torch.device, cuda: Cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._side = cuda.side_stream(device)
        self._free: list[Slot] = []
        self._end: torch.Tensor | None = None
        self.buffers = 0

    def end(self) -> torch.Tensor:
        """The mark that ends a vector, on the device: [1], float64."""
        if self._end is None:
            self._end = torch.full((1,), MAGIC, dtype=torch.float64, device=self._device)
        return self._end

    def send(self, joined: torch.Tensor) -> Copy:
        """Starts the copy of a float64 vector that ends with the mark, and returns at once."""
        count = joined.numel()
        slot = self._slot_for(count)
        slot.host[count - 1] = 0.0  # the mark of an earlier step must not be taken for this one's
        slot.joined_event.record(self._cuda.current_stream(self._device))
        self._side.wait_event(slot.joined_event)
        with self._cuda.on(self._side):
            slot.host[:count].copy_(joined, non_blocking=True)
            slot.copied_event.record(self._side)
        self._cuda.keep(joined, self._side)
        return Copy(self, slot, count - 1)

    def give_back(self, slot: Slot) -> None:
        """The slot's values have been taken."""
        self._free.append(slot)

    def _slot_for(self, count: int) -> Slot:
        while self._free:
            slot = self._free.pop()
            if slot.host.numel() >= count:
                return slot
        self.buffers += 1
        return Slot(self._cuda, max(LEAST_VALUES, 1 << (count - 1).bit_length()))


class Lanes:
    """The lanes of all devices, made when first used."""

    def __init__(self, cuda: Cuda | None = None) -> None:
        self._cuda = Cuda() if cuda is None else cuda
        self._lanes: dict[torch.device, Lane] = {}

    def of(self, device: torch.device) -> Lane:
        """The device's lane."""
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = Lane(device, self._cuda)
        return lane

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being recorded: then nothing may be copied, allocated or asked."""
        return is_capturing(self._cuda)


def is_capturing(cuda: Cuda | None = None) -> bool:
    """Whether the training is recording a CUDA graph on this thread's current stream.

    What is launched then would be part of the graph and run again with every replay.
    """
    if cuda is None and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    with contextlib.suppress(RuntimeError):  # a build without CUDA
        return (Cuda() if cuda is None else cuda).is_capturing()
    return False
