"""The names of recipes: as people type them, as the protocol spells them, as a sentence says them."""

from __future__ import annotations

from floatscope.protocol.names import RECIPES

ALIASES = {
    "delayed": "fp8_delayed_scaling",
    "delayed_scaling": "fp8_delayed_scaling",
    "current": "fp8_current_scaling",
    "current_scaling": "fp8_current_scaling",
    "block": "fp8_block_scaling",
    "blockwise": "fp8_block_scaling",
    "block_scaling": "fp8_block_scaling",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "tensorwise": "ao_tensorwise",
    "rowwise": "ao_rowwise",
    "fp16": "fp16_amp",
}
"""What ``--recipe`` takes beside the names of the protocol."""

WORDS = {
    "fp8_delayed_scaling": "FP8 delayed scaling",
    "fp8_current_scaling": "FP8 current scaling",
    "fp8_block_scaling": "FP8 block scaling",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "ao_tensorwise": "FP8 tensorwise (torchao)",
    "ao_rowwise": "FP8 rowwise (torchao)",
    "fp16_amp": "FP16 (AMP)",
    "bf16": "BF16",
    "fp32": "FP32",
    "custom": "a custom recipe",
}


def recipe_of(name: str) -> str:
    """The protocol's name of a recipe typed by a person. Raises ValueError naming all that are known."""
    key = name.strip().lower().replace("-", "_")
    found = ALIASES.get(key, key)
    if found not in RECIPES:
        known = ", ".join((*ALIASES, *(one for one in RECIPES if one not in ALIASES)))
        raise ValueError(f"there is no recipe {name!r}; known are {known}")
    return found


def words_of(recipe: str) -> str:
    """The recipe in a sentence; "FP8" for none."""
    return WORDS.get(recipe, recipe) if recipe else "FP8"
