"""A configuration of torchao's float8 training in the protocol's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

CASTS = ("input", "weight", "grad_output")
_SECOND = {"input": "_for_grad_weight", "weight": "_for_grad_input", "grad_output": "_for_grad_weight"}
_FORMATS = {
    getattr(torch, dtype): name
    for dtype, name in (
        ("float8_e4m3fn", "e4m3"),
        ("float8_e5m2", "e5m2"),
        ("float8_e4m3fnuz", "e4m3fnuz"),
    )
    if hasattr(torch, dtype)
}


def format_of_cast(dtype: torch.dtype) -> str | None:
    """The protocol's name of the dtype of a cast, None if it has none."""
    return _FORMATS.get(dtype)


def recipe_name(config: Any) -> str:
    """``ao_rowwise`` if a cast has a scale per row, else ``ao_tensorwise``."""
    parts = [_granularity(getattr(config, f"cast_config_{role}", None)) for role in CASTS]
    return "ao_rowwise" if "axiswise" in parts else "ao_tensorwise"


def describe(configs: Iterable[Any], *, version: str) -> dict[str, Any]:
    """The recipe that most layers have, in full, and in how many layers."""
    by_name: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for config in configs:
        by_name.setdefault(recipe_name(config), config)
        counts[recipe_name(config)] += 1
    if not counts:
        return {}
    name = max(sorted(counts), key=lambda key: counts[key])
    config = by_name[name]
    found: dict[str, Any] = {"name": name, "torchao": version, "layers": dict(counts)}
    for role in CASTS:
        for suffix in ("", _SECOND[role]):
            cast = getattr(config, f"cast_config_{role}{suffix}", None)
            if cast is not None:
                found[f"cast_{role}{suffix}"] = _describe_cast(cast)
    for key in ("round_scales_to_power_of_2", "enable_fsdp_float8_all_gather", "emulate", "pad_inner_dim"):
        value = getattr(config, key, None)
        if isinstance(value, bool):
            found[key] = value
    found["saturating_cast"] = True  # float8_utils.to_fp8_saturated clamps before every cast
    return found


def _granularity(cast: Any) -> str:
    return word(getattr(cast, "scaling_granularity", ""))


def _describe_cast(cast: Any) -> dict[str, str]:
    dtype = getattr(cast, "target_dtype", None)
    return {
        "scaling": word(getattr(cast, "scaling_type", "")),
        "granularity": _granularity(cast),
        "format": _FORMATS.get(dtype, str(dtype)) if isinstance(dtype, torch.dtype) else str(dtype),
    }


def word(member: Any) -> str:
    """An enum's member as its name, in small letters."""
    return str(getattr(member, "name", member)).lower()
