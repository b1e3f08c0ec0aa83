"""A recipe object, of Transformer Engine or shaped like one, in the protocol's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PLAIN_RECIPES = {"bf16": "bf16", "fp16": "fp16_amp", "fp32": "fp32"}
"""What a run without FP8 is called, by the format most of its layers compute in."""

_KINDS = (
    ("delayed", "fp8_delayed_scaling"),
    ("float8_current_scaling", "fp8_current_scaling"),
    ("float8_block_scaling", "fp8_block_scaling"),
    ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
)
"""A recipe is asked what it is; classes of newer versions are not there in older ones."""


def recipe_name(recipe: Any) -> str:
    """One of ``protocol.names.RECIPES``."""
    for method, name in _KINDS:
        ask = getattr(recipe, method, None)
        if callable(ask) and ask():
            return name
    return "custom"


def recipe_of(modules: Iterable[Any]) -> dict[str, Any]:
    """The recipe of the first module that has one, described; empty if none has."""
    for module in modules:
        meta = getattr(module, "fp8_meta", None)
        if isinstance(meta, dict) and meta.get("recipe") is not None:
            return describe(meta["recipe"])
    return {}


def describe(recipe: Any) -> dict[str, Any]:
    """Name and settings of a recipe, only those it has."""
    found: dict[str, Any] = {"name": recipe_name(recipe)}
    fmt = getattr(recipe, "fp8_format", None)
    if fmt is not None:
        found["fp8_format"] = getattr(fmt, "name", str(fmt))
    for key in ("margin", "amax_history_len", "amax_compute_algo", "reduce_amax"):
        value = getattr(recipe, key, None)
        if isinstance(value, bool | int | float | str):
            found[key] = value
        elif callable(value):
            found[key] = "custom"
    return found


def format_names(recipe: Any) -> tuple[str | None, str | None]:
    """Formats of forward and backward tensors, as the protocol names them."""
    name = recipe_name(recipe)
    if name == "nvfp4":
        return "nvfp4", "nvfp4"
    prefix = "mxfp8_" if name == "mxfp8" else ""
    fmt = str(getattr(getattr(recipe, "fp8_format", None), "name", "")).upper()
    formats = {"E4M3": ("e4m3", "e4m3"), "E5M2": ("e5m2", "e5m2"), "HYBRID": ("e4m3", "e5m2")}.get(fmt)
    return (None, None) if formats is None else (prefix + formats[0], prefix + formats[1])
