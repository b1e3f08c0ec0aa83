"""The links of the GPUs: PCIe, NVLink, the NVLink fabric."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.preflight.check import Check
from floatscope.preflight.facts import GpuFacts
from floatscope.preflight.gpu_groups import Verdict, missing, number, over_gpus
from floatscope.preflight.table_reading import read_table

_NVML = "nvidia-ml-py 13.615.71"
_BUSY_PCT = 50.0
_RESTART_FABRIC = "look at nvidia-fabricmanager (systemctl status nvidia-fabricmanager), then restart it"


def link_checks(gpus: Sequence[GpuFacts]) -> list[Check]:
    """PCIe of every GPU, and between several GPUs NVLink and its fabric."""
    checks = [
        over_gpus(
            "gpu.pcie",
            gpus,
            _pcie,
            why="a slot that gives less than the GPU can take slows data, offloading and gradients",
            source=f"{_NVML}, nvmlDeviceGetCurrPcieLinkWidth and Generation, and Max",
        )
    ]
    if len(gpus) < 2:
        return checks
    return [
        *checks,
        over_gpus(
            "gpu.nvlink",
            gpus,
            _nvlink,
            why="between several GPUs a link that is down slows or stops NCCL",
            source=f"{_NVML}, nvmlDeviceGetNvLinkState",
        ),
        over_gpus(
            "gpu.fabric",
            gpus,
            _fabric,
            why="before the NVLink fabric is ready CUDA does not start (error 802)",
            source=f"{_NVML}, nvmlDeviceGetGpuFabricInfoV",
        ),
    ]


def _pcie(gpu: GpuFacts) -> Verdict:
    width, most = number(gpu, "pcie_width"), number(gpu, "pcie_width_max")
    if width is None or most is None:
        return missing(gpu, "pcie_width" if width is None else "pcie_width_max")
    generation, newest = number(gpu, "pcie_generation"), number(gpu, "pcie_generation_max")
    read = f"x{width:.0f} of x{most:.0f}"
    if generation is not None and newest is not None:
        read += f", generation {generation:.0f} of {newest:.0f}"
    replays = number(gpu, "pcie_replays")
    if replays:
        read += f", {replays:.0f} replays since the driver was loaded"
    do = "look at the slot, the riser and the BIOS"
    if width < most:
        return Verdict("warn", read, do=do)
    slower = generation is not None and newest is not None and generation < newest
    if slower and (number(gpu, "utilization_pct") or 0.0) >= _BUSY_PCT:
        return Verdict("warn", f"{read}, under load", do=do)
    return Verdict("pass", f"{read} (an idle link goes slower)" if slower else read)


def _nvlink(gpu: GpuFacts) -> Verdict:
    up, down = gpu.values.get("nvlinks_up"), gpu.values.get("nvlinks_down")
    if not isinstance(up, list) or not isinstance(down, list):
        return missing(gpu, "nvlinks")
    if not up and not down:
        return Verdict("not_applicable", "no NVLink")
    read = f"{len(up)} of {len(up) + len(down)} links up"
    if not down:
        return Verdict("pass", read)
    if is_switched(gpu):
        do = "look for XID 74 in the kernel's log, reset the GPUs, restart nvidia-fabricmanager"
        return Verdict("fail", f"{read}; down: {', '.join(map(str, down))}", do=do)
    if not up:
        return Verdict("pass", f"{read}: the GPUs speak over PCIe", "NVLink needs a bridge on this GPU")
    why = "where GPUs are joined by bridges some links stay down"
    return Verdict(
        "warn", f"{read}; down: {', '.join(map(str, down))}", why, "nvidia-smi topo -m shows the bridges"
    )


def is_switched(gpu: GpuFacts) -> bool:
    """Whether all NVLinks of this GPU go to switches, so that one that is down is a fault."""
    try:
        model = find_gpu(gpu.name, number(gpu, "power_default_limit_w"))
    except UnknownGpuError:
        return False
    return model.name in read_table("hardware")["switched"]["names"]


def _fabric(gpu: GpuFacts) -> Verdict:
    state, status = number(gpu, "fabric_state"), number(gpu, "fabric_status")
    if state is None or status is None:
        return missing(gpu, "fabric")
    known = read_table("hardware")["fabric"]
    if state == known["not_supported"]:
        return Verdict("not_applicable", "the GPU is on no fabric")
    if state != known["completed"]:
        return Verdict("fail", f"the fabric is not ready (state {state:.0f})", do=_RESTART_FABRIC)
    if status:
        return Verdict("fail", f"the fabric failed with NVML error {status:.0f}", do=_RESTART_FABRIC)
    return Verdict("pass", "the fabric is ready")
