"""What torch says of itself, and of the GPUs it sees."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floatscope.preflight.facts import GpuFacts
from floatscope.preflight.time_limit import said
from floatscope.preflight.versions import cudnn_text


@dataclass(frozen=True)
class TorchAnswer:
    """``facts`` as ``Facts.torch`` holds them, the GPUs torch sees, and what failed."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[GpuFacts, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


def read_torch(*, may_import: bool) -> TorchAnswer:
    """Facts of the torch that is loaded; with ``may_import`` it is loaded first, and GPUs may be looked at.

    Raises nothing. Without ``may_import`` a GPU is only asked if torch already uses it: asking starts the
    driver, which keeps processes that are forked later from using one.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        if not may_import:
            return TorchAnswer(failed={"torch": "torch is not loaded yet"})
        try:
            torch = importlib.import_module("torch")
        except Exception as error:  # a broken install raises anything: ImportError, OSError of a library
            return TorchAnswer(failed={"torch": f"import torch: {said(error)}", "torch_import": said(error)})
    return _read(torch, may_start_cuda=may_import)


def _read(torch: Any, *, may_start_cuda: bool) -> TorchAnswer:
    facts: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def note(name: str, read: Callable[[], Any]) -> Any:
        try:
            facts[name] = read()
        except Exception as error:
            failed[name] = said(error)
        return facts.get(name)

    note("version", lambda: str(torch.__version__))
    note("cuda", lambda: torch.version.cuda)
    note("hip", lambda: torch.version.hip)
    note("flags", lambda: _flags(torch))
    note("threads", lambda: int(torch.get_num_threads()))
    if facts.get("cuda") or facts.get("hip"):
        note("cudnn", lambda: _cudnn(torch.backends.cudnn.version()))
        note("nccl", lambda: _dotted(torch.cuda.nccl.version()))
    else:
        facts["cudnn"] = facts["nccl"] = None  # a build without CUDA has neither
    gpus: tuple[GpuFacts, ...] = ()
    if _uses_cuda(torch) or may_start_cuda:
        try:
            gpus = _gpus(torch, facts, failed)
        except Exception as error:
            failed["torch.cuda"] = said(error)
    return TorchAnswer(facts, gpus, failed)


def _flags(torch: Any) -> dict[str, Any]:
    """Settings that change sums of products, as they are now."""
    matmul = torch.backends.cuda.matmul
    return {
        "allow_bf16_reduced_precision_reduction": _plain(matmul.allow_bf16_reduced_precision_reduction),
        "allow_fp16_reduced_precision_reduction": _plain(matmul.allow_fp16_reduced_precision_reduction),
        "allow_tf32": bool(matmul.allow_tf32),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
        "float32_matmul_precision": str(torch.get_float32_matmul_precision()),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
    }


def _plain(value: Any) -> Any:
    """Some flags are a pair in newer versions of torch."""
    return [bool(part) for part in value] if isinstance(value, tuple | list) else bool(value)


def _gpus(torch: Any, facts: dict[str, Any], failed: dict[str, str]) -> tuple[GpuFacts, ...]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    facts["cuda_available"] = available
    if caught and not available:
        failed["torch.cuda"] = " ".join(str(caught[0].message).split())[:300]
    if not available:
        return ()
    gpus = tuple(
        _gpu(index, torch.cuda.get_device_properties(index)) for index in range(torch.cuda.device_count())
    )
    facts["devices"] = [gpu.name for gpu in gpus]
    return gpus


def _gpu(index: int, properties: Any) -> GpuFacts:
    arch = str(getattr(properties, "gcnArchName", "")).split(":")[0]
    is_amd = arch.startswith("gfx")
    capability = None if is_amd else (int(properties.major), int(properties.minor))
    return GpuFacts(
        index,
        str(properties.name),
        capability=capability,
        memory_bytes=int(properties.total_memory),
        arch=arch if is_amd else f"sm_{properties.major}{properties.minor}",
        values={"from": "torch"},
    )


def _uses_cuda(torch: Any) -> bool:
    try:
        return bool(torch.cuda.is_initialized())
    except Exception:
        return False


def _cudnn(packed: Any) -> str | None:
    return None if packed is None else cudnn_text(int(packed))


def _dotted(version: Any) -> str:
    if isinstance(version, tuple):
        return ".".join(str(int(part)) for part in version if isinstance(part, int))
    packed = int(version)  # torch before 1.10: 2708
    return f"{packed // 1000}.{packed % 1000 // 100}.{packed % 100}"
