"""Hashes of a rank's weights and FP8 scales, by which ranks that ought to be equal are compared.

Integer sums of bit patterns: exact, the same in any order of summation, and a NaN counts like any other
pattern. A hash is a whole number below 2 ** 53, which a float64 holds exactly. Computed on the device on
every n-th step, just before the first optimizer steps: the weights are then complete, as this step's forward
pass used them; afterwards a distributed optimizer may still be gathering parts of the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parameter import is_lazy

from floatscope.guard import Area
from floatscope.look import Look
from floatscope.probes.coordinates import (
    SPLITTING,
    Standing,
    job_size,
    kind_of_dimension,
    standing_of,
)
from floatscope.probes.lanes import is_capturing
from floatscope.probes.naming import models_of
from floatscope.probes.optimizers import optimizers_of
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.transformer_engine import managers_of
from floatscope.probes.weights import is_fully_sharded
from floatscope.rows import Row

PARAM_HASH = "param_hash"
SCALE_HASH = "scale_hash"
HASH_BITS = 53

_MASK = (1 << HASH_BITS) - 1
_WORD_BYTES = 8
_CHUNK = 2**22  # words hashed at a time on a device: 64 MB of temporary memory, eight kernels
_CPU_CHUNK = 2**15 - 1  # fits a cache, and is below what torch spreads over threads
_ODD_1, _ODD_2 = 0x2545F4914F6CDD1D, 0x1E3779B97F4A7C15  # any odd numbers without a pattern
_SEED_STEP = 0x100000001B3
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def hash_of(tensors: Sequence[Tensor]) -> Tensor:
    """The hash of one or more tensors on one device in this order, int64, shape (), 0 to 2 ** 53 - 1.

    Equal bits in equal order give equal hashes; of shapes only the number of elements counts. The sign of a
    zero and the payload of a NaN count. Nothing waits for the device.
    """
    words = [word for tensor in tensors for word in _words(tensor)]
    most = _CPU_CHUNK if words[0].device.type == "cpu" else _CHUNK
    longest = min(sum(word.numel() for word in words), most)
    places = torch.arange(1, 2 * longest, 2, dtype=torch.int64, device=words[0].device) * _ODD_1
    seed = 1
    total = torch.zeros((), dtype=torch.int64, device=words[0].device)
    for chunk in _chunks(words, most):
        seed = (seed * _SEED_STEP + chunk.numel()) & _MASK
        # a changed bit changes the plain sum, two words that change places the other; overflow wraps around
        mixed = (chunk >> 29).bitwise_xor_(chunk).mul_(places.narrow(0, 0, chunk.numel()))
        total.add_(torch.add(mixed.sum(), chunk.sum(), alpha=_ODD_2), alpha=2 * seed + 1)
    return (total ^ (total >> 31)) & _MASK


def _chunks(words: Iterable[Tensor], most: int) -> Iterator[Tensor]:
    """At most so many words at a time: those of small tensors together."""
    waiting: list[Tensor] = []
    count = 0
    for word in words:
        for part in torch.split(word, most):
            if count + part.numel() > most:
                yield torch.cat(waiting)
                waiting, count = [], 0
            waiting.append(part)
            count += part.numel()
    yield torch.cat(waiting) if len(waiting) > 1 else waiting[0]


def _words(tensor: Tensor) -> list[Tensor]:
    """A tensor's bit patterns in words of 64 bits, without a copy where its memory allows; the last few
    elements as words of their own."""
    tensor = tensor.detach()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % _WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() * size // _WORD_BYTES * _WORD_BYTES // size
    words = [flat.narrow(0, 0, whole).view(torch.int64)] if whole else []
    if whole < flat.numel():
        words.append(flat.narrow(0, whole, flat.numel() - whole).view(_BITS[size]).to(torch.int64))
    return words


class _HashSum:
    """Hashes of several devices as one scalar. A part is the hash, and how much of it there is to compare."""

    def __init__(self, name: str, *, parts: int) -> None:
        self._name = name
        self._left = parts
        self._sum = 0
        self._is_telling = False

    def __call__(self, values: NDArray[np.float64], row: Row) -> None:
        self._sum = (self._sum * _SEED_STEP + int(values[0])) & _MASK
        self._is_telling = self._is_telling or len(values) == 1 or values[1] > 0
        self._left -= 1
        if self._left == 0 and self._is_telling:
            row.scalars.setdefault(self._name, float(self._sum))


class HashProbe(Probe):
    """Hashes what ``parameters`` and ``scales`` give, every n-th step.

    Not on steps that are sampled because something is wrong: all weights would be read on each of them, and
    ranks are compared where all of them have hashed.
    optimizers: the hash is taken before the first of them steps; without one, at the end of the step.
    """

    def __init__(
        self,
        parameters: Callable[[], Sequence[Tensor]],
        scales: Callable[[], Sequence[Tensor]],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        area: Area,
    ) -> None:
        self._parameters = parameters
        self._scales = scales
        self._optimizers = optimizers
        self._area = area
        self._handles: list[Any] = []
        self._is_due = False
        self._readout = Readout()

    def install(self) -> None:
        """Registers the hooks."""
        disable: Any = torch.compiler.disable  # a compiled step calls it, and does not trace it
        hook = disable(self._before_step)
        self._handles = [one.register_step_pre_hook(hook) for one in self._optimizers]

    def begin(self, look: Look) -> None:
        """See Probe."""
        self._is_due = look.is_sampled and not look.is_extra

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._is_due or self._area.tripped or is_capturing():
            return
        self._is_due = False
        with self._area, torch.no_grad():
            self._add(PARAM_HASH, self._parameters())
            self._add(SCALE_HASH, self._scales())

    def _add(self, name: str, tensors: Sequence[Tensor]) -> None:
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in tensors:
            by_device.setdefault(tensor.device, []).append(tensor)
        total = _HashSum(name, parts=len(by_device))
        for group in by_device.values():
            found = hash_of(group)
            if (
                name == SCALE_HASH
            ):  # scales that are all 1 were not set yet: that they are equal tells nothing
                moved = torch.count_nonzero(torch.cat([scale.reshape(-1) for scale in group]) != 1)
                found = torch.stack([found, moved])
            self._readout.add(found, total)

    def collect(self, readout: Readout, row: Row) -> None:
        """See Probe."""
        if self._is_due:  # no optimizer has stepped
            self._before_step(None, (), {})
        readout.join(self._readout)
        self._readout = Readout()

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def find_hashes(scene: Scene) -> Iterable[Probe]:
    """The probe, if there are other ranks and this one holds anything they ought to hold as well."""
    config = scene.config
    if not config.parameter_hashes or job_size(config) < 2:
        return []
    standing = standing_of(scene.model, config)
    managers = managers_of(scene.layers)

    def scales() -> list[Tensor]:
        if not all(_reduces(module) for module in scene.layers):
            return []
        return [scale for manager in managers for scale in _scales_of(manager)]

    area = scene.guard.area("hashing the weights", loses="the comparison of ranks by hash")
    optimizers = optimizers_of(scene.optimizer)
    return [HashProbe(lambda: comparable(scene.model, standing), scales, optimizers, area=area)]


def comparable(model: Any, standing: Standing) -> list[Tensor]:
    """What this rank has of its parameters and other ranks ought to have as well, bit for bit.

    A shard over data-parallel ranks says nothing and is left out; a part of a tensor that is split along a
    dimension whose coordinate is known counts, since ranks with the same coordinate hold the same part.
    """
    found: list[Tensor] = []
    for _, root in models_of(model):
        if any(is_fully_sharded(module) for module in root.modules()):
            continue
        ignored = getattr(root, "parameters_to_ignore", ())  # DistributedDataParallel leaves them to the user
        for name, parameter in root.named_parameters():
            if name.removeprefix("module.") in ignored or not _is_replicated(parameter, standing):
                continue
            bits = _plain(parameter.to_local() if hasattr(parameter, "to_local") else parameter.data)
            if bits is not None:
                found.append(bits)
    return found


def _plain(tensor: Any) -> Tensor | None:
    """The bits to hash: the tensor, the codes of one of Transformer Engine's quantised weights, or None.

    Wrappers of other packages would dequantise what is asked of them.
    """
    for found in (tensor, getattr(tensor, "_data", None), getattr(tensor, "_rowwise_data", None)):
        if isinstance(found, Tensor) and type(found) in (Tensor, torch.nn.Parameter):
            is_dense = found.layout is torch.strided and not found.is_quantized and found.numel() > 0
            return found if is_dense and found.device.type not in ("meta", "mps") else None
    return None


def _is_replicated(parameter: Any, standing: Standing) -> bool:
    if hasattr(parameter, "ds_id") or is_lazy(parameter):
        return False  # of DeepSpeed ZeRO 3, which holds a part; of a layer that has no shape yet
    if not getattr(parameter, "allreduce", True) and "ep" not in standing.coordinates:
        return False  # an expert, which other ranks have others of
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return True
    names = parameter.device_mesh.mesh_dim_names or ()
    for dim, placement in enumerate(placements):
        if placement.is_replicate():
            continue
        kind = kind_of_dimension(str(names[dim])) if dim < len(names) else None
        if kind not in SPLITTING or kind not in standing.coordinates:
            return False
    return True


def _reduces(module: Any) -> bool:
    """Whether the scales of an FP8 module come from the amaxes of all ranks; true for other modules."""
    meta = getattr(module, "fp8_meta", None)
    recipe = meta.get("recipe") if isinstance(meta, dict) else None
    return getattr(recipe, "reduce_amax", True) is not False


def _scales_of(manager: Any) -> list[Tensor]:
    """Scales of delayed scaling, in the order in which all ranks meet them: keys name groups of ranks."""
    state = getattr(manager, "quantization_state", manager)  # an object since Transformer Engine 2.15
    buffers: Any = getattr(state, "global_scale_buffer", {})
    return [scale for scales in buffers.values() for scale in scales]
