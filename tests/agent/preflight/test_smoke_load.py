"""What is read of the GPUs while they multiply."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.smoke_load import load_checks
from tests.agent.preflight.fake_nvml import ANSWERS, FakeNvml, NVMLError_DriverNotLoaded
from tests.agent.preflight.machines import amd, gpu

NODE = Facts(gpus=(gpu("NVIDIA B200", (10, 0)), gpu("NVIDIA B200", (10, 0), index=1)))


class Load:
    """Notes whether NVML was asked between the start and the end of the work."""

    def __init__(self) -> None:
        self.running = False
        self.seen: list[bool] = []

    def queue(self, seconds: float) -> Callable[[], None]:
        self.running = True
        return self.end

    def end(self) -> None:
        self.running = False

    def reasons(self, bits: int) -> Callable[[object], int]:
        def read(handle: object) -> int:
            self.seen.append(self.running)
            return bits

        return read


def checks(load: Load, answers: dict[str, object]) -> dict[str, Check]:
    found = load_checks(NODE, Wanted(), nvml=FakeNvml(answers), queue=load.queue)
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


@pytest.mark.parametrize(("bits", "status"), [(0x4, "pass"), (0x20, "warn"), (0x40, "fail"), (0x80, "fail")])
def test_clocks_are_read_while_the_gpu_multiplies(bits: int, status: str) -> None:
    load = Load()
    found = checks(load, {"nvmlDeviceGetCurrentClocksEventReasons": load.reasons(bits)})
    assert found["gemm.load.throttle"].status == status
    assert found["gemm.load.throttle"].read.startswith("under load")
    assert load.seen
    assert all(load.seen)
    assert not load.running
    assert set(found) == {"gemm.load.throttle", "gemm.load.pcie"}


def test_a_driver_that_cannot_be_asked_is_unknown_and_the_work_ends() -> None:
    load = Load()
    found = checks(load, {"nvmlInit": NVMLError_DriverNotLoaded("Driver Not Loaded")})
    assert found["gemm.load"].status == "unknown"
    assert "Driver Not Loaded" in found["gemm.load"].read
    assert not load.running


def test_a_gpu_that_does_not_multiply_is_unknown() -> None:
    def refuse(seconds: float) -> Callable[[], None]:
        raise RuntimeError("CUDA out of memory")

    (only,) = load_checks(NODE, Wanted(), nvml=FakeNvml(), queue=refuse)
    assert (only.name, only.status) == ("gemm.load", "unknown")
    assert "out of memory" in only.read


def test_without_nvidia_gpus_there_is_nothing_to_read() -> None:
    assert load_checks(Facts(), Wanted()) == []
    assert load_checks(Facts(gpus=(amd("AMD Instinct MI300X", "gfx942"),)), Wanted()) == []
    assert "nvmlDeviceGetCurrentClocksEventReasons" in ANSWERS
