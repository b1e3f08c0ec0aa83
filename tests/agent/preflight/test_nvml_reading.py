"""Reading GPUs through a pynvml whose calls fail, are missing or never return."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.preflight.facts import Wanted
from floatscope.preflight.gathering import gather_facts
from floatscope.preflight.machine import machine_checks
from floatscope.preflight.nvml_reading import read_nvml
from tests.agent.preflight import fake_nvml
from tests.agent.preflight.fake_nvml import ANSWERS, FakeNvml


def test_a_machine_is_read() -> None:
    nvml = FakeNvml()
    answer = read_nvml(nvml, limit_s=5)
    assert (answer.error, answer.failed) == ("", {})
    assert (answer.driver, answer.cuda_driver, answer.version) == ("570.133.20", (12, 8), "12.570.133.20")
    first, second = answer.gpus
    assert (first.index, second.index) == (0, 1)
    assert (first.name, first.capability, first.arch) == ("NVIDIA B200", (10, 0), "sm_100")
    assert first.memory_bytes == 180 * 2**30
    assert first.failed == {}
    assert first.values["ecc_mode"] == 1
    assert first.values["power_limit_w"] == 1000.0
    assert first.values["pcie_generation_max"] == 6
    assert len(first.values["nvlinks_up"]) == 18
    assert (first.values["fabric_state"], first.values["fabric_status"]) == (3, 0)
    assert first.values["other_processes"] == [1]
    assert first.values["other_processes_bytes"] == 0  # NVML may not see it
    assert first.values["throttle_reasons"] == 4


def test_the_thread_of_the_caller_never_asks_nvml() -> None:
    nvml = FakeNvml()
    gather_facts(nvml=nvml, light=True, environment={})
    assert nvml.threads == {"floatscope-preflight"}


@pytest.mark.parametrize(
    "function", sorted(set(ANSWERS) - {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount"})
)
def test_one_call_that_fails_takes_no_other_with_it(function: str) -> None:
    broken = FakeNvml({function: fake_nvml.NVMLError("Unknown Error")})
    lacking = FakeNvml(missing=(function,))
    for nvml in (broken, lacking):
        answer = read_nvml(nvml, limit_s=5)
        assert answer.error == ""
        assert len(answer.gpus) == 2
        told = {**answer.failed, **answer.gpus[0].failed}
        assert len(told) >= 1
        whole = read_nvml(FakeNvml(), limit_s=5).gpus[0]
        if "handle" not in told:
            assert len(answer.gpus[0].values) >= len(whole.values) - 4


def test_old_name_of_the_throttle_reasons() -> None:
    nvml = FakeNvml(missing=("nvmlDeviceGetCurrentClocksEventReasons",))
    assert "throttle_reasons" in read_nvml(nvml, limit_s=5).gpus[0].failed


def test_what_a_gpu_does_not_have_is_told_apart_from_errors() -> None:
    nvml = FakeNvml(
        {
            "nvmlDeviceGetMigMode": fake_nvml.NVMLError_NotSupported("Not Supported"),
            "nvmlDeviceGetNvLinkState": fake_nvml.NVMLError_NotSupported("Not Supported"),
            "nvmlDeviceGetEccMode": fake_nvml.NVMLError("Unknown Error"),
        }
    )
    failed = read_nvml(nvml, limit_s=5).gpus[0].failed
    assert failed["mig_mode"].startswith("not supported")
    assert failed["nvlinks"].startswith("not supported")
    assert failed["ecc_mode"] == "NVMLError: Unknown Error"


@pytest.mark.parametrize(
    ("error", "sign"),
    [
        (fake_nvml.NVMLError_LibRmVersionMismatch("RM has detected a mismatch"), "LibRmVersionMismatch"),
        (fake_nvml.NVMLError_DriverNotLoaded("Driver Not Loaded"), "DriverNotLoaded"),
        (OSError("libnvidia-ml.so.1"), "OSError"),
    ],
)
def test_nvml_that_does_not_start(error: Exception, sign: str) -> None:
    facts = gather_facts(nvml=FakeNvml({"nvmlInit": error}), light=True, environment={})
    assert sign in facts.nvml
    assert facts.gpus == ()
    check = next(one for one in machine_checks(facts, Wanted()) if one.name == "gpu.nvml")
    assert check.status == "fail"
    assert sign in check.read


def test_a_lost_gpu_among_others() -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise fake_nvml.NVMLError_GpuIsLost("GPU is lost")
        return index

    answer = read_nvml(FakeNvml({"nvmlDeviceGetHandleByIndex": handle}), limit_s=5)
    assert answer.gpus[0].name == "NVIDIA B200"
    assert "GPU is lost" in answer.gpus[1].failed["handle"]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetEccMode"])
def test_a_call_that_hangs_is_left_behind(function: str) -> None:
    nvml = FakeNvml(hangs=function)
    began = time.monotonic()
    facts = gather_facts(nvml=nvml, light=True, environment={}, nvml_limit_s=0.2)
    assert time.monotonic() - began < 3
    nvml.released.set()
    assert "no answer within" in facts.nvml
    assert function in facts.nvml or "GPU 0" in facts.nvml
    if function != "nvmlInit":
        assert facts.driver == "570.133.20"  # what was read before stays
    check = next(one for one in machine_checks(facts, Wanted()) if one.name == "gpu.nvml")
    assert check.status == "fail"


def test_links_end_at_the_first_that_does_not_exist() -> None:
    nvml = FakeNvml({"nvmlDeviceGetNvLinkState": lambda gpu, link: int(link != 3)})
    values = read_nvml(nvml, limit_s=5).gpus[0].values
    assert values["nvlinks_down"] == [3]
    assert len(values["nvlinks_up"]) == 35


ODD = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=5),
    st.just(SimpleNamespace()),
    st.sampled_from([RuntimeError("x"), OSError("y"), fake_nvml.NVMLError_NotSupported("z"), KeyError("k")]),
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ANSWERS)), ODD, max_size=6))
def test_whatever_nvml_answers_nothing_is_raised(answers: dict[str, object]) -> None:
    given_answers = {name: value for name, value in answers.items()}
    if isinstance(given_answers.get("nvmlDeviceGetCount"), int):
        given_answers["nvmlDeviceGetCount"] = 2
    answer = read_nvml(FakeNvml(given_answers), limit_s=5)
    facts = gather_facts(nvml=FakeNvml(given_answers), light=True, environment={})
    assert len(facts.gpus) == len(answer.gpus)
    assert machine_checks(facts, Wanted(recipe="mxfp8"))


def test_without_pynvml() -> None:
    assert "not installed" in read_nvml(None, limit_s=1).error
