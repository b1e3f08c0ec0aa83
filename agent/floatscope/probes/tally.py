"""Measurements of one step's tensors, gathered in the training and put together in the sender's thread.

A slot is a tensor by number, in the order they are first met.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.probes.block_spread import spread_block
from floatscope.probes.measure import FIELDS, from_device
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import combine
from floatscope.protocol.names import HIST_BINS
from floatscope.rows import Block, Histograms, Row

MakeBlock = Callable[..., Block]
"""Makes a block from [n, FIELDS], ``names`` and ``has_scale`` (see ``statistics.statistics``)."""

Counts = list[tuple[int, NDArray[np.int64]]]
Spreads = list[tuple[int, NDArray[np.float64]]]

MOST_PASSES = 64  # of a step that are measured; a loop that never ends its step fills no memory


class Tally:
    """make_block: what becomes of the measurements."""

    def __init__(self, make_block: MakeBlock) -> None:
        self._make_block = make_block
        self._slot_of: dict[tuple[str, str], int] = {}
        self._names: list[str] = []
        self._has_scale: list[bool] = []
        self._slots: list[int] = []
        self._met: dict[int, int] = {}  # passes of the step under way by slot, measured or not
        self._host: list[tuple[int, list[float]]] = []
        self._host_counts: Counts = []
        self._device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._device_counts: dict[torch.device, list[tuple[int, Tensor]]] = {}
        self._host_spreads: Spreads = []
        self._device_spreads: dict[torch.device, list[tuple[int, Tensor]]] = {}

    @property
    def has_readings(self) -> bool:
        """Whether anything was measured in the step under way."""
        return bool(self._slots)

    def slot(self, layer: str, role: str, *, has_scale: bool) -> int:
        """The tensor's number."""
        slot = self._slot_of.get((layer, role))
        if slot is None:
            slot = self._slot_of[layer, role] = len(self._names)
            self._names.append(f"{layer}/{role}")
            self._has_scale.append(has_scale)
        self._has_scale[slot] = has_scale
        return slot

    def has_room(self, layer: str, role: str, *, once: bool) -> bool:
        """Whether to measure another pass of the tensor in this step.  once: only if there was none."""
        slot = self._slot_of.get((layer, role), -1)
        met = self._met.get(slot, 0)
        if once and met:
            return False
        if met >= MOST_PASSES:
            self._met[slot] = met + 1
            return False
        return True

    def passes(self, role: str) -> int:
        """How often most tensors of the role were met in the step under way."""
        wanted = {slot for (_, other), slot in self._slot_of.items() if other == role}
        counts = [count for slot, count in self._met.items() if slot in wanted]
        return int(np.bincount(counts).argmax()) if counts else 0

    def add_host(self, slot: int, measured: list[float], counts: NDArray[np.int64] | None) -> None:
        """A measurement (FIELDS) that is known, and exponent counts [HIST_BINS] if they were taken."""
        self._host.append((self._next(slot), measured))
        if counts is not None:
            self._host_counts.append((slot, counts))

    def add_device(self, slot: int, measured: Tensor, counts: Tensor | None) -> None:
        """The same on a device, to be read later."""
        self._device.setdefault(measured.device, []).append((self._next(slot), measured))
        if counts is not None:
            self._device_counts.setdefault(counts.device, []).append((slot, counts))

    def add_spread(self, slot: int, moments: Tensor) -> None:
        """The tensor's ``block_spread``, of a step with a histogram, where it is."""
        if moments.device.type == "cpu":
            self._host_spreads.append((slot, moments.double().numpy()))
        else:
            self._device_spreads.setdefault(moments.device, []).append((slot, moments))

    def _next(self, slot: int) -> int:
        self._met[slot] = self._met.get(slot, 0) + 1
        self._slots.append(slot)
        return len(self._slots) - 1

    def collect(self, readout: Readout) -> None:
        """Hands the step's measurements to the readout and forgets them."""
        if not self._slots:
            return
        step = _Step(
            np.array(self._slots, np.intp),
            tuple(self._names),
            np.array(self._has_scale, bool),
            self._make_block,
            parts=len(self._device) + len(self._device_counts) + len(self._device_spreads),
        )
        for index, values in self._host:
            step.calls[index] = values
        step.counts.extend(self._host_counts)
        step.spreads.extend(self._host_spreads)
        for vectors in self._device.values():
            order = np.array([index for index, _ in vectors], np.intp)
            readout.add(torch.cat([vector for _, vector in vectors]), partial(step.fill, order))
        for histograms in self._device_counts.values():
            slots = [slot for slot, _ in histograms]
            readout.add(torch.cat([counts for _, counts in histograms]), partial(step.fill_counts, slots))
        for spreads in self._device_spreads.values():
            slots = [slot for slot, _ in spreads]
            readout.add(torch.cat([moments for _, moments in spreads]), partial(step.fill_spreads, slots))
        if not step.parts:
            readout.add_work(step.finish, nbytes=step.nbytes)
        self._slots, self._host, self._host_counts, self._host_spreads = [], [], [], []
        self._device, self._device_counts, self._device_spreads = {}, {}, {}
        self._met.clear()


class _Step:
    """One step's measurements in the sender's thread; finished when the last part has come."""

    def __init__(
        self,
        slots: NDArray[np.intp],
        names: tuple[str, ...],
        has_scale: NDArray[np.bool_],
        make_block: MakeBlock,
        *,
        parts: int,
    ) -> None:
        self.calls = np.zeros((len(slots), len(FIELDS)))
        self.counts: Counts = []
        self.spreads: Spreads = []
        self.parts = parts
        self._slots = slots
        self._names = names
        self._has_scale = has_scale
        self._make_block = make_block

    @property
    def nbytes(self) -> int:
        """Memory of the measurements."""
        return self.calls.nbytes + sum(found.nbytes for _, found in (*self.counts, *self.spreads))

    def fill(self, order: NDArray[np.intp], values: NDArray[np.float64], row: Row) -> None:
        self.calls[order] = from_device(values)
        self._part_has_come(row)

    def fill_counts(self, slots: list[int], values: NDArray[np.float64], row: Row) -> None:
        for slot, counts in zip(slots, values.reshape(-1, HIST_BINS).astype(np.int64), strict=True):
            self.counts.append((slot, counts))
        self._part_has_come(row)

    def fill_spreads(self, slots: list[int], values: NDArray[np.float64], row: Row) -> None:
        self.spreads.extend(zip(slots, values.reshape(len(slots), -1), strict=True))
        self._part_has_come(row)

    def _part_has_come(self, row: Row) -> None:
        self.parts -= 1
        if not self.parts:
            self.finish(row)

    def finish(self, row: Row) -> None:
        """Adds the block and the histograms of the tensors that were measured."""
        met = np.unique(self._slots)
        found = combine(self.calls, self._slots, len(self._names))[met]
        names = tuple(self._names[i] for i in met)
        row.blocks.append(self._make_block(found, names=names, has_scale=self._has_scale[met]))
        if self.spreads:
            row.blocks.append(spread_block(self.spreads, self._names))
        if self.counts:
            row.histograms.append(_summed(self.counts, self._names))


def _summed(found: Counts, names: tuple[str, ...]) -> Histograms:
    """Histograms of several passes add up."""
    sums: dict[int, NDArray[np.int64]] = {}
    for slot, counts in found:
        sums[slot] = sums[slot] + counts if slot in sums else counts
    slots = sorted(sums)
    whole = np.stack([sums[slot] for slot in slots])
    return Histograms(tuple(names[slot] for slot in slots), np.clip(whole, 0, 2**32 - 1).astype(np.uint32))
