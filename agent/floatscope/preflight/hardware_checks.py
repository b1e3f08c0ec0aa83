"""The health of the GPUs: memory errors, what holds the clocks down, power, MIG, co-tenants."""

from __future__ import annotations

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.gpu_groups import Verdict, missing, number, over_gpus
from floatscope.preflight.gpu_visible import used_gpus, visibility
from floatscope.preflight.hardware_links import link_checks
from floatscope.preflight.table_reading import read_table, worst

_NVML = "nvidia-ml-py 13.615.71"
_GIB = 2**30
_SAME_W = 1.0


def hardware_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Readings of NVML, one check a reading over all GPUs; none without a GPU."""
    gpus = used_gpus(facts)
    if not gpus:
        return []
    if all(gpu.arch.startswith("gfx") for gpu in gpus):
        why = "errors of memory, links and clocks are read through NVML, which AMD does not have"
        read = "AMD GPUs: not read"
        return [Check("gpu.health", "gpu", "unknown", read, why, "look at rocm-smi or amd-smi", _NVML)]
    if not any(gpu.values.get("from") == "nvml" for gpu in gpus):
        why = "errors of memory, links and clocks are read through NVML"
        read = f"not read: {facts.nvml or 'NVML was not asked'}"
        return [Check("gpu.health", "gpu", "unknown", read, why, "repair NVML first, see gpu.nvml", _NVML)]
    chosen = visibility(facts)
    return [
        over_gpus(
            "gpu.mig",
            gpus,
            _mig,
            why="with MIG, memory and speed are those of the slice, not of the GPU",
            source=f"{_NVML}, nvmlDeviceGetMigMode, nvmlDeviceIsMigDeviceHandle",
        ),
        *_slices("" if chosen is None else chosen[1]),
        over_gpus(
            "gpu.ecc",
            gpus,
            _ecc,
            why="without ECC a flipped bit goes into the weights unseen",
            source=f"{_NVML}, nvmlDeviceGetEccMode",
        ),
        over_gpus(
            "gpu.ecc_errors",
            gpus,
            _ecc_errors,
            why="uncorrected errors since the driver was loaded: memory that cannot be trusted",
            source=f"{_NVML}, nvmlDeviceGetTotalEccErrors, volatile",
        ),
        over_gpus(
            "gpu.memory_rows",
            gpus,
            _rows,
            why="rows or pages of memory that failed wait to be replaced, or could not be",
            source=f"{_NVML}, nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus",
        ),
        over_gpus(
            "gpu.throttle",
            gpus,
            _throttle,
            why="what holds the clocks down now; under load it may be more",
            source=f"{_NVML}, nvmlDeviceGetCurrentClocksEventReasons",
        ),
        over_gpus(
            "gpu.power_limit",
            gpus,
            _power,
            why="a limit below the default one lowers the speed of GEMMs most",
            source=f"{_NVML}, nvmlDeviceGetPowerManagementLimit and DefaultLimit",
        ),
        over_gpus(
            "gpu.co_tenants",
            gpus,
            _tenants,
            why="others take memory and time of the GPU",
            source=f"{_NVML}, nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMemoryInfo",
        ),
        *link_checks(gpus),
    ]


def is_data_centre(gpu: GpuFacts) -> bool | None:
    """Whether the GPU has ECC that is on by default; None for a GPU that the table does not know."""
    try:
        model = find_gpu(gpu.name, number(gpu, "power_default_limit_w"))
    except UnknownGpuError:
        return None
    return model.name in read_table("hardware")["data_centre"]["names"]


def _mig(gpu: GpuFacts) -> Verdict:
    if gpu.values.get("mig_handle") is True or number(gpu, "mig_mode") == 1:
        do = "compare speed with another slice of that size, never with the GPU's peak"
        return Verdict("warn", "MIG is on", do=do)
    if number(gpu, "mig_mode") is None:
        return missing(gpu, "mig_mode")
    return Verdict("pass", "MIG is off")


def _slices(chosen: str) -> list[Check]:
    slices = [entry for entry in chosen.split(",") if entry.strip().startswith("MIG-")]
    if len(slices) < 2:
        return []
    why = (
        "between MIG slices there is no CUDA IPC and no NVLink; that NCCL does not work at all between slices"
        " of one GPU is said, not confirmed"
    )
    read = f"{len(slices)} MIG slices are chosen for this process"
    do = "train on one slice, or switch MIG off"
    return [
        Check(
            "gpu.mig_slices",
            "gpu",
            "warn",
            read,
            why,
            do,
            "documentation of RAPIDS deployment, MIG; the rest from memory",
        )
    ]


def _ecc(gpu: GpuFacts) -> Verdict:
    mode, pending = number(gpu, "ecc_mode"), number(gpu, "ecc_pending")
    if mode is None:
        return missing(gpu, "ecc_mode")
    coming = "" if pending is None or pending == mode else f", {'on' if pending else 'off'} after a reset"
    if mode:
        return Verdict("pass", f"ECC is on{coming}")
    centre = is_data_centre(gpu)
    if centre:
        return Verdict("warn", f"ECC is off{coming}", do="nvidia-smi -e 1, then a reset of the GPU")
    if centre is None:
        do = "find out whether this GPU is meant to run with ECC"
        return Verdict("unknown", f"ECC is off{coming}, on a GPU that is not in the table", do=do)
    return Verdict("pass", f"ECC is off{coming}, as usual on this GPU")


def _ecc_errors(gpu: GpuFacts) -> Verdict:
    uncorrected, corrected = number(gpu, "ecc_uncorrected"), number(gpu, "ecc_corrected")
    if uncorrected is None:
        return missing(gpu, "ecc_uncorrected")
    seen = "corrected not read" if corrected is None else f"{corrected:.0f} corrected"
    read = f"{uncorrected:.0f} uncorrected, {seen}"
    if uncorrected > 0:
        return Verdict("fail", read, do="reset the GPU before training, and replace it if they come back")
    return Verdict("pass", read)


def _rows(gpu: GpuFacts) -> Verdict:
    pending, failure = number(gpu, "remap_pending"), number(gpu, "remap_failure")
    pages = number(gpu, "retired_pending")
    if failure:
        return Verdict("fail", "a memory row could not be replaced", do="have the GPU replaced")
    if pending:
        return Verdict("fail", "a memory row waits to be replaced", do="reset the GPU before training")
    if pages:
        return Verdict("fail", "a memory page waits to be retired", do="reset the GPU before training")
    if pending is None and pages is None:
        rows = missing(gpu, "remapped_rows")
        return rows if rows.status == "unknown" else missing(gpu, "retired_pending")
    replaced = (number(gpu, "remapped_corrected") or 0) + (number(gpu, "remapped_uncorrected") or 0)
    return Verdict("pass", f"nothing waits; {replaced:.0f} rows were replaced")


def _throttle(gpu: GpuFacts) -> Verdict:
    bits = number(gpu, "throttle_reasons")
    if bits is None:
        return missing(gpu, "throttle_reasons")
    rows = read_table("hardware")["throttle"]
    held = [row for row in rows if int(bits) & row["bit"]]
    left = int(bits) & ~sum(row["bit"] for row in rows)
    if not held and not left:
        return Verdict("pass", "nothing holds the clocks down")
    names = [row["name"] for row in held] + ([f"bits {left:#x}"] if left else [])
    statuses: list[Status] = [row["status"] for row in held] + (["unknown"] if left else [])
    status = worst(statuses)
    grave = [row for row in held if row["status"] == status and status != "pass"]
    return Verdict(
        status,
        ", ".join(names),
        "; ".join(row["why"] for row in grave),
        "; ".join(row["do"] for row in grave if row.get("do")) or ("see NVML's header" if left else ""),
    )


def _power(gpu: GpuFacts) -> Verdict:
    limit, default = number(gpu, "power_limit_w"), number(gpu, "power_default_limit_w")
    if limit is None:
        return missing(gpu, "power_limit_w")
    if default is None:
        return missing(gpu, "power_default_limit_w")
    read = f"{limit:.0f} W of {default:.0f} W by default"
    if limit < default - _SAME_W:
        return Verdict("warn", read, do=f"nvidia-smi -pl {default:.0f}, if power and cooling allow it")
    return Verdict("pass", read)


def _tenants(gpu: GpuFacts) -> Verdict:
    used, others = number(gpu, "memory_used_bytes"), gpu.values.get("other_processes")
    if used is None:
        return missing(gpu, "memory")
    seen = f"{len(others)} other processes" if isinstance(others, list) else "processes not read"
    read = f"{used / _GIB:.1f} GiB in use, {seen}"
    if used > read_table("hardware")["co_tenant"]["bytes"]:
        do = "nvidia-smi shows who; wait, stop them, or choose another GPU"
        return Verdict("warn", read, do=do)
    return Verdict("pass", read)
