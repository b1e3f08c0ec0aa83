"""The trained parameters as an optimizer holds them: their names, and what part of them this rank has.

An optimizer may hold other tensors than the model: Megatron's keep float32 copies (``main_param``), whole or
sharded over the data-parallel ranks. They have the names of the parameters they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from floatscope.probes.coordinates import Standing
from floatscope.probes.gradients import is_plain, local_values
from floatscope.probes.naming import models_of, parameters_of, weight_tensor


@dataclass(frozen=True, eq=False)
class Weight:
    """A trained parameter.

    tensor: its name ``layer/weight``, or None if it has no statistics of its own.
    is_sharded: whether this rank holds only a part, so that norms here are not those of the whole.
    is_plain: see ``gradients.is_plain``.  replicas: how many ranks hold the same elements; 0 for a second
    copy of elements that another rank counts.
    """

    parameter: torch.nn.Parameter
    tensor: str | None
    is_sharded: bool
    is_plain: bool
    replicas: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's part; 0 where it cannot be read."""
        values = local_values(self.parameter)
        return 0 if values is None else values.numel() * values.element_size()

    @property
    def share(self) -> float:
        """How much of this rank's square counts in a sum over all ranks."""
        return 1.0 / self.replicas if self.replicas else 0.0


class WeightBook:
    """Names of a model's parameters and of the copies that optimizers hold in their place.

    is_flat: the optimizer holds this rank's part of the weights without saying so.
    """

    def __init__(
        self, model: Any, standing: Standing, *, layer_offset: int = 0, is_flat: bool = False
    ) -> None:
        self._standing = standing
        self._names: dict[int, str | None] = {}
        self._originals: dict[int, torch.nn.Parameter] = {}
        self._shards: set[int] = set()
        self._is_flat = is_flat or any(
            is_fully_sharded(module) for _, root in models_of(model) for module in root.modules()
        )
        for name, parameter in parameters_of(
            model, layer_offset=layer_offset, ep_rank=standing.coordinates.get("ep", 0)
        ):
            self._names[id(parameter)] = weight_tensor(name, parameter)
            self._originals[id(parameter)] = parameter

    def weights_of(self, optimizer: torch.optim.Optimizer) -> list[Weight]:
        """What the optimizer trains now; a tensor that it holds twice counts once."""
        found: dict[int, torch.nn.Parameter] = {}
        for parameter in parameters_in(optimizer):
            found.setdefault(id(parameter), parameter)
        if any(key not in self._originals for key in found):
            self._meet_copies()
        return [self._weight(parameter) for parameter in found.values()]

    def _meet_copies(self) -> None:
        for key, original in tuple(self._originals.items()):
            copy = getattr(original, "main_param", None)
            if isinstance(copy, torch.Tensor):
                self._names[id(copy)] = self._names[key]
                if getattr(original, "main_param_sharded", False):
                    self._shards.add(id(copy))

    def _weight(self, parameter: torch.nn.Parameter) -> Weight:
        is_shard = self._is_flat or id(parameter) in self._shards
        return Weight(
            parameter,
            self._names.get(id(parameter)),
            is_sharded=is_shard or self._standing.holds_part(parameter),
            is_plain=is_plain(parameter),
            replicas=self._standing.replicas(parameter, is_shard=is_shard),
        )


def is_fully_sharded(module: Any) -> bool:
    """Whether the module is FullyShardedDataParallel (FSDP1), whose parameters do not say that they are
    parts."""
    strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
    return type(module).__name__ == "FullyShardedDataParallel" and strategy != "NO_SHARD"


def parameters_in(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    """The parameters of all groups, as they stand there."""
    for group in optimizer.param_groups:
        yield from group["params"]


def is_same(weights: list[Weight], optimizer: torch.optim.Optimizer) -> bool:
    """Whether the list still is what the optimizer trains; groups may be added or replaced meanwhile."""
    at = 0
    for parameter in parameters_in(optimizer):
        if at >= len(weights) or weights[at].parameter is not parameter:
            return False
        at += 1
    return at == len(weights)


def total_bytes(weights: Iterable[Weight]) -> int:
    """Bytes of this rank's parts of all weights that are trained."""
    return sum(weight.nbytes for weight in weights if weight.parameter.requires_grad)
