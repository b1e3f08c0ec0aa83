"""Tries casts to every 8-bit float that torch has, with values that do not fit: what comes out depends on the
version, the device and on whether the cast was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from floatscope.preflight.time_limit import within

VALUES = (448.0, 464.0, 465.0, 500.0, float("inf"), float("nan"), 57344.0, 61439.0, 61440.0)
"""The largest E4M3 value, the last that rounds to it, the first that does not, one clearly beyond, infinity,
NaN; the same for E5M2, whose largest is 57344 and whose midpoint to the next power is 61440.
"""
FORMATS = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu",
}
"""Short names, as in the keys of the result, and torch's names."""
SOURCES = ("float32", "bfloat16")
COMPILED_LIMIT_S = 90.0


def probe(*, compiled: bool = False, devices: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Results of all casts as texts ("448.0", "inf", "nan"), by "format from dtype on device, eager".

    Also ``tried``, the values, and ``saturating_cast``, whether E4M3 turns 500 into 448 in eager mode on the
    CPU. A cast that raises has its message in place of the list. compiled: try torch.compile too, of e4m3
    and e5m2 from float32, which takes seconds and a compiler. devices: None for the CPU and, if there is one,
    the GPU.  Empty without torch or float8.
    """
    try:
        import torch
    except Exception:  # a broken installation raises anything; software.torch_import says what
        return {}
    if not hasattr(torch, "float8_e4m3fn"):
        return {}
    found: dict[str, Any] = {"tried": [str(value) for value in VALUES]}
    for device in devices or ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        for short, name in FORMATS.items():
            dtype = getattr(torch, name, None)
            for source in SOURCES if dtype is not None else ():
                key = f"{short} from {source} on {device}, eager"
                found[key] = _tried(_cast(dtype), getattr(torch, source), device)
        if compiled:
            found.update(_compiled(device))
    eager = found.get("e4m3 from float32 on cpu, eager")
    if isinstance(eager, list):
        found["saturating_cast"] = eager[VALUES.index(500.0)] == "448.0"
    return found


def _cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda values: values.to(dtype).float()


def _tried(cast: Callable[[Any], Any], source: Any, device: str) -> list[str] | str:
    import torch

    try:
        values = torch.tensor(VALUES, dtype=torch.float32).to(source).to(device)
        return [str(value) for value in cast(values).cpu().tolist()]
    except Exception as error:  # kernels that a device or a compiler lacks raise many kinds
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _compiled(device: str) -> Mapping[str, list[str] | str]:
    import torch

    found: dict[str, list[str] | str] = {}
    for short in ("e4m3", "e5m2"):
        cast = torch.compile(_cast(getattr(torch, FORMATS[short])))
        outcome = within(COMPILED_LIMIT_S, partial(_tried, cast, torch.float32, device))
        found[f"{short} from float32 on {device}, compiled"] = outcome.value or outcome.error
    return found
