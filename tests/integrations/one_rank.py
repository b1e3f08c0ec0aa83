"""What tests of distributed libraries share: a process group of one, settings, and the log that comes out."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.agent.conftest import read_log


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """Every step measured in full, into ``folder``; a failure of the agent is the test's."""
    return {
        "log_path": folder / "log.jsonl",
        "spool_dir": folder / "spool",
        "stats_every": 1,
        "gpu": False,
        "strict": True,
        "mode": "local",
        "diagnose": False,
        "capture": False,
        "recorder_steps": 0,
        **more,
    }


@contextmanager
def launched() -> Iterator[None]:
    """The environment that a launcher gives the only rank of a job."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
            patch.setenv(name, value)
        yield


@contextmanager
def gloo() -> Iterator[None]:
    """A process group on the CPU with this process as its only rank."""
    with launched():
        dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def example(name: str) -> Any:
    """The module ``examples/NAME/train.py``."""
    path = Path(__file__).parents[2] / "examples" / name / "train.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat_weights(models: Any) -> Tensor:
    """All weights of a model or of several as one vector of their bits' values."""
    parts = models if isinstance(models, Sequence) else [models]
    return torch.cat(
        [
            (p.to_local() if hasattr(p, "to_local") else p).detach().double().flatten()
            for part in parts
            for p in part.parameters()
        ]
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The steps in the log there."""
    return read_log(folder / "log.jsonl")[1]


def tensors_with(row: dict[str, Any], stat: str) -> set[str]:
    """Names of the tensors that have a statistic in a row."""
    return {name for name, stats in row.get("tensors", {}).items() if stat in stats}
