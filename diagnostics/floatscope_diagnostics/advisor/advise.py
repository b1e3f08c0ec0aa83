"""The precision advisor: from a run's statistics to the smallest set of layers that should leave FP8.

Deterministic, and every choice says why: (1) statistics beyond their limits over 100 steps are problems;
(2) a layer with a problem goes to the coarsest finer scaling that is predicted to be enough, else to BF16;
(3) layers are ranked by harm per FLOP; (4) with a baseline, further layers follow while the real gap is not
expected to close. What no layer change mends is said instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope.hardware.gpus import GpuModel
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor.advice import (
    Advice,
    Decision,
    Framework,
    Gain,
    Limits,
    NotDecided,
    Settings,
)
from floatscope_diagnostics.advisor.choosing import Chosen, choose
from floatscope_diagnostics.advisor.cost import cost_of
from floatscope_diagnostics.advisor.everywhere import Everywhere, everywhere
from floatscope_diagnostics.advisor.evidence import STATS, Evidence, Histogram, collect
from floatscope_diagnostics.advisor.experiment import experiment
from floatscope_diagnostics.advisor.gap import Gap
from floatscope_diagnostics.advisor.hardware import allowed_on, hardware_note
from floatscope_diagnostics.advisor.harm import harm_by_layer
from floatscope_diagnostics.advisor.hidden import behind
from floatscope_diagnostics.advisor.limits import default_limits, gap_closed_error_pct
from floatscope_diagnostics.advisor.other_causes import (
    is_no_precision_fault,
    other_causes,
    unseen_precision,
)
from floatscope_diagnostics.advisor.problems import problems_of
from floatscope_diagnostics.advisor.scale_state import is_delayed, only_the_state, proven_by_the_casts
from floatscope_diagnostics.advisor.settings import settings_of, whole_run
from floatscope_diagnostics.advisor.shapes import sizes_of
from floatscope_diagnostics.advisor.undecided import gaps_of_the_log, masked, passed, why_nothing
from floatscope_diagnostics.advisor.words import ALWAYS, counted

__all__ = ["DEFAULT_GPU", "DEFAULT_RECIPES", "RECIPES", "STATS", "advise", "framework_of"]

RECIPES = ("current", "rowwise", "block", "mxfp8", "bf16")
DEFAULT_RECIPES = ("current", "rowwise", "block", "mxfp8", "bf16")
DEFAULT_GPU = "H100 SXM"
"""For the price of an advice when no GPU is named; the advice says so."""

VANISHING_PCT = 50.0
"""Of an operand's values; from there on a standstill elsewhere may be its consequence."""


def advise(
    info: RunInfo,
    batches: Iterable[Batch],
    *,
    name: str,
    limits: Limits | None = None,
    framework: Framework | None = None,
    recipes: Sequence[str] = DEFAULT_RECIPES,
    max_layers: int | None = None,
    gap: Gap | None = None,
    verdict: Mapping[str, Any] | None = None,
    gpu: str = "",
    histograms: Mapping[str, Histogram] | None = None,
) -> Advice:
    """The advice for a run. Never raises on odd statistics.

    batches: of one rank, in order; any subset of steps, with ``STATS`` and histograms as far as logged.
    framework: None reads it off the run.  recipes: that a layer may get.  gap: to a baseline or to a
    reference loss.  verdict: document of the diagnosis.  gpu: of the table of GPUs, for the price and for
    what it can run; raises UnknownGpuError.
    histograms: the newest by tensor, where the batches carry none.
    """
    limits = limits or default_limits()
    framework = framework or framework_of(info)
    model = find_gpu(gpu or DEFAULT_GPU)
    if gpu:
        recipes = allowed_on(model, recipes)
    evidence = collect(info, batches, histograms)
    notes = list(gaps_of_the_log(evidence, gap))
    refused = why_nothing(evidence)
    blank = Advice(name, _span(evidence), framework, "cannot_say", "", limits, always=ALWAYS)
    if refused is not None:
        return _with(blank, sentence=refused.sentence, notes=(refused, *other_causes(verdict)))
    found = problems_of(evidence, limits)
    vanishing = any(p.what == "underflow_pct" and p.value >= VANISHING_PCT for p in found.current)
    causes = other_causes(verdict, vanishing=vanishing)
    notes += passed(found)
    chosen = choose(
        evidence,
        found.current,
        harm_by_layer(evidence),
        sizes_of(evidence).share_pct(),
        gap=gap,
        framework=framework,
        recipes=recipes,
        max_layers=max_layers,
        hidden=behind(evidence, found.current),
    )
    common = everywhere(evidence, found.current, recipes, framework)
    state = None
    if common is None or not common.recipe or not is_delayed(evidence):
        state = proven_by_the_casts(evidence, found.current, limits, recipes)
    if state is not None:
        common = None
    elif common is None:
        state = only_the_state(evidence, [one.layer for one in chosen.layers], causes, recipes)
    if state is not None or (common is not None and common.recipe):
        chosen = Chosen((), 0.0, 0, ())  # the recipe of the whole run changes, or its state is mended
    notes += chosen.not_decided
    unseen = masked(evidence, {one.layer for one in chosen.layers})
    if unseen is not None:
        notes.append(unseen)
    needs = None if gpu else hardware_note(one.to for one in chosen.layers)
    if needs is not None:
        notes.append(needs)
    advice = Advice(
        run=name,
        steps=_span(evidence),
        framework=framework,
        decision="keep_fp8",
        sentence="",
        limits=limits,
        problems=found.current,
        layers=chosen.layers,
        kept=len(evidence.layers) - len(chosen.layers),
        predicted=_gain(evidence, chosen, gap, model, bool(gpu), is_hidden=unseen is not None),
        settings=_settings(evidence, chosen, common or state),
        always=ALWAYS,
        experiment=experiment(chosen, gap, common or state),
    )
    if common is not None:
        notes.insert(0, NotDecided("everywhere", common.sentence))
    if state is not None and state.proof:
        notes.insert(0, NotDecided("scale_state", state.proof))
    if not chosen.layers and common is state is None and gap is not None and gap.is_real:
        notes.append(
            NotDecided(
                "gap_without_problem",
                f"The run is {gap.nats:.3f} nats above its reference, and no statistic of a cast explains "
                "it: look for another cause (floatscope diagnose, floatscope compare) before moving layers.",
            )
        )
    if not found.current and (recent := unseen_precision(verdict)) is not None:
        notes.append(recent)
        return _with(advice, sentence=recent.sentence, notes=(*notes, *causes), decision="cannot_say")
    return _decided(advice, common or state, (*notes, *causes))


def framework_of(info: RunInfo) -> Framework:
    """The framework that the run's description points to; Transformer Engine where nothing does."""
    if _is_emulated(info):
        return "floatscope"
    if str(info.recipe.get("name", "")).startswith("ao_"):
        return "torchao"
    if any(".linear_fc" in name or ".linear_qkv" in name for name in info.tensors):
        return "megatron"
    return "te"


def _is_emulated(info: RunInfo) -> bool:
    precision = info.config.get("precision")
    return isinstance(precision, Mapping) and precision.get("backend") == "emulated"


def _decided(advice: Advice, common: Everywhere | None, notes: Sequence[NotDecided]) -> Advice:
    """The advice with its decision and its sentence."""
    outside = [note for note in notes if is_no_precision_fault(note)]
    total = advice.kept + len(advice.layers)
    if common is not None:
        return _with(advice, decision="not_layers", sentence=common.sentence, notes=notes)
    if advice.layers:
        share = advice.predicted.flops_leaving_pct
        part = "" if not share else f", {share:.0f} % of the FLOPs of the layers in FP8"
        to = {one.to for one in advice.layers}
        out = f"{counted(len(advice.layers), 'layer')} of {total:,} should " + (
            "leave FP8" if to == {"bf16"} else "change precision"
        )
        out += f"{part}."
        if blind := sum(1 for one in advice.layers if one.not_judged):
            out += (
                f" For {counted(blind, 'layer')} it could not be judged whether a finer scaling is enough: "
                "that needs histograms."
            )
        if outside:
            out += " There is another cause, too, which this does not mend."
        if any(note.code == "scale_state" for note in notes):
            out += " The diagnosis sees a wrong state of scales, too: mend that first."
        return _with(advice, decision="move_layers", sentence=out, notes=notes)
    if outside:
        return _with(
            advice,
            decision="not_layers",
            sentence="The fault is not the precision of layers; no layer should move.",
            notes=notes,
        )
    if advice.problems:
        return _with(
            advice,
            decision="cannot_say",
            sentence="There are problems, but no allowed change mends them.",
            notes=notes,
        )
    return _with(
        advice,
        decision="keep_fp8",
        sentence=f"Keep all {counted(total, 'layer')} in FP8: no statistic of a cast is beyond its limit.",
        notes=notes,
    )


def _with(
    advice: Advice, *, sentence: str, notes: Sequence[NotDecided], decision: Decision | None = None
) -> Advice:
    return replace(advice, sentence=sentence, not_decided=tuple(notes), decision=decision or advice.decision)


def _gain(
    evidence: Evidence, chosen: Chosen, gap: Gap | None, gpu: GpuModel, named: bool, *, is_hidden: bool
) -> Gain:
    if not chosen.layers:
        flops = 0.0 if evidence.layers else None
        cost_pct = 0.0 if evidence.layers else None
        return Gain(
            gap_nats=None if gap is None else gap.nats,
            gap_low_nats=None if gap is None else gap.low_nats,
            gap_high_nats=None if gap is None else gap.high_nats,
            gap_steps=None if gap is None else gap.steps,
            gap_chance_nats=None if gap is None else gap.chance_nats,
            flops_leaving_pct=flops,
            speed_cost_pct=cost_pct,
        )
    targets = {one.layer: one.to for one in chosen.layers}
    recipe = evidence.tensors[0].recipe
    cost = cost_of(
        targets, sizes_of(evidence), evidence.layers, tokens=evidence.tokens, gpu=gpu, recipe=recipe
    )
    priced = named or not _is_emulated(evidence.info)
    source = cost.source
    if cost.speed_cost_pct is not None and not priced:
        source = "the casts of this run are emulated: without the name of a GPU no time is reckoned"
    elif cost.speed_cost_pct is not None and not named:
        source += f"; {gpu.name} stands in, since no GPU was named"
    closed = 100.0 * chosen.closed
    real = gap is not None and gap.is_real
    low, high = gap_closed_error_pct(gap.nats, gap.chance_nats) if gap is not None and real else (0.0, 0.0)
    return Gain(
        harm_removed_pct=closed,
        gap_nats=None if gap is None else gap.nats,
        gap_low_nats=None if gap is None else gap.low_nats,
        gap_high_nats=None if gap is None else gap.high_nats,
        gap_steps=None if gap is None else gap.steps,
        gap_chance_nats=None if gap is None else gap.chance_nats,
        gap_closed_pct=closed if real else None,
        gap_closed_low_pct=(0.0 if is_hidden else max(closed + low, 0.0)) if real else None,
        gap_closed_high_pct=closed + high if real else None,
        flops_leaving_pct=cost.flops_leaving_pct,
        speed_cost_pct=cost.speed_cost_pct if priced else None,
        speed_from=source,
        gpu_named=named or cost.speed_cost_pct is None,
    )


def _settings(evidence: Evidence, chosen: Chosen, common: Everywhere | None) -> Settings:
    if common is not None and common.recipe:
        return whole_run(common.recipe)
    if not chosen.layers:
        return Settings()
    return settings_of(
        chosen.layers,
        info=evidence.info,
        all_layers=evidence.layers,
        recipe=evidence.tensors[0].recipe,
    )


def _span(evidence: Evidence) -> tuple[int, int] | None:
    return (int(evidence.steps[0]), int(evidence.steps[-1])) if len(evidence.steps) else None
