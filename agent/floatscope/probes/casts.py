"""What a cast to FP8 does with values that do not fit: it depends on the version, so it is tried.

torch up to 2.11 turned values beyond e4m3's range into NaN, later versions saturate; e5m2 keeps infinities.
"""

from __future__ import annotations

from typing import Any

import torch

_TRIED = (500.0, 61440.0, float("inf"), float("nan"))


def probe_casts() -> dict[str, Any]:
    """``saturating_cast`` of e4m3 (whether 500 becomes 448), and the results of all tried values.

    Empty where torch has no float8. On the CPU, which costs no synchronisation; a GPU's cast may differ.
    """
    if not hasattr(torch, "float8_e4m3fn"):
        return {}
    tried = torch.tensor(_TRIED, dtype=torch.float32, device="cpu")
    found: dict[str, Any] = {}
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        found[name] = [str(value) for value in tried.to(dtype).float().tolist()]
    return {
        "saturating_cast": found["e4m3"][0] == "448.0",
        "cast_probe": {"tried": [str(v) for v in _TRIED], **found},
    }
