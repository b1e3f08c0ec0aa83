"""Whether sizes of a model's layers suit the recipe: the first dimension that does not, and its padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from floatscope.model_shapes.megatron import JOB
from floatscope.model_shapes.shape import ModelConfigError, ModelShape, Parallelism
from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.shape_gain import gain_checks
from floatscope.preflight.shape_layers import Layer, layers_of, tokens_known
from floatscope.preflight.shape_rules import (
    SIXTEEN_BIT,
    Rule,
    Violation,
    expert_rule,
    rules_for,
)
from floatscope.preflight.table_reading import read_table

_LOW_SHARE = 0.5
_EFFECTS = {
    "error": "the first step raises, after the job has been paid for",
    "skipped": "the layer stays in 16 bit, or the first step raises",
    "slower": "it works, slower than it could",
}


def shape_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Checks of every linear layer against the recipe's rules, of tokens, vocabulary, experts and the share
    of work that is in FP8.
    """
    if wanted.model is None:
        return [_alone("shape.model", "not_applicable", "no model was given", "give one with --model")]
    if wanted.recipe in SIXTEEN_BIT:
        return [
            _alone("shape.model", "not_applicable", f"the recipe {wanted.recipe} has no rules of shape", "")
        ]
    try:
        layers = layers_of(facts, wanted)
    except ModelConfigError as error:
        do = "choose a parallelism that divides the model"
        return [_alone("shape.parallelism", "fail", str(error), do)]
    rules = rules_for(facts, wanted)
    return [
        *_of_layers(layers, wanted.parallelism.tensor),
        *_uncut(layers, wanted),
        _share(layers, wanted.model),
        *_tokens(layers, rules, wanted),
        *_vocabulary(wanted.model, layers, wanted),
        *_experts(layers, wanted),
        *gain_checks(facts, wanted, layers),
        *_notes(wanted.model),
        *_job(wanted.model, wanted),
    ]


def _of_layers(layers: Sequence[Layer], ways: int) -> Iterator[Check]:
    """A check of each layer that breaks a rule in K or N; tokens are the same for all and have their own."""
    for layer in layers:
        own = [one for one in layer.broken if one.dimension != "t"]
        if own:
            worst = min(own, key=lambda one: ("error", "skipped", "slower").index(one.rule.effect))
            cut = f" (cut by tensor parallel {ways})" if ways > 1 else ""
            yield _violation(f"shape.{layer.gemm.name}", f"{layer.gemm.name}{cut}: {worst}", worst)


def _violation(name: str, read: str, broken: Violation) -> Check:
    status: Status = "fail" if broken.rule.effect == "error" else "warn"
    why = f"{broken.rule.why}; {_EFFECTS[broken.rule.effect]}"
    if not broken.rule.certain:
        status, why = "warn", f"{why}. It depends on the GPU, which is not known"
    what = "tokens of a GEMM" if broken.dimension == "t" else "that side"
    do = f"pad {what} to {broken.padded:,}, or keep the layer out of FP8"
    return Check(name, "shape", status, read, why, do, broken.rule.source)


def _uncut(layers: Sequence[Layer], wanted: Wanted) -> Iterator[Check]:
    for layer in layers:
        if layer.gemm.uncut:
            side = "features in" if layer.gemm.uncut == "k" else "features out"
            ways = wanted.parallelism.tensor
            yield Check(
                f"shape.{layer.gemm.name}.cut",
                "shape",
                "fail",
                f"{layer.gemm.name}: tensor parallel {ways} does not divide its {side}",
                "tensor parallelism cuts this side into equal parts and asserts that it can",
                "pad that side, or choose another tensor-parallel size",
                "Megatron-LM d98e8a6, megatron/core/tensor_parallel/utils.py divide",
            )


def _share(layers: Sequence[Layer], model: ModelShape) -> Check:
    count, inside = sum(one.gemm.count for one in layers), sum(one.gemm.count for one in layers if one.in_fp8)
    share = sum(one.share for one in layers if one.in_fp8)
    out: dict[str, list[str]] = {}
    for one in layers:
        if not one.in_fp8:
            out.setdefault(one.why_not, []).append(one.gemm.name)
    named = "; ".join(f"{', '.join(names)}: {why}" for why, names in out.items())
    status: Status = "pass" if share >= _LOW_SHARE else "warn" if inside else "fail"
    return Check(
        "shape.linears",
        "shape",
        status,
        f"{model.name}: {inside:,} of {count:,} linear layers in FP8, {100 * share:.1f} % of their FLOPs"
        + (f". In 16 bit: {named}" if out else ""),
        "only what is in FP8 can be faster",
        "" if status == "pass" else "pad the layers named, or choose another recipe",
        read_table("shapes")["source"],
    )


def _tokens(layers: Sequence[Layer], rules: Sequence[Rule], wanted: Wanted) -> Iterator[Check]:
    """T is a contraction dimension of the weight gradient."""
    demands = [rule for rule in rules if "t" in rule.multiples]
    if not demands:
        return
    multiple = max(rule.multiples["t"] for rule in demands)
    strict = max(demands, key=lambda rule: rule.multiples["t"])
    why = "tokens are contracted in the weight gradient, so they must be a multiple too"
    if not tokens_known(wanted):
        do = "give --micro-batch and --sequence"
        read = "micro-batch and sequence length were not said"
        yield Check("shape.tokens", "shape", "unknown", read, why, do, strict.source)
        return
    broken = [one for layer in layers for one in layer.broken if one.dimension == "t"]
    if broken:
        worst = min(broken, key=lambda one: ("error", "skipped", "slower").index(one.rule.effect))
        yield _violation("shape.tokens", str(worst), worst)
        return
    tokens = next((one.gemm.tokens for one in layers if one.gemm.kind != "expert"), 0)
    read = f"{tokens:,} tokens a GEMM, a multiple of {multiple}"
    yield Check("shape.tokens", "shape", "pass", read, why, "", strict.source)
    yield _last_batch(multiple, wanted, strict.source)


def _last_batch(multiple: int, wanted: Wanted, source: str) -> Check:
    one = -(-wanted.sequence // wanted.parallelism.context)
    safe = one % multiple == 0
    return Check(
        "shape.last_batch",
        "shape",
        "pass" if safe else "warn",
        f"one sequence has {one:,} tokens a GPU, "
        + (f"itself a multiple of {multiple}" if safe else f"which is no multiple of {multiple}"),
        "the last batch of an epoch can have fewer sequences: if their tokens are no multiple, the run fails "
        "only there",
        "" if safe else f"drop the last short batch, or pad sequences to {-(-one // multiple) * multiple:,}",
        source,
    )


def _vocabulary(model: ModelShape, layers: Sequence[Layer], wanted: Wanted) -> Iterator[Check]:
    head = next((one for one in layers if one.gemm.kind == "head"), None)
    local, multiple = -(-model.vocab // wanted.parallelism.tensor), 16
    if head is None or (local % multiple == 0 and model.vocab % wanted.parallelism.tensor == 0):
        return
    step = multiple * wanted.parallelism.tensor
    padded = -(-model.vocab // step) * step
    yield Check(
        "shape.vocabulary",
        "shape",
        "warn",
        f"vocabulary {model.vocab:,} is no multiple of {step:,} (16 times tensor parallel); "
        f"padded: {padded:,}",
        "the head cannot compute in FP8, and its 16-bit GEMM is slower too",
        f"pad the vocabulary to {padded:,} (Megatron: --make-vocab-size-divisible-by, default 128)",
        "Megatron-LM d98e8a6, megatron/training/arguments.py:2441",
    )


def _experts(layers: Sequence[Layer], wanted: Wanted) -> Iterator[Check]:
    experts = [one for one in layers if one.gemm.kind == "expert"]
    if not experts:
        return
    multiple, do, source = expert_rule(wanted)
    mean = f"{experts[0].gemm.tokens:,} on average" if tokens_known(wanted) else "how many is not known"
    yield Check(
        "shape.experts",
        "shape",
        "warn" if any(one.in_fp8 for one in experts) else "not_applicable",
        f"tokens of an expert: {mean}, another number every step",
        f"routing gives an expert any number of tokens, and the recipe takes multiples of {multiple}",
        do,
        source,
    )


def _notes(model: ModelShape) -> Iterator[Check]:
    if any("not known here" in note or "names no model_type" in note for note in model.notes):
        yield Check(
            "shape.architecture",
            "shape",
            "warn",
            f"{model.source}: {'; '.join(model.notes)}",
            "layers that this architecture has beyond the usual ones were not checked",
            "compare the number of parameters "
            f"({model.parameters / 1e9:.2f} billion by this reading) with the model's own",
            "floatscope/model_shapes/tables/families.json",
        )


def _job(model: ModelShape, wanted: Wanted) -> Iterator[Check]:
    """Arguments of a job hold more than the model; what of it was not given is said not to be used."""
    said = next((note for note in model.notes if note.startswith(JOB)), "")
    uncut = "parallel_size" in said and wanted.parallelism == Parallelism()
    if said and (uncut or not tokens_known(wanted)):
        yield Check(
            "shape.job",
            "shape",
            "warn",
            f"{model.source}: {said}; checked was tensor parallel {wanted.parallelism.tensor}, "
            + ("the batch as given" if tokens_known(wanted) else "no batch"),
            "the model is read from the file, how a job cuts it is not: other sizes break other rules",
            "give --tp, --cp, --ep, --micro-batch and --sequence as the job will have them",
            model.source,
        )


def _alone(name: str, status: Status, read: str, do: str) -> Check:
    why = "sizes decide which layers can compute in FP8"
    return Check(name, "shape", status, read, why, do, read_table("shapes")["source"])
