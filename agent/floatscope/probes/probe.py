"""The one interface of all probes of a torch training loop, and what a probe may use.

A probe finds out by itself whether it applies, costs nothing where it does not, never waits for a device and
can be taken out without trace. A new one is a class here and one line in ``torch_probes.FINDERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from floatscope.catalog import Catalog
from floatscope.config import MonitorConfig
from floatscope.guard import Guard
from floatscope.look import Look
from floatscope.probes.naming import CallOrder
from floatscope.probes.readout import Readout
from floatscope.probes.tensor_stats import TensorStats
from floatscope.rows import Row


@dataclass(frozen=True, eq=False)
class Scene:
    """What a probe finds in the process.

    layers: every module of the model with its layer name.  order: in which order layers are first called.
    stats: where whole tensors are measured; several probes may share it.
    """

    model: Any
    optimizer: Any
    config: MonitorConfig
    layers: Mapping[nn.Module, str]
    order: CallOrder
    catalog: Catalog
    stats: TensorStats
    guard: Guard


class Probe:
    """One thing that is read from the process. A probe overrides what applies to it."""

    @property
    def has_readings(self) -> bool:
        """Whether it has read something of the step under way."""
        return False

    @property
    def passes(self) -> int:
        """Micro-batches it saw in the step under way, 0 where it cannot tell."""
        return 0

    def install(self) -> None:
        """Hooks into the process."""

    def begin(self, look: Look) -> None:
        """A step begins."""

    def collect(self, readout: Readout, row: Row) -> None:
        """The step has ended: hands over what was read. Must not wait for a device."""

    def remove(self) -> None:
        """Leaves the process as it was; a second call does nothing."""


Finder = Callable[[Scene], Iterable[Probe]]
"""Makes the probes of one kind, in the order they are installed; none where it does not apply."""
