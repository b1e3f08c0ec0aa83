"""Statistics of whole tensors, collected where a layer casts them.

Who calls ``measure`` stands in ``layer_hooks`` and in the probes of FP8 packages. On steps that are not
looked at closely the cost is one comparison per layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.look import GLANCE, Look
from floatscope.probes.measure import FIELDS, from_device, on_cpu, on_device
from floatscope.probes.naming import CallOrder
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import combine, statistics
from floatscope.protocol.formats import FORMATS
from floatscope.rows import Row


class TensorStats:
    """Measures tensors of a step and turns them into a block of statistics.

    Slots are tensors by number, in the order they are first met.
    """

    def __init__(self, *, catalog: Catalog, order: CallOrder) -> None:
        self.look = GLANCE
        self._catalog = catalog
        self._order = order
        self._slot_of: dict[tuple[str, str], int] = {}
        self._names: list[str] = []
        self._has_scale: list[bool] = []
        self._slots: list[int] = []
        self._met: set[int] = set()
        self._inputs: set[int] = set()
        self._host: list[tuple[int, list[float]]] = []
        self._device: list[tuple[int, Tensor]] = []

    def begin(self, look: Look) -> None:
        """A step begins."""
        self.look = look

    @property
    def has_readings(self) -> bool:
        """Whether anything was measured in the step under way."""
        return bool(self._slots)

    def formats(self) -> list[str]:
        """Formats of the tensors met so far that layers compute with."""
        tensors = self._catalog.info().tensors
        return [str(tensors[name]["format"]) for name in self._names if "format" in tensors.get(name, {})]

    @property
    def passes(self) -> int:
        """How often inputs were measured in the step under way: most of them, a layer may be used twice."""
        inputs = [slot for slot in self._slots if slot in self._inputs]
        if not inputs:
            return 0
        counts = np.bincount(inputs)
        return int(np.bincount(counts[counts > 0]).argmax())

    @torch.no_grad()
    def measure(
        self,
        layer: str,
        role: str,
        tensor: Any,
        *,
        used: Tensor | None = None,
        scale: Tensor | None = None,
        fmt: str | None = None,
        once: bool = False,
    ) -> None:
        """Measures one tensor, on the device it is on; see ``measure.on_cpu`` for the arguments.

        once: not if it was measured in this step already.
        """
        if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
            tensor = tensor.to_local()
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            return
        slot = self._slot(layer, role, fmt, has_scale=scale is not None)
        if once and slot in self._met:
            return
        self._met.add(slot)
        kind = FORMATS.get(fmt) if fmt is not None else None
        index = len(self._slots)
        x = tensor.detach()
        if x.device.type == "cpu":
            self._host.append((index, on_cpu(x, used, scale, kind)))
        else:
            self._device.append((index, on_device(x, used, scale, kind)))
        self._slots.append(slot)

    def _slot(self, layer: str, role: str, fmt: str | None, *, has_scale: bool) -> int:
        slot = self._slot_of.get((layer, role))
        if slot is None:
            slot = self._slot_of[layer, role] = len(self._names)
            name = f"{layer}/{role}"
            self._names.append(name)
            self._has_scale.append(has_scale)
            if role == "input":
                self._inputs.add(slot)
            facts: dict[str, Any] = {"call_order": self._order.of(layer)}
            if fmt in FORMATS:
                facts["format"] = fmt
            self._catalog.describe_tensors({name: facts}, override=True)
        self._has_scale[slot] = has_scale
        return slot

    def collect(self, readout: Readout) -> None:
        """Hands the step's measurements to the readout and forgets them."""
        if not self._slots:
            return
        slots, self._slots = np.array(self._slots, np.intp), []
        self._met.clear()
        host, self._host = self._host, []
        device, self._device = self._device, []
        names, has_scale = tuple(self._names), np.array(self._has_scale, bool)
        calls = np.zeros((len(slots), len(FIELDS)))
        for index, values in host:
            calls[index] = values
        finish = partial(_finish, calls, slots, names, has_scale)
        if not device:
            readout.add_work(finish)
            return
        order = np.array([index for index, _ in device], np.intp)

        def fill(values: NDArray[np.float64], row: Row) -> None:
            calls[order] = from_device(values)
            finish(row)

        readout.add(torch.cat([vector for _, vector in device]), fill)


def _finish(
    calls: NDArray[np.float64],
    slots: NDArray[np.intp],
    names: tuple[str, ...],
    has_scale: NDArray[np.bool_],
    row: Row,
) -> None:
    """Adds the block of the tensors that were measured, in the sender's thread."""
    met = np.unique(slots)
    found = combine(calls, slots, len(names))[met]
    row.blocks.append(statistics(found, names=tuple(names[i] for i in met), has_scale=has_scale[met]))


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.is_floating_point()
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and tensor.element_size() > 1  # an 8-bit tensor has been cast already
    )
