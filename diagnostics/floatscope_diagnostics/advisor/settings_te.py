"""The advice for Transformer Engine: Python that runs the named modules under an autocast of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

RECIPE_CLASSES = {
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}
"""Classes of ``transformer_engine.common.recipe``."""

_CODE = '''# Transformer Engine: precision of single modules. Call once, after the model is built.
# te.autocast inside te.autocast counts for the inner module; old releases call it te.fp8_autocast.
# A module with a recipe here uses it whenever it runs, also where the model runs outside te.autocast.
import functools

import transformer_engine.pytorch as te
{recipe_import}
LAYERS = {{
{layers}
}}


def _within(forward, recipe):
    @functools.wraps(forward)
    def run(*args, **kwargs):
        enabled = recipe is not None
        if hasattr(te, "autocast"):
            context = te.autocast(enabled=enabled, recipe=recipe)
        else:
            context = te.fp8_autocast(enabled=enabled, fp8_recipe=recipe)
        with context:
            return forward(*args, **kwargs)

    return run


def set_precision(model):
    """Gives the named modules their own precision. Raises ValueError for a name that no module has."""
    left = dict(LAYERS)
    for name, module in model.named_modules():
        plain = name.replace("_orig_mod.", "").removeprefix("module.").replace(".module.", ".")
        if plain in left:
            module.forward = _within(module.forward, left.pop(plain))
    if left:
        raise ValueError(f"no module is called {{sorted(left)}}")


# The same for layers that leave FP8 through nvidia-dlframework-inspect (Transformer Engine's debug API), also
# for one GEMM layer of a fused module. Releases before 2.11 call the feature DisableFP8Layer.
INSPECT_YAML = r"""
{yaml}"""
'''


def transformer_engine(layers: Sequence[tuple[str, str]]) -> str:
    """Python text. layers: (name, short recipe or "bf16"). Empty without layers."""
    if not layers:
        return ""
    used = sorted({RECIPE_CLASSES[to] for _, to in layers if to in RECIPE_CLASSES})
    rows = []
    for name, to in layers:
        rows.append(f"    {name!r}: {RECIPE_CLASSES[to] + '()' if to in RECIPE_CLASSES else 'None'},")
    return _CODE.format(
        recipe_import=f"from transformer_engine.common.recipe import {', '.join(used)}\n" if used else "",
        layers="\n".join(rows),
        yaml=inspect_yaml([name for name, to in layers if to == "bf16"]),
    )


def inspect_yaml(names: Sequence[str]) -> str:
    """Configuration of nvidia-dlframework-inspect that takes layers out of FP8; "{}" without any.

    Feature and keys: ``transformer_engine/debug/features/disable_quantization_layer.py``.
    """
    if not names:
        return "{}\n"
    # \x22 is a quotation mark: three in a name would end the Python text around this
    quoted = (re.escape(name).replace('"', r"\x22") for name in names)
    pattern = "(.*[.])?(" + "|".join(quoted) + ")$"
    return (
        "floatscope_bf16_layers:\n"
        "  enabled: True\n"
        "  layers:\n"
        f"    layer_name_regex_pattern: {yaml_text(pattern)}\n"
        "  transformer_engine:\n"
        "    DisableQuantizationLayer:\n"
        "      enabled: True\n"
    )


def yaml_text(text: str) -> str:
    """A text as a single-quoted YAML scalar, in which only the quote itself is special."""
    return "'" + text.replace("'", "''") + "'"


def whole_recipe(recipe: str) -> str:
    """Python text that gives the whole model another recipe; says so where Transformer Engine has none."""
    name = RECIPE_CLASSES.get(recipe)
    if name is None:
        return f"# Transformer Engine has no {recipe} scaling.\n"
    return (
        "# Transformer Engine: another recipe for the whole model.\n"
        f"from transformer_engine.common.recipe import {name}\n\n"
        f"recipe = {name}()  # with te.autocast(enabled=True, recipe=recipe): around the forward pass\n"
    )
