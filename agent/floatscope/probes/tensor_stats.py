"""Statistics of whole tensors, collected where a layer casts them.

Who calls ``measure`` stands in ``layer_hooks`` and in the probes of FP8 packages. On steps that are not
looked at closely the cost is one comparison per layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.look import GLANCE, Look
from floatscope.probes.counters import MOST_ELEMENTS, DeviceCounters
from floatscope.probes.exponents import exponents
from floatscope.probes.lanes import is_capturing
from floatscope.probes.measure import on_cpu
from floatscope.probes.naming import CallOrder, is_transformed
from floatscope.probes.readout import Readout
from floatscope.probes.statistics import as_would_be, statistics
from floatscope.probes.tally import Tally
from floatscope.probes.would_be import cast_as
from floatscope.protocol.formats import FORMATS, FloatFormat

HISTOGRAMS_EVERY = 10  # sampled steps between histograms of all tensors; suspects have them every time


class TensorStats:
    """Measures tensors of a step and turns them into a block of statistics.

    guard: says what cannot be used.  check_format: what tensors that nobody casts are measured against.
    """

    def __init__(
        self, *, catalog: Catalog, order: CallOrder, guard: Guard, check_format: str | None = None
    ) -> None:
        self.look = GLANCE
        self._catalog = catalog
        self._order = order
        self._counters = DeviceCounters(guard)
        self._check = FORMATS.get(check_format) if check_format is not None else None
        self._real = Tally(statistics)
        self._would = Tally(as_would_be)
        self._facts: dict[str, dict[str, Any]] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._samples = 0
        self._is_histogram_step = False

    def begin(self, look: Look) -> None:
        """A step begins."""
        self.look = look
        self._is_histogram_step = look.is_sampled and self._samples % HISTOGRAMS_EVERY == 0
        self._samples += look.is_sampled

    @property
    def has_readings(self) -> bool:
        """Whether anything was measured in the step under way."""
        return self._real.has_readings

    def formats(self) -> list[str]:
        """Formats of the tensors met so far that layers compute with."""
        return [str(facts["format"]) for facts in self._known.values() if "format" in facts]

    @property
    def passes(self) -> int:
        """How often inputs were measured in the step under way: most of them, a layer may be used twice."""
        return self._real.passes("input")

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
        is_cast: bool = True,
    ) -> None:
        """Measures one tensor, on the device it is on; see ``measure.on_cpu`` for the arguments.

        once: not if it was measured in this step already.  is_cast: False for a layer that casts nothing; it
        is then also measured against the format to check, if there is one.
        """
        if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
            tensor = tensor.to_local()
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            return
        if is_transformed():
            return
        if tensor.device.type == "cuda" and is_capturing():
            return  # what is launched now would become part of the training's CUDA graph
        slot = self._real.slot(layer, role, has_scale=scale is not None)
        if once and self._real.is_met(slot):
            return
        kind = FORMATS.get(fmt) if fmt is not None else None
        if kind is not None and not kind.is_scaled:
            scale = None
        x, used, every = self._rows(tensor.detach(), used, scale)
        facts: dict[str, Any] = {"call_order": self._order.of(layer)}
        if kind is not None:
            facts["format"] = kind.name
        if every > 1:
            facts["rows_every"] = every
        with_histogram = self._is_histogram_step or layer in self.look.suspects
        self._add(self._real, slot, x, used, scale, kind, with_histogram=with_histogram)
        if self._check is not None and not is_cast:
            facts["would_be"] = self._check.name
            cast, wanted = cast_as(x, self._check)
            place = self._would.slot(layer, role, has_scale=False)
            self._add(self._would, place, x, cast, wanted, self._check, with_histogram=False)
        self._note(f"{layer}/{role}", facts)

    def _add(
        self,
        tally: Tally,
        slot: int,
        x: Tensor,
        used: Tensor | None,
        scale: Tensor | None,
        kind: FloatFormat | None,
        *,
        with_histogram: bool,
    ) -> None:
        if x.device.type == "cpu":
            counts = exponents(x).numpy() if with_histogram else None
            tally.add_host(slot, on_cpu(x, used, scale, kind), counts)
        else:
            vector, found = self._counters.measure(x, used, scale, kind, with_histogram=with_histogram)
            tally.add_device(slot, vector, found)

    def _rows(
        self, x: Tensor, used: Tensor | None, scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None, int]:
        """Of a very large tensor every so many-th row, of the cast one the same, and how many.

        Tensors with a scale per block are not sampled: their scales go by position.
        """
        most = MOST_ELEMENTS
        if x.numel() <= most or x.dim() < 2 or (scale is not None and scale.numel() > 1):
            return x, used, 1
        if x.device.type != "cpu":
            most = self._counters.most_elements(x)
        every = min(-(-x.numel() // most), x.numel() // x.shape[-1])
        parts = [x, *([] if used is None else [used])]
        if every <= 1 or not all(part.is_contiguous() and part.shape == x.shape for part in parts):
            return x, used, 1
        picked = [part.view(-1, x.shape[-1])[::every] for part in parts]
        return picked[0], None if used is None else picked[1], every

    def _note(self, name: str, facts: dict[str, Any]) -> None:
        """Facts go to the catalogue together, at the end of the step: each time costs it a copy of all."""
        if self._known.get(name) != facts:
            self._known[name] = self._facts[name] = facts

    def collect(self, readout: Readout) -> None:
        """Hands the step's measurements to the readout and forgets them."""
        if self._facts:
            facts, self._facts = self._facts, {}
            self._catalog.describe_tensors(facts, override=True)
        self._real.collect(readout)
        self._would.collect(readout)


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.is_floating_point()
        and not tensor.is_quantized
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and tensor.element_size() > 1  # an 8-bit tensor has been cast already
    )
