"""Which of a machine's GPUs this process may use."""

from __future__ import annotations

from floatscope.preflight.facts import Facts, GpuFacts

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def visibility(facts: Facts) -> tuple[str, str] | None:
    """The variable that chooses among the GPUs and its value, None where none is set."""
    for name in _VARIABLES:
        if name in facts.environment:
            return name, facts.environment[name]
    return None


def used_gpus(facts: Facts) -> tuple[GpuFacts, ...]:
    """The GPUs that the process may use: NVML tells all of the machine, torch only those.

    CUDA takes entries up to the first that is no GPU, by index or by the beginning of a UUID (CUDA C++
    Programming Guide, environment variables). Where an entry cannot be matched to a GPU, all are taken: it is
    better to look at one too many than at one too few. A list that is empty or begins with -1 hides all.
    """
    chosen = visibility(facts)
    if chosen is None or not any(gpu.values.get("from") == "nvml" for gpu in facts.gpus):
        return facts.gpus
    entries = [entry.strip() for entry in chosen[1].split(",")]
    if entries[0] in ("", "-1", "NoDevFiles"):
        return ()
    taken: list[GpuFacts] = []
    for entry in entries:
        match = [gpu for gpu in facts.gpus if _is(gpu, entry)]
        if len(match) != 1:
            return tuple(taken) if entry == "-1" else facts.gpus
        taken += match
    return tuple(taken)


def _is(gpu: GpuFacts, entry: str) -> bool:
    if entry.isascii() and entry.isdigit():
        return gpu.index == int(entry[:9])
    uuid = gpu.values.get("uuid")
    return isinstance(uuid, str) and entry.startswith("GPU-") and uuid.startswith(entry)
