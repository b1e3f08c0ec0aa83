"""A recipe object, of Transformer Engine or shaped like one, in the protocol's words."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
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

_STATELESS = frozenset({"fp8_current_scaling", "fp8_block_scaling", "mxfp8", "nvfp4"})
_MOST_SETTINGS = 64


def recipe_name(recipe: Any) -> str:
    """One of ``protocol.names.RECIPES``."""
    for method, name in _KINDS:
        ask = getattr(recipe, method, None)
        if callable(ask) and ask():
            return name
    # versions before 2.0 know delayed scaling only, and recipes could not be asked
    return "fp8_delayed_scaling" if type(recipe).__name__ == "DelayedScaling" else "custom"


def is_stateless(recipe: Any) -> bool:
    """Whether the package keeps no amax and no scale between passes."""
    return recipe_name(recipe) in _STATELESS


def meta_of(module: Any, key: str, *, forward: bool = True) -> Any:
    """An entry of the module's FP8 state: ``fp8_meta``, or ``_fp8_metas`` of an operation (``te.ops``)."""
    meta = getattr(module, "fp8_meta", None)
    if not isinstance(meta, dict):
        metas = getattr(module, "_fp8_metas", None)
        meta = metas.get("forward" if forward else "backward") if isinstance(metas, dict) else None
    return meta.get(key) if isinstance(meta, dict) else None


def recipe_of(modules: Iterable[Any]) -> dict[str, Any]:
    """The recipe that most modules with one have, described; empty if none has."""
    recipes = [recipe for recipe in (meta_of(module, "recipe") for module in modules) if recipe is not None]
    if not recipes:
        return {}
    counts = Counter(recipe_name(recipe) for recipe in recipes)
    name = max(counts, key=lambda key: counts[key])
    found = describe(next(recipe for recipe in recipes if recipe_name(recipe) == name))
    version = getattr(sys.modules.get("transformer_engine"), "__version__", None)
    if isinstance(version, str) and found:
        found["transformer_engine"] = version
    return found


def other_recipes(layers: Mapping[Any, str]) -> dict[str, str]:
    """Layers whose recipe is another than most layers', with its name."""
    names = {
        layer: recipe_name(recipe)
        for layer, recipe in ((layer, meta_of(module, "recipe")) for module, layer in layers.items())
        if recipe is not None
    }
    if not names:
        return {}
    counts = Counter(names.values())
    most = max(counts, key=lambda key: counts[key])
    return {layer: name for layer, name in names.items() if name != most}


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
    for key, value in _settings(recipe).items():
        found.setdefault(key, value)
    return found


def _settings(recipe: Any) -> dict[str, Any]:
    """Plain fields of a recipe's dataclass, and of the dataclasses in it, by dotted names."""
    if not dataclasses.is_dataclass(recipe) or isinstance(recipe, type):
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(recipe)[:_MOST_SETTINGS]:
        value = getattr(recipe, field.name, None)
        if isinstance(value, bool | int | float | str):
            found[field.name] = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            found |= {
                f"{field.name}.{name}": part
                for name, part in inner.items()
                if isinstance(part, bool | int | float | str)
            }
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
