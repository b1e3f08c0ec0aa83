"""Statistics of whole tensors, collected where a layer casts them.

Who calls ``measure`` stands in ``layer_hooks`` and in the probes of FP8 packages. On steps that are not
looked at closely the cost is one comparison per layer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.look import GLANCE, Look
from floatscope.probes.block_spread import block_spread
from floatscope.probes.counters import MOST_ELEMENTS, DeviceCounters
from floatscope.probes.exponents import exponents
from floatscope.probes.lanes import is_capturing
from floatscope.probes.measure import on_cpu
from floatscope.probes.naming import CallOrder, is_transformed
from floatscope.probes.readout import Readout
from floatscope.probes.row_sample import ALL_ROWS, Used, row_sample
from floatscope.probes.statistics import as_would_be, statistics
from floatscope.probes.tally import Tally
from floatscope.probes.would_be import cast_as
from floatscope.protocol.formats import FORMATS, FloatFormat

_COMPUTED_IN = (torch.float32, torch.bfloat16, torch.float16)
HISTOGRAMS_EVERY = 10  # sampled steps between histograms of all tensors; suspects have them every time


class TensorStats:
    """Measures tensors of a step and turns them into a block of statistics.

    guard: says what cannot be used.  check_format: what tensors that nobody casts are measured against.
    """

    def __init__(
        self, *, catalog: Catalog, order: CallOrder, guard: Guard, check_format: str | None = None
    ) -> None:
        self.look = GLANCE
        self._area = guard.area("tensor statistics", loses="statistics of whole tensors")
        self._pid = os.getpid()
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

    def prepare(self, parameters: Iterable[Tensor], *, with_casts: bool) -> None:
        """Before the first step: has compiled what measures on these parameters' device.

        with_casts: whether layers cast.  Nothing is done where the process has not used the device yet.
        """
        first = next((p for p in parameters if p.device.type == "cuda"), None)
        if first is None or not torch.cuda.is_initialized() or is_capturing():  # type: ignore[no-untyped-call]
            return
        dtypes = {first.dtype, torch.bfloat16} & set(_COMPUTED_IN)
        self._counters.prepare(
            first.device, sorted(dtypes, key=str), with_casts=with_casts or self._check is not None
        )

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
        used: Used | None = None,
        scale: Tensor | None = None,
        fmt: str | None = None,
        once: bool = False,
        is_cast: bool = True,
    ) -> None:
        """Measures one tensor, on the device it is on; see ``measure.on_cpu`` for the arguments.

        used: also a function that makes given rows of it, which saves memory for very large tensors.
        once: not if it was measured in this step already.  is_cast: False for a layer that casts nothing; it
        is then also measured against the format to check, if there is one.
        """
        if self._area.tripped:
            return
        if os.getpid() != self._pid:  # in a forked child nobody collects what is measured
            self.look = GLANCE
            return
        with self._area:
            self._measure(layer, role, tensor, used, scale, fmt, once=once, is_cast=is_cast)

    def _measure(
        self,
        layer: str,
        role: str,
        tensor: Any,
        used: Used | None,
        scale: Tensor | None,
        fmt: str | None,
        *,
        once: bool,
        is_cast: bool,
    ) -> None:
        if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
            tensor = tensor.to_local()
        if not isinstance(tensor, Tensor) or not _is_plain(tensor):
            return
        if is_transformed():
            return
        if tensor.device.type == "cuda" and is_capturing():
            return  # what is launched now would become part of the training's CUDA graph
        if not self._real.has_room(layer, role, once=once):
            return
        kind = FORMATS.get(fmt) if fmt is not None else None
        if kind is not None and not kind.is_scaled:
            scale = None
        is_checked = self._check is not None and not is_cast
        x, cast, scale, every = self._rows(tensor.detach(), used, scale, is_checked=is_checked)
        slot = self._real.slot(layer, role, has_scale=scale is not None)
        facts: dict[str, Any] = {"call_order": self._order.of(layer)}
        if kind is not None:
            facts["format"] = kind.name
        if x.dim() > 1:
            facts["row_length"] = x.shape[-1]
        if every > 1:
            facts["rows_every"] = every
        with_histogram = self._is_histogram_step or layer in self.look.suspects
        self._add(self._real, slot, x, cast, scale, kind, with_histogram=with_histogram)
        if with_histogram:
            part = row_sample(x, None, most=MOST_ELEMENTS)  # it makes a copy
            self._real.add_spread(slot, block_spread(x if part is None else part.of(x)))
        if self._check is not None and is_checked:
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
        self, x: Tensor, used: Used | None, scale: Tensor | None, *, is_checked: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
        """Of a very large tensor every so many-th row, the same of its cast and scales, and how many.

        Measured whole is what needs no copies for it: a tensor that the fused kernel reads where it is.
        """
        most = MOST_ELEMENTS
        has_blocks = scale is not None and scale.numel() > 1
        is_there = (used is None or isinstance(used, Tensor)) and x.is_contiguous()
        if x.numel() > most and is_there and not is_checked and not has_blocks and x.device.type != "cpu":
            most = self._counters.most_elements(x)
        sample = row_sample(x, scale if used is not None else None, most=most)
        if sample is None:  # which rows have which scale cannot be told
            used, scale, sample = None, None, row_sample(x, None, most=most) or ALL_ROWS
        x = sample.of(x)
        cast = sample.of(used) if isinstance(used, Tensor) else None if used is None else used(sample)
        if cast is not None and cast.shape != x.shape:
            cast = cast.reshape(x.shape)
        if cast is None or scale is None:
            return x, cast, None, sample.every
        return x, cast, sample.scales(scale), sample.every

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
