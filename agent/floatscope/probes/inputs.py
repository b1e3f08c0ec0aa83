"""Facts about a batch: token ids against the vocabulary, labels that count, non-finite values.

On a device the facts are computed there and read later; they are queued before the forward pass, so they
arrive even if a bad id makes that pass abort.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from floatscope.catalog import Catalog
from floatscope.guard import Area
from floatscope.probes.lanes import is_capturing
from floatscope.probes.naming import models_of
from floatscope.probes.probe import Probe
from floatscope.probes.readout import Readout
from floatscope.rows import Row

IGNORED_LABEL = -100  # torch's default ignore_index
LABEL_KEYS = frozenset({"labels", "label", "targets", "target"})
ID_KEYS = frozenset({"input_ids", "ids", "tokens", "token_ids", "inputs", "input", "idx", "x", "text"})
NOT_ID_WORDS = ("mask", "position", "type", "len", "index", "segment", "seqlens")
MOST_TENSORS = 32
MOST_DEPTH = 4


def vocabulary_of(model: Any) -> int | None:
    """Rows of the model's first embedding, or None if it has none."""
    for _, root in models_of(model):
        for module in root.modules():
            if isinstance(module, nn.Embedding):
                return module.num_embeddings
            if type(module).__name__ == "VocabParallelEmbedding":
                size = getattr(module, "num_embeddings", None)
                return size if isinstance(size, int) else None
    return None


class InputCheck(Probe):
    """Looks at batches; several in one step (micro-batches) are counted together."""

    def __init__(self, *, catalog: Catalog, area: Area) -> None:
        self._catalog = catalog
        self._area = area
        self._readout = Readout()
        self._facts = _Facts()

    @property
    def has_readings(self) -> bool:
        """Whether a batch was seen in the step under way."""
        return not self._readout.is_empty

    def collect(self, readout: Readout, row: Row) -> None:
        """Hands the facts over."""
        readout.join(self._readout)
        self._readout = Readout()
        self._facts = _Facts()

    @torch.no_grad()
    def see(self, batch: Any) -> None:
        """Queues the facts of one batch."""
        if self._area.tripped or is_capturing():
            return
        with self._area, torch._C.DisableTorchFunctionSubclass():  # a subclass is looked at as what it holds
            ids, labels, floats = sort_tensors(batch)
            for tensor in ids:
                self._see_ids(tensor)
            for tensor in labels:
                counted = torch.count_nonzero(tensor != IGNORED_LABEL)
                self._readout.add(counted, partial(self._facts.add, ("label_tokens",)))
            for tensor in floats:
                self._see_floats(tensor)

    def _see_ids(self, ids: Tensor) -> None:
        self._readout.add_values([ids.numel()], partial(self._facts.add, ("tokens",)))
        low, high = torch.aminmax(ids)
        self._readout.add(torch.stack([low, high]), self._facts.widen)
        size = self._catalog.info().vocab_size
        if size is None:
            return
        if ids.device.type == "cpu" and int(low) >= 0 and int(high) < size:
            outside = torch.zeros((), device="cpu")
        else:
            outside = torch.count_nonzero((ids < 0) | (ids >= size))
        self._readout.add(outside, partial(self._facts.add, ("input_ids_out_of_range",)))

    def _see_floats(self, values: Tensor) -> None:
        if values.device.type == "cpu" and math.isfinite(float(values.sum(dtype=torch.float32))):
            counts = torch.zeros(2, device="cpu")  # a NaN or infinity would have spoiled the sum
        else:
            counts = torch.stack(
                [torch.count_nonzero(torch.isnan(values)), torch.count_nonzero(torch.isinf(values))]
            )
        self._readout.add(counts, partial(self._facts.add, ("input_nan_count", "input_inf_count")))


def sort_tensors(batch: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Token ids, labels and float inputs of a batch.

    By key in mappings; in a pair of integer tensors the second is the labels. Masks, positions and lengths
    are no ids.
    """
    ids: list[Tensor] = []
    labels: list[Tensor] = []
    floats: list[Tensor] = []
    others: list[Tensor] = []
    for count, (key, tensor) in enumerate(_tensors(batch, "", MOST_DEPTH)):
        if count >= MOST_TENSORS:
            break
        if tensor.is_floating_point():
            floats.append(tensor)
        elif key in LABEL_KEYS:
            labels.append(tensor)
        elif key in ID_KEYS or key == "":
            ids.append(tensor)
        elif not any(word in key for word in NOT_ID_WORDS):
            others.append(tensor)
    return ids or others, labels, floats


def _tensors(batch: Any, key: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Dense, non-empty integer and float tensors with the lower-case name of their key."""
    if isinstance(batch, np.ndarray):
        batch = torch.from_numpy(batch) if batch.dtype.kind in "if" and batch.flags.writeable else None
    if isinstance(batch, Tensor):
        if hasattr(batch, "to_local"):
            batch = batch.to_local()
        is_dense = batch.layout == torch.strided and not batch.is_nested
        is_plain = is_dense and batch.numel() > 0 and batch.device.type != "meta"
        is_number = batch.is_floating_point() or batch.dtype in (torch.int32, torch.int64)
        if is_plain and is_number and not batch.is_quantized:
            yield key, batch.detach()
    elif depth and isinstance(batch, Mapping):
        for name, value in batch.items():
            yield from _tensors(value, str(name).lower(), depth - 1)
    elif depth and isinstance(batch, tuple | list):
        for index, value in enumerate(batch[:MOST_TENSORS]):
            is_label = index == 1 and len(batch) == 2 and not key
            yield from _tensors(value, "labels" if is_label else key, depth - 1)


class _Facts:
    """Adds up what the batches of one step showed, in the sender's thread.

    A value that the training loop has given itself stays.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, names: tuple[str, ...], values: NDArray[np.float64], row: Row) -> None:
        """Counts, one per name."""
        for name, value in zip(names, values, strict=True):
            self._write(name, self._sums.get(name, 0.0) + float(value), row)

    def widen(self, values: NDArray[np.float64], row: Row) -> None:
        """Smallest and largest id of a batch."""
        low, high = float(values[0]), float(values[1])
        self._write("input_id_min", min(self._sums.get("input_id_min", low), low), row)
        self._write("input_id_max", max(self._sums.get("input_id_max", high), high), row)

    def _write(self, name: str, value: float, row: Row) -> None:
        if name in self._sums or name not in row.scalars:
            self._sums[name] = row.scalars[name] = value
