"""Which GPU of a machine is read: the one that the training thread uses."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from floatscope.assembly import describe_run
from floatscope.catalog import Catalog
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.probes import attach, gpu


class Nvml:
    """A pynvml that only opens devices."""

    def __init__(self) -> None:
        self.opened: list[object] = []

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.opened.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.opened.append(uuid)
        return uuid


@pytest.mark.parametrize(
    ("rank", "is_initialized", "opened"),
    [("1", True, "GPU-u3"), ("1", False, 1)],
    ids=["of the training thread", "of the local rank before CUDA is in use"],
)
def test_the_gpu_of_the_training_thread_is_read(
    monkeypatch: pytest.MonkeyPatch, rank: str, is_initialized: bool, opened: object
) -> None:
    """CUDA's current device belongs to a thread: in the probe's own it is 0, whatever the loop has chosen."""
    training = threading.get_ident()
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: is_initialized,
        current_device=lambda: 3 if threading.get_ident() == training else 0,
        device_count=lambda: 8,
        get_device_properties=lambda index: SimpleNamespace(uuid=f"u{index}"),
    )
    monkeypatch.setattr(gpu, "sys", SimpleNamespace(modules={"torch": SimpleNamespace(cuda=cuda)}))
    config, _ = from_env({"run": "x"}, {"LOCAL_RANK": rank})
    nvml = Nvml()
    probes = attach(None, None, config, guard=Guard(), catalog=Catalog(describe_run(config)), nvml=nvml)
    deadline = time.monotonic() + 30
    while not nvml.opened and time.monotonic() < deadline:
        time.sleep(0.01)
    probes.remove()
    assert nvml.opened == [opened]
