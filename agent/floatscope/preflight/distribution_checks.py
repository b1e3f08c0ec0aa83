"""Whether ranks agree on scales, what a recipe's settings come out as, and where sums are short."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.model_shapes.shape import ModelConfigError
from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gpu_visible import used_gpus
from floatscope.preflight.shape_layers import gemms_of
from floatscope.preflight.shape_rules import SIXTEEN_BIT, library_of
from floatscope.preflight.table_conditions import capability_of
from floatscope.preflight.table_reading import read_table

FAST_ACCUMULATION_K = 8192
DELAYED = "fp8_delayed_scaling"
_FAST = (DELAYED, "fp8_current_scaling", "ao_tensorwise", "ao_rowwise")


def distribution_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Checks of the amax reduction, of the defaults of delayed scaling by library, and of fast accumulation.

    What a program passes to its recipe is not read; the checks say which value they take.
    """
    if not wanted.recipe or wanted.recipe in SIXTEEN_BIT:
        return []
    return [*_amax(wanted), *_echo(wanted), *_accumulation(facts, wanted)]


def _amax(wanted: Wanted) -> Iterator[Check]:
    texts = read_table("distribution")["amax"]
    cut = wanted.parallelism
    ranks = cut.tensor * cut.data * cut.context
    if wanted.recipe != DELAYED or library_of(wanted) != "transformer_engine" or ranks < 2:
        return
    read = f"tensor {cut.tensor}, context {cut.context}, data {cut.data} parallel; sequence parallelism "
    read += "on" if cut.sequence else "off"
    megatron = wanted.library == "megatron"
    key = "megatron" if megatron else "sequence" if cut.sequence else "group"
    certain = megatron and not cut.sequence
    yield Check(
        "distribution.amax_group",
        "distribution",
        "pass" if certain else "warn",
        f"{read}. What reduce_amax and amax_reduction_group are set to was not read",
        f"{texts['why']}. {texts['megatron']}" if certain else texts["why"],
        "" if certain else texts[key],
        texts["source"],
    )


def _echo(wanted: Wanted) -> Iterator[Check]:
    """What delayed scaling's history comes out as with each library's defaults."""
    table = read_table("distribution")["delayed_defaults"]
    library = wanted.library if wanted.library in table["libraries"] else library_of(wanted)
    if wanted.recipe != DELAYED or library not in table["libraries"]:
        return
    own = table["libraries"][library]
    others = ", ".join(
        f"{name} {one['length']}/{one['algo']}" for name, one in table["libraries"].items() if name != library
    )
    surprising = own["algo"] == "most_recent"
    yield Check(
        "distribution.delayed_defaults",
        "distribution",
        "warn" if surprising else "pass",
        f"defaults of {library}: amax history {own['length']}, {own['algo']} (others: {others})",
        table["why"],
        table["do"] if surprising else "",
        own["source"],
    )


def _accumulation(facts: Facts, wanted: Wanted) -> Iterator[Check]:
    texts = read_table("distribution")["fast_accumulation"]
    if wanted.recipe not in _FAST or wanted.model is None:
        return
    capabilities = [capability_of(gpu) for gpu in used_gpus(facts)]
    if capabilities and all(one is not None and one[0] != 9 for one in capabilities):
        return
    try:
        long = [one for one in gemms_of(wanted.model, wanted) if one.k >= FAST_ACCUMULATION_K]
    except ModelConfigError:
        return  # shape_checks says what is wrong
    known = any(one is not None and one[0] == 9 for one in capabilities)
    gpu = "on this Hopper GPU" if known else "if the GPU is a Hopper (it is not known)"
    named = ", ".join(f"{one.name} (K {one.k:,})" for one in long[:6])
    yield Check(
        "distribution.fast_accumulation",
        "distribution",
        "warn" if long else "pass",
        f"K of {FAST_ACCUMULATION_K:,} or more {gpu}: {named}" if long else "no layer has a K that long",
        texts["why"],
        texts["do"] if long else "",
        texts["source"],
    )
