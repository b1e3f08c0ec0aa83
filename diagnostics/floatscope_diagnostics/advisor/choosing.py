"""Which layers change, and to what: the smallest set that brings every problem below its limit, worst harm
per FLOP first, and more layers only while a real gap is not expected to close.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.advisor.advice import Framework, LayerAdvice, NotDecided, Problem
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.gap import Gap
from floatscope_diagnostics.advisor.hidden import AMPLIFIED_BITS, Behind, amplified_bits
from floatscope_diagnostics.advisor.limits import budget
from floatscope_diagnostics.advisor.other_scalings import Outlook, cast_loses_more_db, finer_than, outlook
from floatscope_diagnostics.advisor.words import problem_sentence

PER_LAYER: Mapping[Framework, tuple[str, ...]] = {
    "te": ("current", "block", "mxfp8", "bf16"),
    "megatron": ("current", "block", "mxfp8", "bf16"),
    "torchao": ("current", "rowwise", "bf16"),
    "floatscope": ("bf16",),
}
"""What a framework can give one layer while the others keep their recipe. te: nested ``te.autocast``;
megatron: ``--te-precision-config-file``; torchao: one ``convert_to_float8_training`` a recipe; floatscope:
``--precision-map``."""

CAST_FAULT_DB = 3.0
"""A cast that loses so much more than rounding to nearest under the same scale is at fault itself. Rounding
toward zero loses 6 dB more; the prediction from a histogram is right to 1.6 dB (``whatif``)."""
NEGLIGIBLE_HARM = 3e-4


@dataclass(frozen=True)
class Chosen:
    """layers: in order of harm per FLOP.  closed: share of all harm that goes with them, 0 to 1.  for_budget:
    how many of them have no problem of their own.
    """

    layers: tuple[LayerAdvice, ...]
    closed: float
    for_budget: int
    not_decided: tuple[NotDecided, ...]


def choose(
    evidence: Evidence,
    problems: Sequence[Problem],
    harms: Mapping[str, float],
    shares_pct: Mapping[str, float],
    *,
    gap: Gap | None,
    framework: Framework,
    recipes: Sequence[str],
    max_layers: int | None,
    hidden: Mapping[str, Behind],
) -> Chosen:
    """The set. shares_pct: of the FLOPs by layer, empty if not known (then all count alike).  hidden: layers
    that a fault before them hides; each follows its root, and is taken to do as much harm.
    """
    harms = {**harms, **{layer: harms[one.root] for layer, one in hidden.items()}}
    own: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        own[problem.layer].append(problem)

    def rank(layer: str) -> tuple[float, int, bool]:
        root = hidden[layer].root if layer in hidden else layer
        return -harms[root] / max(shares_pct.get(root, 1.0), 1e-9), order[root], root != layer

    order = {layer: k for k, layer in enumerate(evidence.layers)}
    wanted = sorted({*own, *hidden}, key=rank)
    total = sum(harms.values())
    rest = [layer for layer in sorted(harms, key=rank) if layer not in wanted]
    extra = 0
    if own and gap is not None and gap.is_real and total > 0:
        while rest and 100.0 * sum(harms[w] for w in wanted) / total < budget("gap_closed_pct"):
            if harms[rest[0]] < NEGLIGIBLE_HARM:
                break
            wanted.append(rest.pop(0))
            extra += 1
    notes: list[NotDecided] = []
    if max_layers is not None and len(wanted) > max_layers:
        left = wanted[max_layers:]
        notes.append(
            NotDecided(
                "max_layers",
                f"{len(left)} more layers have a problem or a part of the gap and were left out, because at "
                f"most {max_layers} may change: {', '.join(left[:4])}{', ...' if len(left) > 4 else ''}.",
            )
        )
        wanted = wanted[:max_layers]
    layers: list[LayerAdvice] = []
    for layer in wanted:
        made = _advice(
            evidence, layer, own[layer], harms[layer], shares_pct, framework, recipes, hidden.get(layer)
        )
        if isinstance(made, NotDecided):
            notes.append(made)
        else:
            layers.append(made)
    closed = sum(harms[one.layer] for one in layers) / total if total > 0 else 0.0
    return Chosen(tuple(layers), closed, extra, tuple(notes))


def tensors_of(evidence: Evidence, layer: str) -> tuple[TensorEvidence, ...]:
    """The cast operands of a layer."""
    return tuple(t for t in evidence.tensors if t.layer == layer)


def cast_fault_db(evidence: Evidence, layer: str) -> float | None:
    """By how many dB the worst cast of the layer is worse than rounding to nearest; None if that cannot be
    told or no cast is CAST_FAULT_DB worse.
    """
    worst = None
    for tensor in tensors_of(evidence, layer):
        more = cast_loses_more_db(tensor)
        if more is not None and more > CAST_FAULT_DB and (worst is None or more > worst):
            worst = more
    return worst


def _advice(
    evidence: Evidence,
    layer: str,
    problems: Sequence[Problem],
    harm: float,
    shares_pct: Mapping[str, float],
    framework: Framework,
    recipes: Sequence[str],
    hidden: Behind | None,
) -> LayerAdvice | NotDecided:
    tensors = tensors_of(evidence, layer)
    recipe = tensors[0].recipe
    why = _reasons(evidence, layer, problems, hidden)
    fault = cast_fault_db(evidence, layer)
    found: dict[str, Outlook] = {}
    if hidden is not None:
        why.append("what a finer scale would do cannot be told before its input is seen")
    elif fault is not None:
        why.append(
            f"the cast loses {fault:.1f} dB more than rounding to nearest under the same scale: a finer "
            "scale does not mend that"
        )
    else:
        found = {finer: outlook(tensors, finer) for finer in finer_than(recipe, recipes)}
    targets = {one: _coarsest(found, can) for one, can in PER_LAYER.items()}
    to = targets[framework]
    for finer, looked in found.items():
        if finer == to:
            why.append(f"{finer}: {looked.figures()} predicted, which is enough")
            break
        if looked.good:
            why.append(f"{finer} would do ({looked.figures()} predicted), but not for single layers here")
        elif looked.why and not looked.unknown:
            why.append(f"{finer} is not enough: {looked.why}")
    not_judged = tuple(finer for finer, looked in found.items() if looked.unknown)
    for reason in dict.fromkeys(found[finer].why for finer in not_judged):
        which = ", ".join(finer for finer in not_judged if found[finer].why == reason)
        why.append(f"whether {which} would be enough cannot be said: {reason}")
    if to == "bf16" and "bf16" not in recipes:
        return NotDecided(
            "no_recipe", f"{layer}: none of the allowed recipes ({', '.join(recipes)}) is enough."
        )
    return LayerAdvice(
        layer=layer,
        from_=recipe,
        to=to,
        why=tuple(why),
        harm=float(harm),
        flops_share_pct=shares_pct.get(layer),
        predicted=_predicted(found[to]) if to in found else {},
        targets=targets,
        not_judged=not_judged if to == "bf16" else (),
    )


def _coarsest(found: Mapping[str, Outlook], can: Sequence[str]) -> str:
    """The coarsest scaling that is enough and that a framework can give one layer, else BF16."""
    return next((finer for finer, looked in found.items() if looked.good and finer in can), "bf16")


def _reasons(evidence: Evidence, layer: str, problems: Sequence[Problem], hidden: Behind | None) -> list[str]:
    why = [problem_sentence(p) for p in problems]
    bits = amplified_bits(evidence, layer)
    if bits is not None and bits >= AMPLIFIED_BITS and any(p.role == "weight" for p in problems):
        why.append(
            f"weight: its largest row is 2^{bits:.0f} times a typical one; that amplified channel is the "
            "root (for SwiGLU see Smooth-SwiGLU, arXiv 2409.12517)"
        )
    if hidden is not None:
        why.append(hidden.sentence())
    elif not problems:
        why.append("no statistic beyond its limit, but the next largest part of what is left of the gap")
    return why


def _predicted(found: Outlook) -> dict[str, float]:
    out = {}
    if found.underflow_pct is not None:
        out["underflow_pct"] = float(found.underflow_pct)
    if found.sqnr_db is not None:
        out["sqnr_db"] = float(found.sqnr_db)
    return out
