"""Whether there are GPUs, whether NVML and torch see them, and whether they are alike."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.gpu_groups import Verdict, number, over_gpus
from floatscope.preflight.gpu_visible import used_gpus, visibility
from floatscope.preflight.recipe_matrix import NO_GPU
from floatscope.preflight.table_conditions import arch_of, capability_of
from floatscope.preflight.table_reading import read_table

_ELSEWHERE = "run preflight on the machine that trains"


def gpu_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """NVML, driver, the GPUs that are there, those torch sees, and what the GPU table knows of them."""
    del wanted
    checks = [_nvml(facts), *_driver_match(facts), _found(facts), *_torch(facts)]
    gpus = used_gpus(facts)
    if gpus:
        checks.append(
            over_gpus(
                "gpu.known",
                gpus,
                _known,
                why="peaks of the GPU table give the share of peak; capability decides which recipe runs",
                source="floatscope.hardware, gpus.json",
            )
        )
    if len(gpus) > 1:
        checks.append(_alike(gpus))
    return checks


def _nvml(facts: Facts) -> Check:
    table = read_table("nvml")
    if _is_amd(facts):
        read = "AMD GPUs have no NVML"
        return Check("gpu.nvml", "gpu", "not_applicable", read, table["why"], "", "package nvidia-ml-py")
    if not facts.nvml:
        version = facts.libraries.get("nvml", "")
        read = f"NVML {version}, driver {facts.driver or 'not read'}, {len(facts.gpus)} GPUs"
        return Check("gpu.nvml", "gpu", "pass", read, table["why"], "", "package nvidia-ml-py")
    row = nvml_row(facts.nvml, has_kernel_driver=bool(facts.libraries.get("kernel_driver")))
    read = f"{row['meaning']} ({facts.nvml})"
    if facts.libraries.get("kernel_driver"):
        read += f"; kernel module {facts.libraries['kernel_driver']}"
    return Check("gpu.nvml", "gpu", cast(Status, row["status"]), read, table["why"], row["do"], row["source"])


def nvml_row(error: str, *, has_kernel_driver: bool) -> dict[str, Any]:
    """The row of tables/nvml.json for that error; the last one fits all."""
    rows: list[dict[str, Any]] = read_table("nvml")["errors"]
    return next(
        row
        for row in rows
        if any(sign.lower() in error.lower() for sign in row["sign"])
        and row.get("kernel_driver", has_kernel_driver) == has_kernel_driver
    )


def _driver_match(facts: Facts) -> list[Check]:
    kernel = facts.libraries.get("kernel_driver")
    if not isinstance(kernel, str) or not kernel or not facts.driver:
        return []
    name, why = (
        "gpu.driver_match",
        "a library of another version than the kernel module does not work with it",
    )
    read = f"kernel module {kernel} (/proc/driver/nvidia/version), driver of NVML {facts.driver}"
    source = "nvidia-ml-py 13.615.71, NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    if kernel == facts.driver:
        return [Check(name, "gpu", "pass", read, why, "", source)]
    do = "reload the kernel module or restart the machine; in a container, use the host's driver"
    return [Check(name, "gpu", "fail", read, why, do, source)]


def _found(facts: Facts) -> Check:
    chosen = visibility(facts)
    used = used_gpus(facts)
    shown = "" if chosen is None else f"; {chosen[0]}={chosen[1][:100]}"
    name, why = "gpu.found", "FP8 needs a GPU"
    source = "NVML, torch.cuda; CUDA C++ Programming Guide, environment variables"
    if not facts.gpus:
        read = f"no GPU was found{shown}"
        return Check(name, "gpu", "unknown", read, NO_GPU, _ELSEWHERE, source)
    if not used:
        read = f"{len(facts.gpus)} GPUs, all hidden{shown}"
        do = f"unset {chosen[0] if chosen else 'CUDA_VISIBLE_DEVICES'}, or name the GPUs in it"
        return Check(name, "gpu", "fail", read, why, do, source)
    lost = [gpu for gpu in used if "handle" in gpu.failed]
    if lost:
        read = "; ".join(f"GPU {gpu.index}: {gpu.failed['handle']}" for gpu in lost[:8]) + shown
        do = "nvidia-smi shows it; a GPU that is lost needs a reset or a restart of the machine"
        return Check(name, "gpu", "fail", read, "a GPU that does not answer stops the job", do, source)
    return Check(name, "gpu", "pass", f"{_models(used)}{shown}", why, "", source)


def _torch(facts: Facts) -> list[Check]:
    """Whether torch sees what NVML sees."""
    used = used_gpus(facts)
    if not used:
        return []
    name, why = "gpu.torch", "what torch does not see it cannot train on"
    source = "torch.cuda.is_available"
    if not facts.torch:
        reason = f"torch could not be read: {facts.failed.get('torch', 'it was not asked')}"
        return [Check(name, "gpu", "unknown", reason, why, "repair the installation of torch", source)]
    version = facts.torch.get("version", "")
    if "cuda" in facts.torch and not facts.torch["cuda"] and not facts.torch.get("hip"):
        read = f"torch {version} is built without CUDA, on a machine with {len(used)} GPUs"
        return [Check(name, "gpu", "fail", read, why, "install torch built for CUDA", source)]
    available = facts.torch.get("cuda_available")
    if available is None:
        reason = f"torch was not asked for GPUs: {facts.failed.get('torch.cuda', 'it uses none yet')}"
        return [
            Check(name, "gpu", "unknown", reason, why, "run floatscope preflight on this machine", source)
        ]
    if not available:
        read = f"torch {version} finds no GPU: {facts.failed.get('torch.cuda', 'it does not say why')}"
        do = "compare driver and CUDA of torch, see software.driver and software.cuda"
        return [Check(name, "gpu", "fail", read, why, do, source)]
    devices = facts.torch.get("devices")
    count = len(devices) if isinstance(devices, list) else 0
    if count != len(used):
        read = f"torch sees {count} GPUs, NVML {len(used)} of those this process may use"
        return [Check(name, "gpu", "warn", read, why, "look at CUDA_VISIBLE_DEVICES and at MIG", source)]
    return [Check(name, "gpu", "pass", f"torch {version} sees {count} GPUs", why, "", source)]


def _known(gpu: GpuFacts) -> Verdict:
    capability = capability_of(gpu)
    known = f"compute capability {capability[0]}.{capability[1]}" if capability else arch_of(gpu)
    try:
        model = find_gpu(gpu.name, number(gpu, "power_default_limit_w"))
    except UnknownGpuError:
        read = f"{gpu.name or 'name not read'}, {known or 'compute capability not read'}, not in the table"
        return Verdict("unknown", read, "its peaks are not known", "go by the ratio of FP8 to BF16 speed")
    peak = "no FP8" if model.fp8_tflops is None else f"FP8 {model.fp8_tflops:g}"
    sure = "" if model.verified else " (not confirmed)"
    return Verdict(
        "pass", f"{model.name}, {known}, dense peaks in TFLOP/s: BF16 {model.bf16_tflops:g}, {peak}{sure}"
    )


def _alike(gpus: tuple[GpuFacts, ...]) -> Check:
    kinds = {(gpu.name, gpu.memory_bytes, number(gpu, "power_limit_w")) for gpu in gpus}
    name, why = (
        "gpu.alike",
        "the slowest GPU sets the pace, and one of another architecture may refuse the recipe",
    )
    source = "GPUs of a node are within 3 % of each other when they are alike"
    read = _models(gpus)
    if len({gpu.name for gpu in gpus}) > 1:
        do = "choose GPUs of one model with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER=PCI_BUS_ID"
        return Check(name, "gpu", "warn", f"different models: {read}", why, do, source)
    if len(kinds) > 1:
        limits = sorted({limit for _, _, limit in kinds if limit is not None})
        sizes = sorted({size for _, size, _ in kinds if size is not None})
        read += f"; power limits {', '.join(f'{limit:.0f} W' for limit in limits) or 'not read'}"
        read += f"; memory {', '.join(f'{size / 2**30:.1f} GiB' for size in sizes) or 'not read'}"
        return Check(name, "gpu", "warn", read, why, "set the same power limit everywhere", source)
    return Check(name, "gpu", "pass", read, why, "", source)


def _models(gpus: tuple[GpuFacts, ...]) -> str:
    counts = Counter(gpu.name or "a GPU without a name" for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _is_amd(facts: Facts) -> bool:
    return any(gpu.arch.startswith("gfx") for gpu in facts.gpus)
