"""What the agent's tests share: a clean environment, a server on a socket, a monitor that is strict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fake_server import HttpServer

LAUNCHER = (
    "FLOATSCOPE_URL", "FLOATSCOPE_TOKEN", "FLOATSCOPE_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_PROCID", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``gpu`` say why they did not run."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and there is none here")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLOATSCOPE_SPOOL_DIR", str(tmp_path / "spool"))


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """A server that keeps the contract until it is told otherwise."""
    found = HttpServer()
    yield found
    found.close()


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run object and the rows of a floatscope log."""
    head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return head["run"], rows
