"""Whether a framework really puts the layers into FP8, or only says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from floatscope.model_shapes.shape import ModelConfigError
from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.framework_conversion import SOURCE, left_by_accelerate
from floatscope.preflight.shape_layers import gemms_of
from floatscope.preflight.shape_rules import SIXTEEN_BIT, library_of, out_of_fp8
from floatscope.preflight.table_reading import read_table
from floatscope.preflight.versions import is_below, parse_version

COUNT_THEM = "count te.Linear against nn.Linear after prepare()"
_MOST_NAMED = 6


def framework_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Checks of accelerate, torchao and transformers as far as they are wanted or installed.

    Only what versions and shapes tell: whether a program compiles its model is not read, and said to be
    unknown.
    """
    if wanted.recipe in SIXTEEN_BIT:
        return []
    found: list[Check] = []
    if wanted.library == "accelerate":
        found += [*_backend(facts, wanted), *_recipe(wanted), *_conversion(wanted)]
    if library_of(wanted) == "torchao":
        found += [*_compiled(facts), *_head(wanted)]
    if wanted.library in ("accelerate", "") and "transformers" in facts.versions:
        found.append(_transformers(facts))
    return found


def _backend(facts: Facts, wanted: Wanted) -> Iterator[Check]:
    """What accelerate would compute with."""
    table = read_table("frameworks")
    texts, needed = table["accelerate"], library_of(wanted)
    installed = [name for name, dists in table["backends"].items() if facts.versions.keys() & set(dists)]
    status: Status = "pass" if needed in installed else "fail"
    yield Check(
        "framework.accelerate.backend",
        "framework",
        status,
        f"accelerate {facts.versions.get('accelerate', '(not installed)')}; FP8 packages installed: "
        f"{', '.join(installed) or 'none'}; this recipe needs {needed}",
        texts["lies"],
        "" if status == "pass" else f"install {needed}, or choose a recipe of what is installed",
        texts["lies_source"],
    )
    if needed != "torchao" or "torchao" not in facts.versions:
        return
    version, oldest = facts.versions["torchao"], texts["oldest_torchao"]
    parsed = parse_version(version)
    old = bool(parsed) and is_below(parsed, parse_version(oldest))
    yield Check(
        "framework.accelerate.torchao",
        "framework",
        "unknown" if not parsed else "fail" if old else "pass",
        f"torchao {version}; accelerate needs {oldest} or later",
        "accelerate refuses an older torchao",
        f"install torchao {oldest} or later" if old or not parsed else "",
        texts["torchao_source"],
    )


def _recipe(wanted: Wanted) -> Iterator[Check]:
    texts = read_table("frameworks")["accelerate"]
    if wanted.recipe and wanted.recipe not in texts["recipes"]:
        yield Check(
            "framework.accelerate.recipe",
            "framework",
            "fail",
            f"recipe {wanted.recipe} through accelerate",
            texts["recipes_why"],
            "enter te.autocast with this recipe yourself, or choose delayed scaling, MXFP8 or torchao",
            texts["recipes_source"],
        )


def _conversion(wanted: Wanted) -> Iterator[Check]:
    why = "accelerate converts layers without a word about those that it leaves as they are"
    name = "framework.accelerate.conversion"
    if wanted.model is None:
        read = "no model was given, so its conversion could not be foretold"
        do = f"give --model, or {COUNT_THEM}"
        yield Check(name, "framework", "unknown", read, why, do, SOURCE)
        return
    try:
        gemms = [one for one in gemms_of(wanted.model, wanted) if not out_of_fp8(one, wanted)]
    except ModelConfigError:
        return  # shape_checks says what is wrong
    left = left_by_accelerate(gemms, wanted)
    silent = {one: reason for one, reason in left.items() if "stops converting" in reason}
    converted = sum(one.count for one in gemms if one.name not in left)
    total = sum(one.count for one in gemms)
    shown = "; ".join(f"{one}: {reason}" for one, reason in list(left.items())[:_MOST_NAMED])
    if silent:
        why += "; at the first one that does not fit it leaves the function, so that layers that would fit "
        why += "stay in 16 bit too"
    yield Check(
        name,
        "framework",
        "warn" if left else "pass",
        f"foretold from the shapes: {converted:,} of {total:,} nn.Linear are converted"
        + (f". Left: {shown}" if left else ""),
        why,
        f"pad the layers named to multiples of 16, and {COUNT_THEM}" if left else "",
        SOURCE,
    )


def _compiled(facts: Facts) -> Iterator[Check]:
    texts = read_table("frameworks")["torchao"]
    impossible = bool(facts.gpus) and bool(facts.versions) and "triton" not in facts.versions
    yield Check(
        "framework.torchao.compile",
        "framework",
        "fail" if impossible else "unknown",
        "triton is not installed, so torch.compile cannot make GPU kernels"
        if impossible
        else "whether the program calls torch.compile was not read",
        texts["compile_why"],
        "install the triton of this torch" if impossible else "call torch.compile on the model or its blocks",
        texts["compile_source"],
    )


def _head(wanted: Wanted) -> Iterator[Check]:
    head = next((one for one in wanted.model.linears if one.kind == "head"), None) if wanted.model else None
    if head is None or wanted.library == "accelerate":
        return
    texts: dict[str, Any] = read_table("frameworks")["torchao"]
    yield Check(
        "framework.torchao.head",
        "framework",
        "unknown",
        f"whether a module_filter_fn leaves {head.name} out was not read",
        texts["head_why"],
        f"pass a module_filter_fn that is false for {head.name}",
        texts["head_source"],
    )


def _transformers(facts: Facts) -> Check:
    texts = read_table("frameworks")["transformers"]
    return Check(
        "framework.transformers.fp8",
        "framework",
        "not_applicable",
        f"transformers {facts.versions['transformers']} is installed; settings of quantization were not read",
        texts["why"],
        texts["do"],
        texts["source"],
    )
