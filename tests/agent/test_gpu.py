"""GPU readings with a stand-in for the pynvml module."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from floatscope.guard import Guard
from floatscope.probes import WithoutTorch
from floatscope.probes.gpu import GpuPlace, GpuProbe, load_pynvml, place_of_process, read_gpu
from floatscope.rows import Row
from tests.agent.training import recording


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As in pynvml."""


class FakeNvml:
    """One GPU with fixed readings."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    def __init__(self, *, devices: int = 1, unsupported: str = "", error: Exception | None = None) -> None:
        self.devices = devices
        self.unsupported = unsupported
        self.error = error
        self.opened: list[object] = []

    def nvmlInit(self) -> None:
        if self.devices < 0:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self.opened.append(index)
        return f"gpu{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.opened.append(uuid)
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(gpu=93, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if self.unsupported == "power":
            raise NVMLError_NotSupported("Not Supported")
        return 654_321

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 71

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x40


READINGS = {
    "gpu_util_pct": 93.0, "gpu_mem_gib": 3.0, "gpu_power_w": 654.321, "gpu_temp_c": 71.0,
    "gpu_sm_clock_mhz": 1980.0, "gpu_throttle": 64.0,
}  # fmt: skip


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def probe(nvml: Any, guard: Guard, *, place: GpuPlace | None = None, clock: Any = time.monotonic) -> GpuProbe:
    where = place if place is not None else GpuPlace(0, None)
    area = guard.area("gpu", loses="gpu_* readings")
    return GpuProbe(nvml, every_s=0.05, place=lambda: where, guard=guard, area=area, clock=clock)


def test_units_are_the_protocols() -> None:
    assert read_gpu(FakeNvml(), "gpu0") == READINGS


def test_a_reading_the_gpu_does_not_offer_is_left_out() -> None:
    found = read_gpu(FakeNvml(unsupported="power"), "gpu0")
    assert found == {name: value for name, value in READINGS.items() if name != "gpu_power_w"}


def test_the_newer_name_of_the_throttle_reasons_is_preferred() -> None:
    nvml: Any = FakeNvml()
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 4
    assert read_gpu(nvml, "gpu0")["gpu_throttle"] == 4.0


def test_a_row_gets_the_latest_readings() -> None:
    found = probe(FakeNvml(), Guard())
    found.install()
    wait_for(found.latest)
    row = Row(0, 0.0)
    WithoutTorch(found).collect(row)
    assert row.scalars == READINGS
    found.remove()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "floatscope-gpu"])


@pytest.mark.parametrize(("place", "opened"), [(GpuPlace(5, None), 1), (GpuPlace(0, "GPU-abc"), "GPU-abc")])
def test_the_gpu_of_this_process_is_read(place: GpuPlace, opened: object) -> None:
    nvml = FakeNvml(devices=4)
    found = probe(nvml, Guard(), place=place)
    found.install()
    wait_for(lambda: nvml.opened)
    found.remove()
    assert nvml.opened == [opened]


@pytest.mark.parametrize("nvml", [None, FakeNvml(devices=0), FakeNvml(devices=-1)])
def test_without_a_gpu_it_is_said_once(nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = probe(nvml, Guard())
    found.install()
    wait_for(lambda: caplog.records)
    assert found.latest() == {}
    assert sum("no NVIDIA GPU" in r.getMessage() for r in caplog.records) == 1
    found.remove()


def test_a_sick_driver_is_reported_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(limit=3)
    found = probe(FakeNvml(error=RuntimeError("GPU is lost")), guard)
    found.install()
    wait_for(lambda: guard.failures.get("gpu") == 3)
    assert found.latest() == {}
    assert any("gpu_* readings" in r.getMessage() for r in caplog.records)
    found.remove()


def test_old_readings_are_not_passed_off_as_new() -> None:
    now = [0.0]
    found = probe(FakeNvml(), Guard(), clock=lambda: now[0])
    found._latest = (0.0, dict(READINGS))
    assert found.latest()
    now[0] = 10.0
    assert found.latest() == {}


def test_the_real_module_is_found_and_a_process_without_cuda_has_a_place() -> None:
    assert hasattr(load_pynvml(), "nvmlInit")
    assert place_of_process(3) == GpuPlace(3, None)


def test_a_monitor_without_a_gpu_works(tmp_path: Path) -> None:
    with recording(tmp_path, gpu=True) as found:
        found.monitor.step(loss=1.0)
    assert "gpu_util_pct" not in found.rows[0] or found.rows[0]["gpu_util_pct"] >= 0
