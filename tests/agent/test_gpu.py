"""GPU readings with a stand-in for the pynvml module."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from floatscope.catalog import Catalog
from floatscope.config import from_env
from floatscope.guard import Guard
from floatscope.probes import WithoutTorch, attach
from floatscope.probes.gpu import GpuPlace, GpuProbe, load_pynvml, place_of_process
from floatscope.probes.gpu_readings import Gpu, Readings, open_gpu
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row
from tests.agent.training import recording


class NVMLError(Exception):
    """As in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As in pynvml."""


class NVMLError_Timeout(NVMLError):
    """As in pynvml."""


class FakeNvml:
    """GPUs with fixed readings.

    unsupported: part of a function's name that the GPU does not offer.  error: what every reading raises.
    events: XIDs to come; without any, waiting for events ends in a timeout.
    """

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_ERROR_DL_REPLAY = 0
    NVML_NVLINK_ERROR_DL_RECOVERY = 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2
    NVML_NVLINK_ERROR_DL_CRC_DATA = 3
    nvmlEventTypeXidCriticalError = 8

    def __init__(
        self,
        *,
        devices: int = 1,
        unsupported: str = "",
        error: Exception | None = None,
        events: list[int] | None = None,
    ) -> None:
        self.devices = devices
        self.unsupported = unsupported
        self.error = error
        self.events = [] if events is None else events
        self.opened: list[object] = []
        self.asked: list[str] = []
        self.freed = 0

    def answer(self, name: str, value: Any) -> Any:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        if self.unsupported and self.unsupported in name:
            raise NVMLError_NotSupported("Not Supported")
        return value

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
        return self.answer("util", SimpleNamespace(gpu=93, memory=40))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self.answer("memory", SimpleNamespace(used=3 * 2**30, total=80 * 2**30))

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
        return self.answer("power", 654_321)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> Any:
        return self.answer("limit", 700_000)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> Any:
        return self.answer("temperature", 71)

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> Any:
        value = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=88))
        return self.answer("fields", [value for _ in fields])

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> Any:
        return self.answer("clock", {1: 1980, 2: 2619}[clock])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> Any:
        return self.answer("throttle", 0x40)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> Any:
        return self.answer("ecc", {0: 12, 1: 1}[kind])

    def nvmlDeviceGetRemappedRows(self, handle: str) -> Any:
        return self.answer("rows", (1, 2, 1, 0))

    def nvmlDeviceGetPcieReplayCounter(self, handle: str) -> Any:
        return self.answer("pcie", 5)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> Any:
        return self.answer("links", link < 2)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: str, link: int, kind: int) -> Any:
        return self.answer("nvlink", 3)

    def nvmlEventSetCreate(self) -> list[object]:
        self.answer("events", None)
        return []

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: list[object]) -> None:
        events.append((handle, kinds))

    def nvmlEventSetWait_v2(self, events: list[object], timeout_ms: int) -> Any:
        if self.events:
            return SimpleNamespace(eventType=8, eventData=self.events.pop(0))
        time.sleep(0.001)
        raise NVMLError_Timeout("Timeout")

    def nvmlEventSetFree(self, events: list[object]) -> None:
        self.freed += 1


READINGS = {
    "gpu_util_pct": 93.0, "gpu_mem_gib": 3.0, "gpu_power_w": 654.321, "gpu_temp_c": 71.0,
    "gpu_sm_clock_mhz": 1980.0, "gpu_throttle": 64.0, "gpu_mem_util_pct": 40.0, "gpu_power_limit_w": 700.0,
    "gpu_mem_temp_c": 88.0, "gpu_mem_clock_mhz": 2619.0, "gpu_ecc_corrected": 12.0,
    "gpu_ecc_uncorrected": 1.0, "gpu_pcie_replays": 5.0, "gpu_remapped_rows": 3.0, "gpu_remap_pending": 1.0,
    "gpu_remap_failed": 0.0, "gpu_nvlink_errors": 24.0,
}  # fmt: skip


def read_gpu(nvml: Any, gpu: Gpu | None = None) -> dict[str, float]:
    return Readings(nvml, gpu or Gpu("gpu0", "gpu0"), say=lambda name, reason: None).read()


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
    """Percent, GiB, watts, degrees, megahertz, counts, each under a name that says so."""
    assert read_gpu(FakeNvml()) == READINGS


GONE = {
    "util": {"gpu_util_pct", "gpu_mem_util_pct"}, "power": {"gpu_power_w"}, "fields": {"gpu_mem_temp_c"},
    "ecc": {"gpu_ecc_corrected", "gpu_ecc_uncorrected"}, "nvlink": {"gpu_nvlink_errors"},
    "rows": {"gpu_remapped_rows", "gpu_remap_pending", "gpu_remap_failed"}, "links": {"gpu_nvlink_errors"},
}  # fmt: skip


@pytest.mark.parametrize("unsupported", sorted(GONE))
def test_a_reading_the_gpu_does_not_offer_is_left_out_by_itself(unsupported: str) -> None:
    """All others are there, and it is not asked for again and again."""
    nvml = FakeNvml(unsupported=unsupported)
    readings = Readings(nvml, Gpu("gpu0", "gpu0"), say=lambda name, reason: None)
    wanted = {name: value for name, value in READINGS.items() if name not in GONE[unsupported]}
    assert readings.read() == wanted
    if unsupported not in ("rows",):
        nvml.asked.clear()
        assert readings.read() == wanted
        assert unsupported not in nvml.asked


def test_a_function_that_an_old_pynvml_lacks_is_left_out() -> None:
    """An installed module may be older than what is asked of it."""

    class Old(FakeNvml):
        @property
        def nvmlDeviceGetTotalEccErrors(self) -> Any:
            raise AttributeError("nvmlDeviceGetTotalEccErrors")

    assert set(READINGS) - set(read_gpu(Old())) == {"gpu_ecc_corrected", "gpu_ecc_uncorrected"}


def test_a_reading_that_fails_is_said_once_and_comes_back() -> None:
    """An error that may pass costs one value of one sample."""
    said: list[tuple[str, str]] = []

    class Flaky(FakeNvml):
        def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
            self.asked.append("power")
            if self.asked.count("power") < 3:
                raise NVMLError("Unknown Error")
            return 100_000

    readings = Readings(Flaky(), Gpu("a", "a"), say=lambda name, reason: said.append((name, reason)))
    found = [readings.read().get("gpu_power_w") for _ in range(3)]
    assert found == [None, None, 100.0]
    assert said == [("gpu_power_w", "Unknown Error")]


def test_an_idle_gpu_is_not_held_down() -> None:
    """Its bit is taken out: a slow data loader must not look like a card that throttles."""
    nvml: Any = FakeNvml()
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 1
    assert read_gpu(nvml)["gpu_throttle"] == 0.0


def test_the_newer_name_of_the_throttle_reasons_is_preferred() -> None:
    """Drivers from 535 on."""
    nvml: Any = FakeNvml()
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 4
    assert read_gpu(nvml)["gpu_throttle"] == 4.0


class Sliced(FakeNvml):
    """A GPU cut into slices; they know their memory, the board knows the rest."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if not uuid.startswith("MIG-"):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> int:
        return int(handle.startswith("MIG-"))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "board"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        raise NVMLError_NotSupported("Not Supported")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
        return {"board": 300_000}[handle]


@pytest.mark.parametrize("uuid", ["abc", "GPU-abc", "MIG-abc"])
def test_a_slice_of_a_gpu_is_read(uuid: str) -> None:
    """What slices do not have comes from the board; how busy a slice is cannot be read."""
    nvml = Sliced()
    gpu = open_gpu(nvml, uuid=uuid, index=0)
    assert gpu == Gpu("MIG-abc", "board")
    found = read_gpu(nvml, gpu)
    assert found["gpu_power_w"] == 300.0
    assert set(READINGS) - set(found) == {"gpu_util_pct", "gpu_mem_util_pct"}


def test_events_of_the_driver_reach_the_row_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted; the newest stands in the next row, and what it means is said once."""
    nvml = FakeNvml(events=[48, 79, 79])
    found = probe(nvml, Guard())
    found.install()
    wait_for(lambda: found._xids is not None and found._xids._count == 3)
    wait_for(lambda: found._latest)
    assert found.latest() == {**READINGS, "gpu_xid_count": 3.0, "gpu_xid": 79.0}
    assert found.latest() == {**READINGS, "gpu_xid_count": 3.0}
    said = [r.getMessage() for r in caplog.records]
    assert sum("XID 79: the GPU has fallen off the bus" in text for text in said) == 1
    assert sum("XID 48" in text for text in said) == 1
    found.remove()
    wait_for(lambda: nvml.freed == 1)


def test_events_that_may_not_be_watched_are_left_out() -> None:
    """Without permission there is no count, which would look like a GPU without errors."""
    nvml = FakeNvml(unsupported="events")
    found = probe(nvml, Guard(strict=True))
    found.install()
    wait_for(found.latest)
    assert found.latest() == READINGS
    found.remove()


class Hanging(FakeNvml):
    """A driver that stops answering."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self.answers.wait()
        return super().nvmlDeviceGetUtilizationRates(handle)


def test_a_hanging_driver_costs_the_readings_and_no_time() -> None:
    """Asking for the latest and leaving do not wait for it."""
    nvml = Hanging()
    found = probe(nvml, Guard(strict=True))
    found.install()
    wait_for(lambda: found._xids is not None)
    assert set(found.latest()) <= {"gpu_xid_count"}
    found.remove()
    assert not nvml.answers.is_set(), "it has not answered to this day"
    nvml.answers.set()


def test_a_row_gets_the_latest_readings() -> None:
    found = probe(FakeNvml(), Guard())
    found.install()
    wait_for(lambda: "gpu_util_pct" in found.latest())
    row = Row(0, 0.0)
    WithoutTorch(found).collect(row)
    assert row.scalars == {**READINGS, "gpu_xid_count": 0.0}
    found.remove()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name in ("floatscope-gpu", "floatscope-xid")])


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


@pytest.mark.parametrize(("gpu", "levels"), [(None, ["DEBUG"]), (True, ["WARNING"]), (False, [])])
def test_a_machine_without_a_gpu_is_no_news(
    gpu: bool | None, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="floatscope")
    config, _ = from_env({"run": "x", "gpu": gpu}, env={})
    catalog = Catalog(RunInfo(name="x"))
    found = attach(None, None, config, guard=Guard(), catalog=catalog, nvml=FakeNvml(devices=0))
    if levels:
        wait_for(lambda: caplog.records)
    found.remove()
    assert [r.levelname for r in caplog.records] == levels


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
