"""Where a rank stands in the job: data, tensor, pipeline, context and expert parallel coordinates.

Taken from the first that knows: the user (``watch(coordinates=)`` or FLOATSCOPE_COORDINATES), Megatron's
parallel state, the device meshes of the model's parameters, DistributedDataParallel. Nothing is imported for
it and nothing is asked of other ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from floatscope.config import DIMENSIONS, MonitorConfig
from floatscope.probes.naming import models_of
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.rows import Row

SPLITTING = ("tp", "pp", "ep")
"""Dimensions along which ranks hold different weights."""

_MEGATRON = "megatron.core.parallel_state"
_GETTERS = {
    "dp": "data_parallel",
    "tp": "tensor_model_parallel",
    "pp": "pipeline_model_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
}
_MESH_NAMES = {
    "dp": ("dp", "data", "data_parallel", "dp_replicate", "replicate", "dp_shard", "fsdp", "shard", "batch"),
    "tp": ("tp", "tensor", "tensor_parallel", "model"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel"),
    "cp": ("cp", "context", "context_parallel", "sp"),
    "ep": ("ep", "expert", "expert_parallel"),
}
"""Names that frameworks give to a mesh's dimensions; several of one kind are numbered as one."""


@dataclass(frozen=True)
class Standing:
    """A rank's coordinates and, where known, how many ranks there are along each.

    source: who said so, for the run's description; empty if nobody did.
    """

    coordinates: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    source: str = ""
    expert_dp_size: int = 1
    """Ranks that hold the same experts (Megatron)."""

    @property
    def is_split(self) -> bool:
        """Whether other ranks hold other weights; a norm over this rank's is then not that of the model."""
        return any(self._may_be_split(name) for name in SPLITTING)

    def _may_be_split(self, name: str) -> bool:
        if name in self.sizes:
            return self.sizes[name] > 1
        return name in self.coordinates

    def holds_part(self, parameter: Any) -> bool:
        """Whether this rank has only a part of what its norm is to be compared with."""
        return (
            hasattr(parameter, "to_local")
            or self.is_split
            or (self.sizes.get("tp") != 1 and bool(getattr(parameter, "tensor_model_parallel", False)))
        )

    def replicas(self, parameter: Any, *, is_shard: bool) -> int:
        """How many ranks hold these very elements, 0 where another rank counts them (tied embeddings).

        Of a DTensor what its mesh says; of Megatron's tensors what their attributes say; else 1.
        is_shard: the tensor is split over the data-parallel ranks without saying so.
        """
        placements = getattr(parameter, "placements", None)
        if placements is not None:
            mesh = parameter.device_mesh
            return _product(mesh.size(d) for d, p in enumerate(placements) if p.is_replicate())
        if not hasattr(parameter, "tensor_model_parallel"):
            return 1
        if getattr(parameter, "shared", False):
            return 0
        if is_shard:
            count = 1
        elif getattr(parameter, "allreduce", True):
            count = self.sizes.get("dp", 1) * self.sizes.get("cp", 1)
        else:
            count = self.expert_dp_size
        return count if parameter.tensor_model_parallel else count * self.sizes.get("tp", 1)


def standing_of(model: Any, config: MonitorConfig) -> Standing:
    """The rank's place, from the first source that knows it."""
    if config.coordinates:
        given = {name: int(value) for name, value in config.coordinates.items()}
        alone = dict.fromkeys(DIMENSIONS, 1) if config.world_size == 1 else {}
        return Standing(given, alone, "given")
    return _from_megatron() or _from_meshes(model) or _from_ddp(model) or Standing()


def job_size(config: MonitorConfig) -> int:
    """Ranks of the job, from the launcher or from torch.distributed; 1 if neither knows of any."""
    if config.world_size is not None:
        return config.world_size
    distributed = torch.distributed
    is_up = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_up else 1


def _from_megatron() -> Standing | None:
    state: Any = sys.modules.get(_MEGATRON)
    if state is None or not state.model_parallel_is_initialized():
        return None
    coordinates: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for name, middle in _GETTERS.items():
        try:
            rank = getattr(state, f"get_{middle}_rank")()
            size = getattr(state, f"get_{middle}_world_size")()
        except (AttributeError, AssertionError, RuntimeError, ValueError):
            continue  # a version without it, or a group that was not made
        coordinates[name], sizes[name] = int(rank), max(int(size), 1)
    if not coordinates:
        return None
    try:
        expert_dp_size = int(state.get_expert_data_parallel_world_size())
    except (AttributeError, AssertionError, RuntimeError, ValueError):
        expert_dp_size = 1
    return Standing(coordinates, sizes, "megatron", max(expert_dp_size, 1))


def _from_meshes(model: Any) -> Standing | None:
    coordinates: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for mesh, is_fsdp in _meshes(model):
        here = mesh.get_coordinate()
        if here is None:
            continue
        names = mesh.mesh_dim_names or (("dp",) if is_fsdp and len(here) == 1 else ())
        found: dict[str, tuple[int, int]] = {}
        for dim, name in enumerate(names):
            kind = kind_of_dimension(str(name))
            if kind is not None:
                rank, size = found.get(kind, (0, 1))
                found[kind] = (rank * mesh.size(dim) + int(here[dim]), size * mesh.size(dim))
        for kind, (rank, size) in found.items():
            if size >= sizes.get(kind, 1):
                coordinates[kind], sizes[kind] = rank, size
    return Standing(coordinates, sizes, "device mesh") if coordinates else None


def _meshes(model: Any) -> Iterator[tuple[Any, bool]]:
    """Every device mesh of the model's parameters once, the whole mesh after its parts, and if FSDP2 is
    at work."""
    is_fsdp = any(
        base.__name__ == "FSDPModule" for _, root in models_of(model) for base in _bases(root.modules())
    )
    seen: set[int] = set()
    for _, root in models_of(model):
        for parameter in root.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            for one in (mesh, _root_of(mesh)):
                if one is not None and id(one) not in seen:
                    seen.add(id(one))
                    yield one, is_fsdp


def _bases(modules: Iterable[nn.Module]) -> set[type]:
    return {base for kind in {type(module) for module in modules} for base in kind.__mro__}


def _root_of(mesh: Any) -> Any:
    """The mesh that this one was cut out of, which also has the pipeline's dimension."""
    get = getattr(mesh, "_get_root_mesh", None)  # since torch 2.6; without it the parts have to do
    return get() if callable(get) else None


def kind_of_dimension(name: str) -> str | None:
    """Which of dp, tp, pp, cp, ep a mesh's dimension of that name is, None if it cannot be told."""
    for kind, names in _MESH_NAMES.items():
        if name.lower() in names:
            return kind
    return "dp" if name.startswith("dp_") else None


def _from_ddp(model: Any) -> Standing | None:
    for _, root in models_of(model):
        group = getattr(root, "process_group", None)
        if type(root).__name__ == "DistributedDataParallel" and group is not None:
            distributed = torch.distributed
            return Standing(
                {"dp": distributed.get_rank(group)}, {"dp": distributed.get_world_size(group)}, "DDP"
            )
    return None


def _product(numbers: Iterable[int]) -> int:
    out = 1
    for number in numbers:
        out *= int(number)
    return out


class CoordinateProbe(Probe):
    """Writes the rank's coordinates into every row as ``dp_rank``, ``tp_rank`` and so on."""

    def __init__(self, standing: Standing) -> None:
        self._scalars = {f"{name}_rank": float(rank) for name, rank in standing.coordinates.items()}

    def collect(self, readout: Readout, row: Row) -> None:
        """See Probe."""
        for name, rank in self._scalars.items():
            row.scalars.setdefault(name, rank)


def find_coordinates(scene: Scene) -> Iterable[Probe]:
    """The probe, where anybody knows the rank's place; the run's description gets it too."""
    standing = standing_of(scene.model, scene.config)
    if not standing.coordinates:
        return []
    facts = {"rank": scene.config.rank, **standing.coordinates, "said_by": standing.source}
    if standing.sizes:
        facts["sizes"] = dict(standing.sizes)
    scene.catalog.describe(config={"place": facts})
    return [CoordinateProbe(standing)]
