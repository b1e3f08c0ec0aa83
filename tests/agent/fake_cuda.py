"""A stand-in for streams, events and pinned memory where there is no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from floatscope.probes.lanes import Cuda


class FakeCuda(Cuda):
    """Notes what is asked of streams and events. Copies are done when ``finish`` is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events: list[FakeEvent] = []
        self.pinned_buffers = 0
        self.capturing = False
        self.current = "main"

    def current_stream(self, device: torch.device) -> Any:
        return "main"

    def side_stream(self, device: torch.device) -> Any:
        return FakeStream(self)

    def event(self) -> Any:
        self.events.append(FakeEvent(self))
        return self.events[-1]

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.current = "side"
        yield
        self.current = "main"

    def pinned(self, size: int) -> torch.Tensor:
        self.pinned_buffers += 1
        return torch.zeros(size, dtype=torch.float64)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self.calls.append("keep")

    def is_capturing(self) -> bool:
        return self.capturing

    def finish(self) -> None:
        for event in self.events:
            event.is_done = event.is_recorded


class FakeStream:
    """The side stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def wait_event(self, event: Any) -> None:
        assert event.recorded_on == "main"
        self.cuda.calls.append("side waits for main")


class FakeEvent:
    """An event that is done when told."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.is_recorded = False
        self.is_done = False
        self.recorded_on = ""
        self.is_dead = False

    def record(self, stream: Any) -> None:
        self.recorded_on = "main" if stream == "main" else "side"
        self.is_recorded, self.is_done = True, False
        self.cuda.calls.append(f"event on {self.recorded_on}, current {self.cuda.current}")

    def query(self) -> bool:
        if self.is_dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.is_done
