"""Real training libraries on the CPU. A file is collected only where what it needs is installed.

``make test-integrations`` sets INTEGRATIONS_MUST_RUN: there, a library that is missing is a failure.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.integrations.recorded import LAUNCHER

NEEDS: dict[str, tuple[str, ...]] = {  # file: top-level modules, as in find_spec
    "test_accelerate.py": ("accelerate",),
    "test_composer.py": ("composer",),
    "test_deepspeed.py": ("deepspeed",),
    "test_huggingface.py": ("transformers", "accelerate"),
    "test_lightning.py": ("lightning",),
    "test_megatron.py": ("megatron",),
    "test_megatron_bridge.py": ("megatron", "omegaconf", "hydra"),
    "test_ranks.py": ("transformers", "accelerate"),
    "test_torchao.py": ("torchao",),
    "test_torchtitan.py": ("torchtitan", "torchdata", "tyro", "tensorboard", "spmd_types"),
    "test_trl.py": ("trl", "transformers", "datasets"),
}


def missing(names: tuple[str, ...]) -> list[str]:
    """Modules that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


lacking = {file: absent for file, names in NEEDS.items() if (absent := missing(names))}
if lacking and os.environ.get("INTEGRATIONS_MUST_RUN"):
    raise pytest.UsageError(f"INTEGRATIONS_MUST_RUN is set, but modules are not installed: {lacking}")

collect_ignore = list(lacking)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs without a server leave their logs; nothing of this machine's jobs is in the environment."""
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "spool"
    monkeypatch.setenv("FLOATSCOPE_SPOOL_DIR", str(folder))
    return folder
