"""Which GPU of a machine is read: the one that the training thread uses."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace

import pytest
import torch

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


@pytest.mark.parametrize("asked", [None, True])
def test_the_driver_is_not_started_before_the_training_does(
    asked: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``is_available`` may start CUDA, and children that are forked afterwards could not use it any more.

    Whether somebody waits for readings is told from the setting and from where the model is.
    """

    def start() -> bool:
        raise AssertionError("this may start the driver")

    cuda = SimpleNamespace(is_available=start, device_count=start, is_initialized=lambda: False)
    monkeypatch.setattr(gpu, "sys", SimpleNamespace(modules={"torch": SimpleNamespace(cuda=cuda)}))
    monkeypatch.setattr("torch.cuda.is_available", start)
    config, _ = from_env({"run": "x", "gpu": asked}, {})
    nvml = SimpleNamespace(nvmlInit=start)  # as where there is no driver
    guard = Guard()
    model = torch.nn.Linear(2, 2)
    with caplog.at_level(logging.DEBUG, "floatscope"):
        probes = attach(model, None, config, guard=guard, catalog=Catalog(describe_run(config)), nvml=nvml)
        deadline = time.monotonic() + 30
        while "gpu_*" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        probes.remove()
    (record,) = (record for record in caplog.records if "gpu_*" in record.getMessage())
    assert record.levelname == ("WARNING" if asked else "DEBUG")
    assert guard.failures == {}


def test_a_model_on_a_gpu_is_told_from_its_parameters() -> None:
    here = torch.nn.Linear(2, 2)
    there = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda", 1))]))
    assert [gpu.is_on_gpu(model) for model in (here, [here], there, [there, here])] == [
        False,
        False,
        True,
        True,
    ]
    assert not any(gpu.is_on_gpu(model) for model in (None, [], object(), torch.nn.ReLU()))
