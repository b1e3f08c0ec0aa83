"""Copies of the last batches and of the random states before them, cheap enough for every step.

Small tensors are copied where they are, without waiting for a device; larger ones are kept by reference.
What is written of them later is what they hold then: the same, unless a loop reuses their memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from floatscope.jsonable import jsonable
from floatscope.protocol.capture_folder import BATCH_PREFIX, RANDOM_PREFIX

COPY_BYTES = (
    2**20
)  # tensors up to this size are copied: a microsecond for token ids, nothing for an image batch
MOST_TENSOR_BYTES = 256 * 2**20  # a larger tensor is not kept alive for the sake of a capture
MOST_PARTS = 64
MOST_DEPTH = 4


@dataclass(eq=False)
class Kept:
    """What is held of one step.

    tensors: by name.  values: parts of the batch that are numbers or text.  left_out: other parts, and why.
    python_random: what ``random.getstate`` gave.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    python_random: tuple[Any, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Memory held alive."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def write_tensors(self, path: Path) -> None:
        """Writes the tensors; waits for the device, so not for the training thread. Raises OSError."""
        # a clone each, since safetensors refuses tensors that share memory
        held = tuple(self.tensors.items())  # at once: a step under way may get further micro-batches
        found = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held}
        if self.python_random is not None:
            found[f"{RANDOM_PREFIX}python"] = torch.tensor(self.python_random[1], dtype=torch.int64)
        save_file(found, str(path))

    @property
    def random(self) -> dict[str, Any]:
        """What belongs to the random states beside their tensors."""
        if self.python_random is None:
            return {}
        return {"python": {"version": self.python_random[0], "gauss": self.python_random[2]}}


def keep_random() -> Kept:
    """The random states now: torch's, the CUDA device's in use, Python's. Nothing waits; 12 microseconds.

    numpy's is left out: it takes 50 microseconds to read, and forward passes do not draw from it.
    """
    kept = Kept()
    kept.tensors[f"{RANDOM_PREFIX}torch"] = torch.get_rng_state()
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device()
        kept.tensors[f"{RANDOM_PREFIX}cuda.{index}"] = torch.cuda.get_rng_state(index)
    kept.python_random = random.getstate()
    return kept


def keep_batch(kept: Kept, batch: Any, *, number: int) -> None:
    """Adds a micro-batch.  number: which one of its step."""
    for count, (path, value) in enumerate(_parts(batch, "", MOST_DEPTH)):
        name = f"{BATCH_PREFIX}{number}/{path}"
        if count >= MOST_PARTS:
            kept.left_out[f"{BATCH_PREFIX}{number}"] = f"more than {MOST_PARTS} parts"
            return
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunctionSubclass():  # a subclass is kept as what it holds
                _keep_tensor(kept, name, value.detach())
        elif value is None or isinstance(value, bool | int | float | str):
            kept.values[name] = jsonable(value)
        else:
            kept.left_out[name] = f"a {type(value).__name__}"


def _keep_tensor(kept: Kept, name: str, tensor: Tensor) -> None:
    if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
        tensor = tensor.to_local()
    size = tensor.numel() * tensor.element_size()
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        kept.left_out[name] = f"a {tensor.layout} tensor on {tensor.device.type}"
    elif size > MOST_TENSOR_BYTES:
        kept.left_out[name] = f"{size:,} bytes, more than {MOST_TENSOR_BYTES:,}"
    else:
        kept.tensors[name] = tensor.clone() if size <= COPY_BYTES else tensor


def _parts(batch: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, lists and tuples with the path of their keys."""
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        yield path or "0", torch.from_numpy(np.array(batch))
    elif depth and isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _parts(value, f"{path}/{key}" if path else str(key), depth - 1)
    elif depth and isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from _parts(value, f"{path}/{index}" if path else str(index), depth - 1)
            if index >= MOST_PARTS:
                return
    else:
        yield path or "0", batch
