"""Probes read numbers out of the training process.

Each is found by itself, costs nothing where it does not apply, and can be removed without trace. torch is
imported only inside these modules, and only if the process has it loaded already.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from floatscope.capture import Keeper
from floatscope.catalog import Catalog
from floatscope.config import MonitorConfig
from floatscope.guard import Guard
from floatscope.look import Look
from floatscope.probes.gpu import (
    GpuProbe,
    device_of_thread,
    is_on_gpu,
    load_pynvml,
    place_of_process,
    uses_cuda,
)
from floatscope.rows import Row


class Pending(Protocol):
    """Readings of one step that a device may still be working on."""

    def is_ready(self) -> bool:
        """Whether ``deliver`` would not wait."""

    def deliver(self, row: Row) -> None:
        """Puts the readings into the row; those that have not arrived stay missing."""


class ProbeSet(Protocol):
    """All probes of a monitor as one."""

    def begin(self, look: Look) -> None:
        """A step begins; ``look`` says what is measured of it."""

    def batch(self, batch: Any) -> None:
        """A batch is about to go into the model."""

    def read_later(self, name: str, tensor: Any) -> None:
        """Reads a one-element tensor of a device into the row's scalars, some steps later."""

    def has_readings(self) -> bool:
        """Whether the step under way has been measured in part."""

    def collect(self, row: Row) -> Pending:
        """Ends the step for all probes."""

    def keeper(self) -> Keeper | None:
        """How batches are kept for captures, or None where there is nothing to keep."""

    def remove(self) -> None:
        """Takes all probes out of the process."""


class Nothing:
    """No readings."""

    def is_ready(self) -> bool:
        """Always."""
        return True

    def deliver(self, row: Row) -> None:
        """Nothing to add."""


class WithoutTorch:
    """The probes of a process that has not loaded torch: only the GPU's."""

    def __init__(self, gpu: GpuProbe | None) -> None:
        self._gpu = gpu

    def begin(self, look: Look) -> None:
        """Nothing to prepare."""

    def batch(self, batch: Any) -> None:
        """Batches of other frameworks are not looked at."""

    def read_later(self, name: str, tensor: Any) -> None:
        """There are no tensors."""

    def has_readings(self) -> bool:
        """Nothing is measured."""
        return False

    def collect(self, row: Row) -> Pending:
        """Adds the GPU's readings."""
        if self._gpu is not None:
            row.scalars.update(self._gpu.latest())
        return Nothing()

    def keeper(self) -> None:
        """Batches of other frameworks are not kept."""

    def remove(self) -> None:
        """Stops the GPU's thread."""
        if self._gpu is not None:
            self._gpu.remove()


def attach(
    model: Any, optimizer: Any, config: MonitorConfig, *, guard: Guard, catalog: Catalog, nvml: Any = None
) -> ProbeSet:
    """Finds what there is to probe and installs it.

    nvml: stands in for the pynvml module (tests).  Nothing here raises: a probe that cannot be installed is
    reported and left out.
    """
    gpu: GpuProbe | None = None
    if config.gpu is not False and config.mode != "off":
        with guard.area("gpu", loses="gpu_* readings") as area:
            device = device_of_thread()  # here, since the probe's own thread has another one
            is_expected = config.gpu is True or is_on_gpu(model)
            found = GpuProbe(
                nvml if nvml is not None else load_pynvml(),
                every_s=config.gpu_every_s,
                place=lambda: place_of_process(config.launch.local_rank, device),
                guard=guard,
                area=area,
                is_expected=lambda: is_expected or uses_cuda(),
            )
            found.install()
            gpu = found
    if "torch" not in sys.modules or config.mode == "off":
        return WithoutTorch(gpu)
    from floatscope.probes.torch_probes import TorchProbes

    return TorchProbes(model, optimizer, config, guard=guard, catalog=catalog, gpu=gpu)
