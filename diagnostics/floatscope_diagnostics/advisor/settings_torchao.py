"""The advice for torchao: a ``module_filter_fn`` and the recipes' names."""

from __future__ import annotations

from collections.abc import Sequence

RECIPE_NAMES = {"delayed": "tensorwise", "current": "tensorwise", "rowwise": "rowwise"}
"""Short recipe -> name of ``Float8LinearConfig.from_recipe_name``. torchao no longer has delayed scaling."""
NEAREST = "rowwise"  # for a run in block or MX scaling: torchao's finest recipe of float8 training

_CODE = """# torchao: convert in place of your own call of convert_to_float8_training.{note}
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

RECIPE = {recipe!r}
KEEP_BF16 = frozenset({kept})
OTHER_RECIPE = {other}


def _plain(fqn):
    return fqn.replace("_orig_mod.", "").removeprefix("module.").replace(".module.", ".")


def _fits(mod, fqn):
    name = _plain(fqn).rsplit(".", 1)[-1]
    head = name in ("output", "lm_head", "head")  # stays in high precision
    return not head and mod.in_features % 16 == 0 and mod.out_features % 16 == 0


def module_filter_fn(mod, fqn):
    return _fits(mod, fqn) and _plain(fqn) not in KEEP_BF16 and _plain(fqn) not in OTHER_RECIPE


def convert(model):
    # every other layer to float8; raises ValueError for a name that no module has
    left = KEEP_BF16.union(OTHER_RECIPE) - {{_plain(fqn) for fqn, _ in model.named_modules()}}
    if left:
        raise ValueError(f"no module is called {{sorted(left)}}")
    for recipe in sorted(set(OTHER_RECIPE.values())):
        chosen = {{name for name, its in OTHER_RECIPE.items() if its == recipe}}
        convert_to_float8_training(
            model,
            config=Float8LinearConfig.from_recipe_name(recipe),
            module_filter_fn=lambda mod, fqn, chosen=chosen: _fits(mod, fqn) and _plain(fqn) in chosen,
        )
    return convert_to_float8_training(
        model, config=Float8LinearConfig.from_recipe_name(RECIPE), module_filter_fn=module_filter_fn
    )
"""


def torchao(layers: Sequence[tuple[str, str]], recipe: str) -> str:
    """Python text. layers: (name, short recipe or "bf16").  recipe: of the run. Empty without layers.

    A target that torchao has no recipe for becomes BF16, and the text says so.
    """
    if not layers:
        return ""
    base = RECIPE_NAMES.get(recipe, NEAREST)
    note = ""
    if recipe not in ("current", "rowwise"):
        note = f"\n# It has no {recipe} scaling; {base} is the nearest of its recipes."
    kept, other = [], []
    for name, to in layers:
        theirs = RECIPE_NAMES.get(to)
        if theirs is None or theirs == base:
            kept.append(name)
            if to != "bf16" and "no recipe" not in note:
                note += "\n# Layers advised to a scaling that it has no recipe for stay in BF16."
        else:
            other.append((name, theirs))
    return _CODE.format(
        note=note,
        recipe=base,
        kept=_table([f"{name!r}," for name in kept], "()"),
        other=_table([f"{name!r}: {theirs!r}," for name, theirs in other], "{}"),
    )


def _table(entries: Sequence[str], empty: str) -> str:
    return "{\n" + "\n".join(f"    {entry}" for entry in entries) + "\n}" if entries else empty


def whole_recipe(recipe: str) -> str:
    """Python text that gives the whole model another recipe; says so where torchao has none."""
    name = RECIPE_NAMES.get(recipe)
    if name is None:
        return f"# torchao has no {recipe} scaling for float8 training; {NEAREST!r} is its finest recipe.\n"
    return (
        "# torchao: another recipe for the whole model.\n"
        "from torchao.float8 import Float8LinearConfig\n\n"
        f"config = Float8LinearConfig.from_recipe_name({name!r})\n"
    )
