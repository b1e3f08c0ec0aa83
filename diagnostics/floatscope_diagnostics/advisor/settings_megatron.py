"""The advice for Megatron-LM: the flags of first and last layers if they fit, else a precision file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from floatscope_diagnostics.advisor.settings_te import yaml_text

FILE = "floatscope-precision.yaml"
FP8_RECIPES = {"delayed": "delayed", "current": "tensorwise", "block": "blockwise", "mxfp8": "mxfp8"}
"""Short recipe -> value of ``--fp8-recipe`` and of ``fp8_quantization_recipe``."""
_LAYER = re.compile(r"(?:.*\.)?(?:layers|blocks|h)\.(\d+)\.(.+)\Z")

_NO_DELAYED = "# Megatron refuses --first-last-layers-bf16 with delayed scaling; "


def megatron(layers: Sequence[tuple[str, str]], all_layers: Sequence[str], recipe: str) -> str:
    """Shell text. layers: (name, short recipe or "bf16").  all_layers: every layer of the run in FP8.
    Empty without layers.
    """
    if not layers:
        return ""
    places = {name: _place(name) for name in all_layers}
    if any(places.get(name) is None for name, _ in layers):
        unknown = next(name for name, _ in layers if places.get(name) is None)
        return (
            f"# Cannot be said for Megatron: {unknown} is not a layer of a Megatron transformer (expected "
            "names such as decoder.layers.3.mlp.linear_fc2).\n"
        )
    ends = _ends(layers, all_layers, places)
    if ends is not None and recipe != "delayed":
        first, last = ends
        return (
            "# Exactly the first and last layers: flags say it.\n"
            f"MEGATRON_ARGS+=(--first-last-layers-bf16 --num-layers-at-start-in-bf16 {first} "
            f"--num-layers-at-end-in-bf16 {last})\n"
        )
    return _file(layers, places, recipe, ends) + _nearest(layers, places, recipe)


def _file(
    layers: Sequence[tuple[str, str]],
    places: Mapping[str, tuple[int, str] | None],
    recipe: str,
    ends: tuple[int, int] | None,
) -> str:
    """The per-module file of ``--te-precision-config-file``; the first matcher that matches a module wins.

    Keys: Megatron-LM, TransformerEngineMixedPrecision.md and ``TEQuantizationRecipe`` (read by megatron-core
    0.16.1 without complaint).
    """
    wanted: dict[str, str] = {}
    for name, to in layers:
        place = places[name]
        assert place is not None
        at = f"*.layers.{place[0]}.{place[1]}"
        if wanted.get(at, to) != to:
            to = "bf16"  # parts of one fused layer with different targets: the safer one
        wanted[at] = to
    head = (
        "# Flags of first and last layers cannot say this set.\n"
        if ends is None
        else _NO_DELAYED + "so a file says it.\n"
    )
    lines = ["configs:"]
    for to in sorted(set(wanted.values())):
        lines += [f"  {to}:", "    transformer_engine_config_type: TEQuantizationParams"]
        if to == "bf16":
            lines.append("    training_recipe: {}")
        else:
            lines += ["    training_recipe:", f"      fp8_quantization_recipe: {FP8_RECIPES[to]}"]
            if to == "current":  # the default of the file, e4m3, would hold for gradients too
                lines.append("      fp8_format: hybrid")
    lines.append("matchers:")
    for k, (pattern, to) in enumerate(wanted.items()):
        lines += [
            f"  floatscope_{k}:",
            "    type: glob",
            f"    pattern: {yaml_text(pattern)}",
            f"    config: {to}",
            "    enabled: true",
        ]
    caution = (
        "# Numbers of layers are those of the module's name; with pipeline parallelism compare them with the "
        "names\n# that Megatron logs at --logging-level 20."
    )
    if recipe == "delayed":
        caution += " Not verified together with --fp8-recipe delayed."
    return (
        f"{head}{caution}\ncat > {FILE} <<'YAML'\n"
        + "\n".join(lines)
        + f"\nYAML\nMEGATRON_ARGS+=(--te-precision-config-file {FILE})\n"
    )


def _nearest(
    layers: Sequence[tuple[str, str]], places: Mapping[str, tuple[int, str] | None], recipe: str
) -> str:
    """The nearest that the flags alone can say, as a comment: all layers from an end up to the ones meant."""
    if recipe == "delayed":
        return ""
    depth = 1 + max(place[0] for place in places.values() if place is not None)
    meant = sorted({place[0] for name, _ in layers if (place := places[name]) is not None})
    best: tuple[int, int] | None = None
    for cut in range(len(meant) + 1):
        first = meant[cut - 1] + 1 if cut else 0
        last = depth - meant[cut] if cut < len(meant) else 0
        if best is None or first + last < sum(best):
            best = first, last
    assert best is not None
    return (
        f"# Nearest with flags alone: --first-last-layers-bf16 --num-layers-at-start-in-bf16 {best[0]} "
        f"--num-layers-at-end-in-bf16 {best[1]} (whole layers: {sum(best)} of {depth})\n"
    )


def _ends(
    layers: Sequence[tuple[str, str]],
    all_layers: Sequence[str],
    places: Mapping[str, tuple[int, str] | None],
) -> tuple[int, int] | None:
    """How many whole layers at the start and at the end the set is, None if it is not such a set."""
    if any(to != "bf16" for _, to in layers):
        return None
    chosen = {name for name, _ in layers}
    by_number: dict[int, set[str]] = {}
    for name in all_layers:
        place = places[name]
        if place is None:
            return None
        by_number.setdefault(place[0], set()).add(name)
    whole = {number for number, names in by_number.items() if names <= chosen}
    if {name for number in whole for name in by_number[number]} != chosen:
        return None
    depth = max(by_number) + 1
    first = next((k for k in range(depth) if k not in whole), depth)
    last = next((k for k in range(depth) if depth - 1 - k not in whole), 0) if first < depth else 0
    return (first, last) if first + last == len(whole) else None


def _place(name: str) -> tuple[int, str] | None:
    """Number of the layer and Megatron's name of the part."""
    found = _LAYER.match(name)
    if found is None:
        return None
    part = _parts().get(found[2])
    return None if part is None else (int(found[1]), part)


def _parts() -> dict[str, str]:
    text = files("floatscope_diagnostics.advisor").joinpath("layer_names.json").read_text(encoding="utf-8")
    parts: dict[str, str] = json.loads(text)["megatron_part"]
    return parts


def whole_recipe(recipe: str) -> str:
    """Shell text that gives the whole model another recipe; says so where Megatron has none."""
    name = FP8_RECIPES.get(recipe)
    if name is None:
        return f"# Megatron-LM has no {recipe} scaling.\n"
    return f"# Another recipe for the whole model.\nMEGATRON_ARGS+=(--fp8-recipe {name})\n"
