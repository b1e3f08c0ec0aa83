"""What preflight knows of a machine. Checks are functions of these facts and of what is wanted: they ask
nothing of the machine themselves, so that a test can be any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope.model_shapes.shape import ModelShape, Parallelism

Version = tuple[int, ...]
"""Release numbers only: (12, 10) is larger than (12, 9), which a float or a text does not know."""


@dataclass(frozen=True)
class GpuFacts:
    """One GPU as NVML and torch tell it; None is what could not be read, ``failed`` says why.

    values: further readings by NVML's name of them ("ecc_mode", "remap_pending", "throttle_reasons", ...).
    """

    index: int
    name: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    arch: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """A machine and its Python environment.

    versions: distribution name -> its version as installed ("transformer-engine" -> "2.20.2"); absent ones
    are not in it.  environment: the process environment.  gpus: empty without one; ``nvml`` says why NVML
    could not be used, "" if it could.  driver, cuda_driver: versions of the NVIDIA driver and of the CUDA it
    brings. torch: what torch says of itself ("cuda", "hip", "cudnn", "nccl", "flags", ...), empty without it.
    libraries: what was read of loaded libraries ("cublaslt", ...).  failed: fact -> why it could not be read.

    """

    python: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[GpuFacts, ...] = ()
    nvml: str = ""
    driver: str = ""
    cuda_driver: Version = ()
    torch: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What is to be trained; None and 0 are what was not said.

    recipe: one of ``protocol.names.RECIPES``.  library: "transformer_engine", "torchao", "megatron",
    "accelerate", "torch" or "".  micro_batch: sequences.  sequence: tokens of one.  resume: a checkpoint that
    is to be continued.
    """

    recipe: str = ""
    library: str = ""
    model: ModelShape | None = None
    micro_batch: int = 0
    sequence: int = 0
    parallelism: Parallelism = field(default_factory=Parallelism)
    resume: str = ""
