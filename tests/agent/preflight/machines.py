"""Machines as facts: GPUs, versions and readings a test wants, everything else in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.preflight.facts import Facts, GpuFacts, Version
from floatscope.preflight.versions import parse_version

HEALTHY: Mapping[str, Any] = {
    "from": "nvml",
    "uuid": "GPU-b850f46d",
    "mig_mode": 0,
    "mig_handle": False,
    "ecc_mode": 1,
    "ecc_pending": 1,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "remapped_corrected": 0,
    "remapped_uncorrected": 0,
    "remap_pending": 0,
    "remap_failure": 0,
    "retired_pending": 0,
    "throttle_reasons": 1,
    "power_limit_w": 700.0,
    "power_default_limit_w": 700.0,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 0,
    "utilization_pct": 0.0,
    "nvlinks_up": list(range(18)),
    "nvlinks_down": [],
    "fabric_state": 3,
    "fabric_status": 0,
    "other_processes": [],
    "other_processes_bytes": 0,
    "memory_used_bytes": 500 * 2**20,
}


def gpu(
    name: str = "NVIDIA H100 80GB HBM3",
    capability: tuple[int, int] | None = (9, 0),
    *,
    index: int = 0,
    failed: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    **values: Any,
) -> GpuFacts:
    """A healthy GPU with these readings instead of its own, and without those of ``without``."""
    readings = {k: v for k, v in {**HEALTHY, **values}.items() if k not in without}
    arch = f"sm_{capability[0]}{capability[1]}" if capability else ""
    return GpuFacts(index, name, capability, 80 * 2**30, arch, readings, failed or {})


def amd(name: str, arch: str) -> GpuFacts:
    """A GPU as torch for ROCm tells it."""
    return GpuFacts(0, name, None, 192 * 2**30, arch, {"from": "torch"})


def machine(
    *gpus: GpuFacts,
    te: str | None = "2.20.2",
    torch: str = "2.12.0+cu129",
    cuda: str | None = "12.9",
    hip: str | None = None,
    cublaslt: str | None = "12.9.1",
    cudnn: str | None = "9.22.0",
    driver: str = "580.65.06",
    cuda_driver: Version = (13, 0),
    environment: Mapping[str, str] | None = None,
    libraries: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
    nvml: str = "",
) -> Facts:
    """A machine in order: versions that fit each other. None leaves a version out."""
    found = {"torch": torch, **(versions or {})}
    if te is not None:
        core = f"transformer-engine-cu{(parse_version(cuda) or (12,))[0]}"
        found |= {"transformer-engine": te, "transformer-engine-torch": te, core: te}
    read: dict[str, Any] = {"kernel_driver": driver, "xids": [], "nvml": driver}
    if cublaslt is not None:
        read["cublaslt"] = cublaslt
    if te is not None:
        read["te_import"] = {"state": "ok", "error": ""}
    return Facts(
        python="3.11.7",
        versions=found,
        environment=environment or {},
        gpus=gpus,
        nvml=nvml,
        driver=driver,
        cuda_driver=cuda_driver,
        torch={
            "version": torch,
            "cuda": cuda,
            "hip": hip,
            "cudnn": cudnn,
            "nccl": "2.30.4",
            "flags": {"deterministic": False, "allow_tf32": False},
            "cuda_available": bool(gpus),
            "devices": [one.name for one in gpus],
        },
        libraries={**read, **(libraries or {})},
        failed=failed or {},
    )
