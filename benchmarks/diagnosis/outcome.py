"""What the diagnosis said about one stored run, judged against what was done to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.diagnosis.cases import Scenario, fill
from benchmarks.diagnosis.rank_views import ranks_of
from benchmarks.diagnosis.settings import SHAPES, Base
from benchmarks.diagnosis.store import StoredRun, joined, with_scalar
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.calibration import Calibration
from floatscope_diagnostics.engine import Engine

FEED_STEPS = 64  # steps a batch; after each the verdict is read, as a server would
PRELUDE_STEPS = 192  # healthy steps of the run that a fork is judged with
LOSS_MOVES = 0.01  # relative difference of the paired losses from which on the loss shows the fault
EARLY_STEPS = 5  # an onset may be named so many steps before the injection, and no more
ALARMS = ("warning", "critical")

Finding = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A run's outcome.

    healthy_steps: judged steps without a fault, judged once.  resampled_steps: healthy steps in front of a
    fault.  false_alarms: findings of severity warning or critical that were ever raised on either.
    predicted: the cause of the first alarm of the final verdict, ``healthy`` without one.  confidence: of it,
    or of the best hypothesis of one that is undetermined, which is right if hypothesis_ok.  accepted: causes
    that are right.
    onset_error: named onset minus the window of the true one, 0 inside.  delay: detection minus injection.
    lead: steps from detection to the first step at which the loss shows the fault; infinite if it never does.
    visible: whether any recorded number differs from the healthy pair's.  None: a field does not apply.
    """

    run: str
    case: str
    cause: str
    split: str
    held_back: bool
    recipe: str
    flavour: str
    healthy_steps: int
    resampled_steps: int
    false_alarms: tuple[Finding, ...]
    predicted: str
    family: str
    cause_ok: bool | None = None
    family_ok: bool | None = None
    kind_ok: bool | None = None
    abrupt: bool = False
    visible: bool = True
    detected: bool | None = None
    onset_error: int | None = None
    delay: int | None = None
    lead: float | None = None
    layer_ok: bool | None = None
    tensor_ok: bool | None = None
    alarms: tuple[Finding, ...] = ()
    confidence: float | None = None
    hypothesis_ok: bool | None = None
    accepted: frozenset[str] = frozenset()


def listen(
    info: RunInfo,
    ranks: Mapping[int, Batch],
    *,
    run_key: str,
    baseline: Batch | None = None,
    calibration: Calibration | None = None,
) -> tuple[list[Finding], list[Finding]]:
    """Feeds a run as it would arrive, behind its baseline. ranks: the same steps of each rank.

    Returns the alarms of the final verdict, the most important first, with the clues to their confidence, and
    all that were ever raised.
    """
    running = RunInfo.from_json({**info.to_json(), "status": "running", "reason": None})
    engine = Engine(running, run_key=run_key, calibration=calibration)
    if baseline is not None:
        loss, data_id, lr = (baseline.scalar(name)[0] for name in ("loss", "data_id", "lr"))
        engine.feed_baseline(baseline.step, loss, data_id, lr)
    ever: dict[str, Finding] = {}
    for start in range(0, max(len(batch) for batch in ranks.values()), FEED_STEPS):
        for rank, batch in ranks.items():
            engine.feed(batch.rows(start, min(start + FEED_STEPS, len(batch))), rank=rank)
        for finding in alarms_of(engine.verdict(live=True).to_json()):
            ever.setdefault(str(finding["id"]), finding)
    engine.finish(status=info.status if info.status != "running" else "finished", reason=info.reason)
    verdict = engine.verdict()
    clues = {judged.id: judged.finding.clues for judged in verdict.findings}
    final: list[Finding] = [
        {**finding, "clues": clues[finding["id"]]} for finding in alarms_of(verdict.to_json())
    ]
    for finding in final:
        ever.setdefault(str(finding["id"]), finding)
    return final, list(ever.values())


def alarms_of(verdict: Mapping[str, Any]) -> list[Finding]:
    """The verdict's findings that are warning or critical and not replaced, the most important first."""
    found = [f for f in verdict["findings"] if f["severity"] in ALARMS and f["state"] != "replaced"]
    return sorted(found, key=lambda f: (-ALARMS.index(f["severity"]), -float(f["confidence"])))


def hypothesis(finding: Finding | None) -> tuple[str, float] | None:
    """The cause that an answer thinks likeliest, named or not, and its confidence."""
    if finding is None:
        return None
    if finding["cause"] == "undetermined" and finding.get("alternatives"):
        best = finding["alternatives"][0]
        return str(best["cause"]), float(best["confidence"])
    return str(finding["cause"]), float(finding["confidence"])


def judge_base(
    base: Base, run: StoredRun, *, reference: Batch | None, calibration: Calibration | None = None
) -> Judged:
    """A healthy run from its first step: every alarm is false."""
    batch, baseline = paired(base, run.batch, reference)
    final, ever = listen(run.info, {0: batch}, run_key=base.id, baseline=baseline, calibration=calibration)
    guess = hypothesis(final[0] if final else None)
    return Judged(
        run=base.id,
        case="healthy",
        cause="healthy",
        split=base.split,
        held_back=False,
        recipe=base.recipe,
        flavour=base.flavour.name,
        healthy_steps=len(batch),
        resampled_steps=0,
        false_alarms=tuple(ever),
        predicted=final[0]["cause"] if final else "healthy",
        family=final[0]["family"] if final else "none",
        cause_ok=not final,
        family_ok=not final,
        alarms=tuple(final),
        confidence=None if guess is None else guess[1],
        hypothesis_ok=None if guess is None else False,
    )


def judge_fork(
    base: Base,
    scenario: Scenario,
    run: StoredRun,
    *,
    prelude: Batch,
    pair: Batch,
    reference: Batch | None,
    calibration: Calibration | None = None,
) -> Judged:
    """A forked run behind the healthy steps before it.

    prelude: steps of the healthy run up to the fork.  pair: its steps from there on, on the same batches.
    """
    case = scenario.case
    whole = joined([prelude, run.batch])
    alike = not case.is_control or case.repeats  # else its data or schedule are not the reference's
    batch, baseline = paired(base, whole, reference if alike and not case.other_data else None)
    info, ranks = run.info, {0: batch}
    if case.ranks is not None:
        whole_ranks = ranks_of(batch, seed=base.seed, recipe=info.recipe)
        ranks = dict(case.ranks(whole_ranks, scenario.step, info.recipe))
        info = replace(info, ranks=len(ranks))
    key = f"{base.id}/{scenario.id}"
    final, ever = listen(info, ranks, run_key=key, baseline=baseline, calibration=calibration)
    began = scenario.step - (run.info.status == "crashed")  # a step that dies is never logged
    early = [f for f in ever if f["detected_step"] < began]
    answered = [f for f in final if f["detected_step"] >= began]
    first = answered[0] if answered else None
    predicted = str(first["cause"]) if first else "healthy"
    accepted = {case.cause, *case.also}
    differs = first_difference(run.batch, pair)
    visible = case.is_control or differs is not None
    if not visible and not case.edits and case.ranks is None and run.info.status != "crashed":
        accepted.add("healthy")
    guess = hypothesis(first)
    common = Judged(
        run=f"{base.id}/{scenario.id}",
        case=case.name,
        cause=case.cause,
        split=base.split,
        held_back=case.held_back,
        recipe=base.recipe,
        flavour=base.flavour.name,
        healthy_steps=0,
        resampled_steps=len(prelude),
        false_alarms=tuple(early),
        predicted=predicted,
        family=str(first["family"]) if first else "none",
        cause_ok=predicted in accepted,
        alarms=tuple(final),
        confidence=None if guess is None else guess[1],
        hypothesis_ok=None if guess is None else guess[0] in accepted,
        accepted=frozenset(accepted),
    )
    if case.is_control:
        wrong = [f for f in ever if f["detected_step"] >= scenario.step and f["cause"] not in accepted]
        right = replace(common, family_ok=predicted in accepted)
        if case.repeats:  # the healthy run's own steps once more
            again = len(prelude) + len(run.batch)
            return replace(right, resampled_steps=again, false_alarms=(*early, *wrong))
        return replace(right, healthy_steps=len(run.batch), resampled_steps=0, false_alarms=tuple(wrong))
    families = {FAMILY[name] for name in accepted}
    wanted = [f for f in answered if f["cause"] in accepted]
    named = wanted[0] if wanted else first
    silent = named is None and "healthy" in accepted
    high = max(scenario.step + case.slow, scenario.step if differs is None else differs + 1)
    hits = [int(f["detected_step"]) for f in (wanted or answered)]
    delay = min(hits) - scenario.step if hits else None
    moves = loss_moves(run.batch, pair)
    layers = fill(case.layers, layer=scenario.layer, depth=SHAPES[base.shape].layers)
    tensors = fill(case.tensors, layer=scenario.layer, depth=SHAPES[base.shape].layers)
    is_cause = named is not None and named["cause"] == case.cause
    layer, tensor = (named["layer"], named["tensor"]) if named is not None else (None, None)
    return replace(
        common,
        family_ok=predicted in accepted or FAMILY.get(predicted) in families,
        kind_ok=named["kind"] in case.kinds if case.kinds and named is not None and is_cause else None,
        abrupt=case.is_abrupt,
        visible=visible,
        detected=None if silent else delay is not None and scenario.step + delay <= high + case.within,
        onset_error=None if named is None else outside(int(named["onset_step"]), began, high),
        delay=delay,
        lead=None if delay is None else (math.inf if moves is None else moves - (scenario.step + delay)),
        layer_ok=same_layer(layer, layers) if layers and not silent else None,
        tensor_ok=tensor in tensors if tensors and not silent else None,
    )


def outside(step: int, low: int, high: int) -> int:
    """How far a step lies outside the window, negative before it."""
    return min(0, step - low) or max(0, step - high)


def same_layer(named: object, right: Sequence[str]) -> bool:
    """Whether a layer is one of the right ones or a part of one."""
    return isinstance(named, str) and any(named == r or named.startswith(r + ".") for r in right)


def paired(base: Base, batch: Batch, reference: Batch | None) -> tuple[Batch, Batch | None]:
    """The batch and its baseline run, by the way in which the run is paired with its reference."""
    if reference is None or base.pairing == "none":
        return batch, None
    if base.pairing == "baseline":
        return batch, reference
    loss, present = reference.scalar("loss")
    known = {s: float(v) for s, v, p in zip(reference.step.tolist(), loss, present, strict=True) if p}
    return with_scalar(batch, "ref_loss", known), None


def loss_moves(run: Batch, pair: Batch) -> int | None:
    """First step at which the paired losses differ by LOSS_MOVES or are not finite; None if there is none."""
    for row, loss, healthy in _paired(run, pair, "loss"):
        if not math.isfinite(loss) or abs(loss - healthy) >= LOSS_MOVES * abs(healthy):
            return row
    return None


def _paired(run: Batch, pair: Batch, name: str) -> Iterator[tuple[int, float, float]]:
    here, have = run.scalar(name)
    there, has = pair.scalar(name)
    rows = {s: k for k, s in enumerate(pair.step.tolist())}
    for k, step in enumerate(run.step.tolist()):
        other = rows.get(step)
        if other is not None and have[k] and has[other]:
            yield step, float(here[k]), float(there[other])


def first_difference(run: Batch, pair: Batch) -> int | None:
    """First step at which any statistic or scalar differs from the healthy pair's; None if none ever does."""
    steps = sorted(set(run.step.tolist()) & set(pair.step.tolist()))
    if not steps:
        return None
    a, b = (x.rows(int(np.searchsorted(x.step, steps[0])), len(x)) for x in (run, pair))
    count = len(steps)
    differs = np.zeros(count, bool)
    for name in set(a.stats) | set(b.stats):
        (va, pa), (vb, pb) = a.stat(name), b.stat(name)
        same = (pa[:count] == pb[:count]) & (
            (va[:count] == vb[:count]) | (np.isnan(va[:count]) & np.isnan(vb[:count]))
        )
        differs |= ~same.all(axis=1)
    for name in set(a.scalar_names) | set(b.scalar_names):
        (va64, pa64), (vb64, pb64) = a.scalar(name), b.scalar(name)
        x, y = va64[:count], vb64[:count]
        differs |= ~((pa64[:count] == pb64[:count]) & ((x == y) | (np.isnan(x) & np.isnan(y))))
    return steps[int(np.argmax(differs))] if differs.any() else None


FAMILY: Mapping[str, str] = {
    "healthy": "none",
    "invalid_input": "input_nan",
    "stale_scale_saturation": "scale_calibration_blowup",
    "amax_history_poisoning": "scale_calibration_blowup",
    "scale_state_fault": "scale_calibration_blowup",
    "quantization_drift": "slow_truncation_drift",
    "gradient_underflow": "slow_truncation_drift",
    "update_stagnation": "slow_truncation_drift",
    "accumulation_precision": "slow_truncation_drift",
    "activation_outlier_growth": "activation",
    "activation_overflow": "activation",
    "logit_growth": "activation",
    "bad_batch": "data",
    "data_shift": "data",
    "lr_divergence": "optimization",
    "optimizer_state_fault": "optimization",
    "master_weight_desync": "optimization",
    "loss_scale_collapse": "optimization",
    "dead_logits": "optimization",
    "overfitting": "optimization",
    "plateau": "optimization",
    "op_kernel_fault": "kernel",
    "comm_overlap_race": "kernel",
    "masked_nonfinite": "kernel",
    "rank_divergence": "hardware",
    "stall": "hardware",
    "undetermined": "undetermined",
}
"""Written out here and not imported: the suite holds the engine to the list of the verdict's document."""
