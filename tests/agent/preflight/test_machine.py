"""Checks of versions, Transformer Engine's pieces, GPUs and their health, machine by machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floatscope.preflight.check import STATUSES, Check
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.machine import machine_checks
from tests.agent.preflight.machines import amd, gpu, machine

DELAYED = Wanted(recipe="fp8_delayed_scaling", library="transformer_engine")


def checks(facts: Facts, wanted: Wanted = DELAYED) -> dict[str, Check]:
    found = machine_checks(facts, wanted)
    names = [check.name for check in found]
    assert len(set(names)) == len(names)
    return {check.name: check for check in found}


def statuses(facts: Facts, wanted: Wanted = DELAYED) -> dict[str, str]:
    return {name: check.status for name, check in checks(facts, wanted).items()}


def test_a_machine_in_order_passes_everything() -> None:
    facts = machine(gpu(), gpu(index=1), versions={"nvidia-ml-py": "13.615.71"})
    found = checks(facts)
    assert {name: c.read for name, c in found.items() if c.status not in ("pass", "not_applicable")} == {}
    assert {"recipe.gpu", "gpu.nvlink", "gpu.fabric", "software.te_pieces", "gpu.alike"} <= set(found)
    for check in found.values():
        assert check.read
        assert check.why
        assert check.source
        assert check.area in ("gpu", "software", "recipe")


def test_what_does_not_pass_says_what_to_do() -> None:
    facts = Facts(nvml="NVMLError_Unknown", torch={}, failed={"torch": "ImportError"})
    for check in checks(facts).values():
        assert check.status in STATUSES
        assert check.do or check.status in ("pass", "not_applicable"), check


def test_without_a_gpu() -> None:
    facts = machine(
        te=None,
        cuda=None,
        cudnn=None,
        cublaslt=None,
        driver="",
        cuda_driver=(),
        nvml="NVMLError_LibraryNotFound: NVML Shared Library Not Found",
    )
    found = statuses(facts, Wanted(recipe="mxfp8"))
    assert found["gpu.nvml"] == found["gpu.found"] == found["recipe.gpu"] == "unknown"
    assert found["software.driver"] == found["software.cuda"] == "unknown"
    assert found["software.transformer_engine"] == "fail"
    assert found["software.torch"] == "pass"
    assert "gpu.ecc" not in found
    assert "software.transformer_engine" not in statuses(facts, Wanted())


def test_driver_library_and_kernel_differ() -> None:
    facts = replace(
        machine(driver="", libraries={"kernel_driver": "570.86.10"}),
        nvml="NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
    )
    found = checks(facts)["gpu.nvml"]
    assert found.status == "fail"
    assert "570.86.10" in found.read
    differ = checks(machine(gpu(), driver="580.65.06", libraries={"kernel_driver": "580.82.07"}))
    assert differ["gpu.driver_match"].status == "fail"
    assert "580.82.07" in differ["gpu.driver_match"].read


@pytest.mark.parametrize(
    ("cuda", "driver", "cuda_driver", "driver_status", "major_status"),
    [
        ("12.9", "525.60.13", (12, 0), "pass", "pass"),
        ("12.9", "520.61.05", (11, 8), "fail", "fail"),
        ("13.0", "580.65.06", (13, 0), "pass", "pass"),
        ("13.0", "575.57.08", (12, 9), "fail", "fail"),
        ("12.10", "525.60.13", (12, 9), "pass", "pass"),
    ],
)
def test_driver_for_cuda(
    cuda: str, driver: str, cuda_driver: tuple[int, int], driver_status: str, major_status: str
) -> None:
    facts = machine(gpu(), cuda=cuda, driver=driver, cuda_driver=cuda_driver)
    found = statuses(facts)
    assert found["software.driver"] == driver_status
    assert found["software.cuda_driver"] == major_status


def test_blackwell_wants_a_recent_driver() -> None:
    b200 = gpu("NVIDIA B200", (10, 0))
    assert statuses(machine(b200, driver="570.86.10"))["software.driver"] == "warn"
    assert statuses(machine(b200, driver="570.133.20"))["software.driver"] == "pass"
    rtx = checks(machine(gpu("NVIDIA GeForce RTX 5090", (12, 0)), driver="565.57.01"))["software.driver"]
    assert rtx.status == "warn"
    assert "not confirmed" in rtx.why


@pytest.mark.parametrize(
    ("recipe", "cudnn", "status"),
    [
        ("mxfp8", "9.11.0", "fail"),
        ("mxfp8", "9.20.0", "warn"),
        ("mxfp8", "9.22.0", "pass"),
        ("mxfp8", "9.23.0", "warn"),
        ("mxfp8", "9.23.1", "warn"),
        ("mxfp8", "9.23.2", "pass"),
        ("fp8_current_scaling", "9.13.1", "warn"),
        ("fp8_current_scaling", "9.14.0", "pass"),
        ("nvfp4", "9.12.0", "pass"),
    ],
)
def test_cudnn_on_blackwell(recipe: str, cudnn: str, status: str) -> None:
    facts = machine(gpu("NVIDIA B200", (10, 0)), cudnn=cudnn)
    assert statuses(facts, Wanted(recipe=recipe))["software.cudnn"] == status


def test_older_transformer_engine_takes_an_older_cudnn() -> None:
    assert statuses(machine(gpu(), te="2.18.0", cudnn="9.11.0"))["software.cudnn"] == "pass"


def test_casts_before_torch_2_12() -> None:
    assert statuses(machine(gpu(), torch="2.11.0+cu129"))["software.torch"] == "warn"
    assert "saturate" in checks(machine(gpu(), torch="2.9.1"))["software.torch"].why
    assert statuses(machine(gpu(), torch="2.12.0"))["software.torch"] == "pass"


def test_torchao_without_its_kernels() -> None:
    wanted = Wanted(recipe="ao_tensorwise")
    facts = machine(gpu(), te=None, torch="2.10.0", versions={"torchao": "0.18.0"})
    found = checks(facts, wanted)["software.torchao"]
    assert found.status == "warn"
    assert "without an error" in found.why
    fitting = machine(gpu(), te=None, torch="2.11.0", versions={"torchao": "0.18.0"})
    assert statuses(fitting, wanted)["software.torchao"] == "pass"
    assert statuses(machine(gpu(), te=None), wanted)["software.torchao"] == "fail"


def te_machine(pieces: dict[str, str], **libraries: Any) -> Facts:
    return machine(gpu(), te=None, versions=pieces, libraries=libraries)


META, BINDING, CORE = "transformer-engine", "transformer-engine-torch", "transformer-engine-cu12"


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ({META: "2.20.2", BINDING: "2.20.2", CORE: "2.20.2"}, "pass"),
        ({META: "2.20.2"}, "unknown"),
        ({META: "2.20.2", CORE: "2.20.2"}, "fail"),
        ({META: "2.20.2", BINDING: "2.20.2"}, "fail"),
        ({META: "2.20.2", BINDING: "2.19.0", CORE: "2.20.2"}, "fail"),
        ({BINDING: "2.20.2"}, "fail"),
        ({META: "2.20.2", BINDING: "2.20.2", CORE: "2.20.2", "transformer-engine-cu13": "2.20.2"}, "warn"),
    ],
)
def test_half_installed_transformer_engine(pieces: dict[str, str], status: str) -> None:
    found = checks(te_machine(pieces))["software.te_pieces"]
    assert found.status == status
    assert bool(found.do) == (status != "pass")


def test_the_empty_meta_package_is_told_by_its_import() -> None:
    error = "RuntimeError: Found empty `transformer-engine` meta package installed"
    found = checks(te_machine({META: "2.20.2"}, te_import={"state": "failed", "error": error}))
    assert found["software.te_import"].status == "fail"
    assert "[pytorch]" in found["software.te_import"].do


@pytest.mark.parametrize(
    ("outcome", "status", "told"),
    [
        ({"state": "ok", "error": ""}, "pass", ""),
        (
            {"state": "failed", "error": "ImportError: x.so: undefined symbol: _ZN3c10"},
            "fail",
            "another torch",
        ),
        ({"state": "failed", "error": "FileNotFoundError: Could not find shared object"}, "fail", "missing"),
        ({"state": "failed", "error": "RuntimeError: cuDNN 9.10.2 is too old"}, "fail", "nvidia-cudnn"),
        ({"state": "failed", "error": "OSError: libcudart.so.12: cannot open"}, "fail", "shared library"),
        ({"state": "failed", "error": "the process ended by signal 11"}, "fail", "installation"),
        ({"state": "not tried", "error": "the import did not end within 60 s"}, "unknown", "by hand"),
        (None, "unknown", "floatscope preflight"),
        ("nonsense", "unknown", "floatscope preflight"),
    ],
)
def test_import_of_transformer_engine(outcome: Any, status: str, told: str) -> None:
    found = checks(machine(gpu(), libraries={"te_import": outcome}))["software.te_import"]
    assert found.status == status
    assert told in found.do


def test_core_of_another_cuda() -> None:
    pieces = {META: "2.20.2", BINDING: "2.20.2", "transformer-engine-cu13": "2.20.2"}
    found = checks(te_machine(pieces))["software.te_cuda"]
    assert found.status == "fail"
    assert "core_cu12" in found.do
    unread = machine(gpu(), te=None, versions=pieces)
    unread = replace(unread, torch={})
    assert checks(unread)["software.te_cuda"].status == "unknown"


def test_what_transformer_engine_says_is_no_proof() -> None:
    said = {"fp8": [True, ""], "mxfp8": [False, "not supported on 12.0+ yet"]}
    found = checks(machine(gpu(), libraries={"te_available": said}))["software.te_says"]
    assert found.read == "fp8 yes; mxfp8 no (not supported on 12.0+ yet)"


def test_torch_sees_other_gpus_than_nvml() -> None:
    facts = machine(gpu(), gpu(index=1))
    build = replace(facts, torch={**facts.torch, "cuda": None})
    assert "built without CUDA" in checks(build)["gpu.torch"].read
    assert checks(build)["gpu.torch"].status == "fail"
    blind = replace(facts, torch={**facts.torch, "cuda_available": False}, failed={"torch.cuda": "Error 802"})
    assert checks(blind)["gpu.torch"].status == "fail"
    assert "Error 802" in checks(blind)["gpu.torch"].read
    fewer = replace(facts, torch={**facts.torch, "devices": ["NVIDIA H100 80GB HBM3"]})
    assert statuses(fewer)["gpu.torch"] == "warn"
    broken = replace(facts, torch={}, failed={"torch": "import torch: OSError"})
    assert statuses(broken)["gpu.torch"] == "unknown"


@pytest.mark.parametrize(
    ("visible", "status"),
    [("0,1", "pass"), ("", "fail"), ("-1", "fail"), ("GPU-b8", "pass"), ("7", "pass"), ("1,-1,0", "pass")],
)
def test_visible_gpus(visible: str, status: str) -> None:
    facts = machine(gpu(), gpu(index=1, uuid="GPU-c1"), environment={"CUDA_VISIBLE_DEVICES": visible})
    assert statuses(facts)["gpu.found"] == status


def test_a_lost_gpu() -> None:
    lost = GpuFacts(1, "", values={"from": "nvml"}, failed={"handle": "NVMLError_GpuIsLost: GPU is lost"})
    found = checks(machine(gpu(), lost))
    assert found["gpu.found"].status == "fail"
    assert "GPU is lost" in found["gpu.found"].read
    assert found["gpu.ecc"].status == "unknown"


def test_mixed_gpus() -> None:
    both = machine(gpu(), gpu("NVIDIA A100-SXM4-80GB", (8, 0), index=1))
    assert statuses(both)["gpu.alike"] == "warn"
    limits = checks(machine(gpu(), gpu(index=1, power_limit_w=500.0)))["gpu.alike"]
    assert limits.status == "warn"
    assert "500 W, 700 W" in limits.read
    assert "gpu.alike" not in statuses(machine(gpu()))


RTX4090 = "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("gpu.mig", {"mig_mode": 1}, "warn"),
        ("gpu.mig", {"mig_handle": True}, "warn"),
        ("gpu.ecc", {"ecc_mode": 0}, "warn"),
        ("gpu.ecc_errors", {"ecc_uncorrected": 1}, "fail"),
        ("gpu.ecc_errors", {"ecc_corrected": 9}, "pass"),
        ("gpu.memory_rows", {"remap_pending": 1}, "fail"),
        ("gpu.memory_rows", {"remap_failure": 1}, "fail"),
        ("gpu.memory_rows", {"retired_pending": 1}, "fail"),
        ("gpu.memory_rows", {"remapped_corrected": 3}, "pass"),
        ("gpu.throttle", {"throttle_reasons": 0}, "pass"),
        ("gpu.throttle", {"throttle_reasons": 0x44}, "fail"),
        ("gpu.throttle", {"throttle_reasons": 0x100000}, "unknown"),
        ("gpu.power_limit", {"power_limit_w": 500.0}, "warn"),
        ("gpu.pcie", {"pcie_width": 8}, "warn"),
        ("gpu.pcie", {"pcie_generation": 1}, "pass"),
        ("gpu.pcie", {"pcie_generation": 1, "utilization_pct": 99.0}, "warn"),
        ("gpu.pcie", {"pcie_replays": 7}, "pass"),
        ("gpu.nvlink", {"nvlinks_up": list(range(17)), "nvlinks_down": [17]}, "fail"),
        ("gpu.nvlink", {"nvlinks_up": [], "nvlinks_down": []}, "not_applicable"),
        ("gpu.fabric", {"fabric_state": 2}, "fail"),
        ("gpu.fabric", {"fabric_status": 999}, "fail"),
        ("gpu.fabric", {"fabric_state": 0}, "not_applicable"),
        ("gpu.co_tenants", {"memory_used_bytes": 3 * 2**30}, "warn"),
    ],
)
def test_health(name: str, values: dict[str, Any], status: str) -> None:
    facts = machine(gpu(**values), gpu(index=1, **values))
    found = checks(facts)[name]
    assert found.status == status
    assert found.read.startswith("GPU 0-1: ")


def test_one_sick_gpu_among_eight_is_named() -> None:
    cards = [gpu(index=index, ecc_uncorrected=int(index == 5)) for index in range(8)]
    found = checks(machine(*cards))["gpu.ecc_errors"]
    assert found.status == "fail"
    assert found.read == "GPU 0-4, 6-7: 0 uncorrected, 0 corrected; GPU 5: 1 uncorrected, 0 corrected"


def test_ecc_of_consumer_and_unknown_gpus() -> None:
    assert statuses(machine(gpu(RTX4090, (8, 9), ecc_mode=0)))["gpu.ecc"] == "pass"
    assert statuses(machine(gpu("NVIDIA X999", (9, 0), ecc_mode=0)))["gpu.ecc"] == "unknown"


def test_bridged_links_that_are_down_are_no_fault() -> None:
    for up, down, status in (([0, 1], [2], "warn"), ([], [0, 1], "pass")):
        cards = [
            gpu("NVIDIA A100 80GB PCIe", (8, 0), index=i, nvlinks_up=up, nvlinks_down=down) for i in (0, 1)
        ]
        assert statuses(machine(*cards))["gpu.nvlink"] == status


def test_a_reading_that_is_missing_is_never_a_pass() -> None:
    names = ("mig_mode", "ecc_mode", "throttle_reasons", "power_limit_w", "pcie_width", "memory_used_bytes")
    bare = gpu(without=names, failed={name: "NVMLError_Unknown: Unknown Error" for name in names})
    found = statuses(machine(bare))
    for name in ("gpu.mig", "gpu.ecc", "gpu.throttle", "gpu.power_limit", "gpu.pcie", "gpu.co_tenants"):
        assert found[name] == "unknown", name
    absent = gpu(without=names, failed={name: "not supported (AttributeError)" for name in names})
    assert statuses(machine(absent))["gpu.mig"] == "not_applicable"


def test_xids() -> None:
    def found(xids: Any, **more: Any) -> Check:
        return checks(machine(gpu(), libraries={"xids": xids}, **more))["gpu.xid"]

    assert found([]).status == "pass"
    assert found([{"xid": 13}, {"xid": 94}]).status == "warn"
    assert found([{"xid": 13}, {"xid": 79}]).status == "fail"
    assert found([{"xid": 4321}]).status == "warn"
    assert "unrecovered ECC" in found([{"xid": 140}]).read
    unread = found(None, failed={"xids": "PermissionError: dmesg_restrict"})
    assert unread.status == "unknown"
    assert "dmesg_restrict" in unread.read


def test_without_nvml_health_is_one_line() -> None:
    card = GpuFacts(0, "NVIDIA H100 80GB HBM3", (9, 0), values={"from": "torch"})
    found = checks(machine(card, nvml="no answer within 5 s (in nvmlInit)"))
    assert found["gpu.health"].status == "unknown"
    assert "no answer" in found["gpu.health"].read
    assert "gpu.ecc" not in found
    assert found["recipe.gpu"].status == "pass"


def test_a_build_from_source_is_known_by_its_import() -> None:
    built = checks(te_machine({META: "2.20.2"}, te_import={"state": "ok", "error": ""}))
    assert built["software.te_pieces"].status == built["software.te_cuda"].status == "pass"


def test_several_mig_slices() -> None:
    facts = machine(gpu(mig_mode=1), environment={"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    found = checks(facts)["gpu.mig_slices"]
    assert found.status == "warn"
    assert "no NVLink" in found.why


def test_amd_has_no_cuda_checks() -> None:
    facts = machine(
        amd("AMD Instinct MI300X", "gfx942"), te=None, cuda=None, hip="6.4", nvml="NVMLError_LibraryNotFound"
    )
    found = statuses(facts, Wanted(recipe="ao_tensorwise"))
    assert found["gpu.nvml"] == "not_applicable"
    assert found["gpu.health"] == "unknown"
    assert "software.driver" not in found
    assert "software.cudnn" not in found


def test_flags_of_sums_are_echoed_and_unknown_without_torch() -> None:
    facts = machine(gpu())
    flags = {"allow_bf16_reduced_precision_reduction": True, "allow_tf32": False}
    found = {one.name: one for one in machine_checks(replace(facts, torch={"flags": flags}), Wanted())}
    assert "in BF16: True" in found["software.accumulation"].read
    assert "TF32: False" in found["software.accumulation"].read
    assert statuses(replace(facts, torch={}))["software.accumulation"] == "unknown"


def test_determinism_needs_the_variable_of_cublas() -> None:
    facts = machine(gpu())
    asked = replace(facts, torch={**facts.torch, "flags": {"deterministic": True}})
    assert statuses(asked)["software.determinism"] == "warn"
    given = replace(asked, environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    assert statuses(given)["software.determinism"] == "pass"
