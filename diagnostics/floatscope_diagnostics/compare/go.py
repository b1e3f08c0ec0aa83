"""Go, no-go, not yet: one decision from the loss, the findings, the speed and the evaluations of two runs.

GO: the loss is not worse by the margin and does not grow past it, no critical finding is open, the lower
bound of speed or saving holds its limit, and nothing that was given speaks against it. NO-GO: any of these is
shown to fail. Else NOT YET, with the cheapest measurement that would decide. What is not known is no pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from floatscope_diagnostics.compare.drift import TIMES_AHEAD, drift_of
from floatscope_diagnostics.compare.equivalence import judge_loss, level_of
from floatscope_diagnostics.compare.eval_files import Task
from floatscope_diagnostics.compare.evals import compare_evals, evals_gate
from floatscope_diagnostics.compare.gate import Gate, GateName, Go, Refusal, Verdict
from floatscope_diagnostics.compare.health import Health
from floatscope_diagnostics.compare.health_gate import OpenFaults, health_gate, open_faults
from floatscope_diagnostics.compare.held_out import held_out_gate
from floatscope_diagnostics.compare.judge import Comparison
from floatscope_diagnostics.compare.limits import Limits
from floatscope_diagnostics.compare.loss_gates import drift_gate, loss_gate
from floatscope_diagnostics.compare.quality import beta_of, quality_of
from floatscope_diagnostics.compare.refusals import next_pair, refusals
from floatscope_diagnostics.compare.seeds import Seeds, seeds_of
from floatscope_diagnostics.compare.settled import Settled, settled
from floatscope_diagnostics.compare.speed_gates import cost_gate, speed_gate
from floatscope_diagnostics.compare.stability import stability_gate
from floatscope_diagnostics.compare.throughput import NoThroughput, throughput
from floatscope_diagnostics.compare.traces import tokens_a_step

BothHealth = tuple[Health | None, Health | None]
BothEvals = tuple[Mapping[str, Task], Mapping[str, Task]]
NO_HEALTH: BothHealth = (None, None)


def decide(
    c: Comparison,
    limits: Limits,
    *,
    health: BothHealth = NO_HEALTH,
    evals: BothEvals | None = None,
    more_pairs: Sequence[Comparison] = (),
    nulls: Sequence[Comparison] = (),
) -> Go:
    """The decision on a comparison.

    health: of run and baseline, None where not judged.  evals: tasks of both.  more_pairs: comparisons of the
    same recipe from other seeds.  nulls: of two baselines. Raises BadLimits for a margin in percent of a
    loss that gives none.
    """
    part = settled(c)
    margin, margin_from = limits.margin(_baseline_loss(c, part))
    planned_last, shown_plan = _planned(c, limits)
    loss = judge_loss(part, margin)
    seeds = seeds_of((c, *more_pairs), nulls)
    speed = throughput(c.run, c.base)
    beta = beta_of(c.base, part)
    quality = None
    why_no_quality = "the baseline's curve is too short to fit"
    if beta is not None and loss.band is not None:
        if beta.known:
            quality = quality_of(loss.band, beta, None if isinstance(speed, NoThroughput) else speed)
        else:
            why_no_quality = "the baseline's loss is not shown to fall on these steps"
    found_evals = None if evals is None else compare_evals(evals[0], evals[1], limits.eval_points)
    refused = refusals(c, speed, health)
    faults = open_faults(health[0], health[1], c.casts or ())
    gates: tuple[Gate, ...] = (
        loss_gate(c, part, loss, seeds),
        drift_gate(drift_of(part, margin, planned_last_step=planned_last), margin, planned_last, seeds),
        held_out_gate(c.run, c.base, part, margin),
        Gate("evals", "not_checked", "No evaluations were given (--evals).", unit="points")
        if found_evals is None
        else evals_gate(found_evals, limits.eval_points),
        stability_gate(c),
        health_gate(health[0], faults, casts_read=c.casts is not None),
        speed_gate(speed, limits),
        cost_gate(speed, quality, limits, why_no_quality),
    )
    rows = () if found_evals is None else found_evals.rows
    if any(r.blocks for r in refused):
        gates = tuple(gate if gate.name == "fp8_health" else _not_judged(gate) for gate in gates)
        rows = tuple(replace(row, state="not_checked") for row in rows)
        quality = None
    needed = _needed(limits, health[0])
    verdict = _verdict(gates, refused, needed)
    next_step, more = _next(verdict, gates, refused, needed)
    return Go(
        verdict=verdict,
        sentence=_sentence(verdict, for_these(c, part), gates, refused, needed, health[0], faults),
        gates=gates,
        limits=limits,
        shown_limits=_shown(
            limits, margin, margin_from, loss.confidence, shown_plan, loss.pairs_if_equal, seeds
        ),
        more_steps=more,
        next_step=next_step,
        quality=quality,
        evals=rows,
        refused=refused,
    )


def _not_judged(gate: Gate) -> Gate:
    """A gate that would hold the run against a baseline that it cannot be held against."""
    return Gate(
        gate.name, "not_checked", "Not judged: the two runs cannot be compared.", limit=gate.limit,
        unit=gate.unit,
    )  # fmt: skip


def _needed(limits: Limits, health: Health | None) -> frozenset[GateName]:
    """Gates that must pass for "go". Others must not fail, nor be undecided where they block."""
    names: set[GateName] = {"loss"}
    if health is None or health.tensors_seen:
        names.add("fp8_health")
    if limits.needs_speed:
        names.add("speed")
    if limits.needs_cost:
        names.add("cost")
    return frozenset(names)


def _keeps_open(gate: Gate, needed: frozenset[GateName]) -> bool:
    if gate.state == "undecided" and gate.blocks:
        return True
    return gate.name in needed and gate.state != "pass"


def _verdict(gates: Sequence[Gate], refused: Sequence[Refusal], needed: frozenset[GateName]) -> Verdict:
    if any(r.blocks for r in refused):
        return "not_yet"
    if any(gate.state == "fail" for gate in gates):
        return "no_go"
    return "not_yet" if any(_keeps_open(gate, needed) for gate in gates) else "go"


def _next(
    verdict: Verdict, gates: Sequence[Gate], refused: Sequence[Refusal], needed: frozenset[GateName]
) -> tuple[str, int | None]:
    """The cheapest next measurement: what is to be repaired, what is only to be read, what is to be trained;
    and the steps after which nothing is open any more, None unless each open gate is decided by steps.
    """
    if verdict != "not_yet":
        return "", 0
    blocking = [r for r in refused if r.blocks]
    if blocking:
        return next_pair([r.code for r in blocking]), None
    keeping = [g for g in gates if _keeps_open(g, needed)]
    open_gates = [g for g in keeping if g.next_step]
    order = ("fp8_health", "evals", "speed", "cost", "loss", "stability", "held_out", "drift")
    open_gates.sort(key=lambda g: (g.name != "fp8_health", g.state != "not_checked", order.index(g.name)))
    text = open_gates[0].next_step if open_gates else ""
    faults = any(g.name == "fp8_health" and g.state == "undecided" for g in keeping)
    for gate in open_gates[1:]:
        if gate.more_steps and not faults:  # steps repair nothing
            text += f" For {_OPEN[gate.name]}: {_small(gate.next_step)}"
    waits = [g.more_steps for g in keeping]
    known = [n for n in waits if n]
    return text, max(known) if known and len(known) == len(waits) else None


_FAILED = {
    "loss": "the loss is worse", "drift": "the gap grows", "held_out": "the held-out loss is worse",
    "evals": "evaluations are worse", "stability": "it is less stable",
    "fp8_health": "a critical finding is open", "speed": "it is not fast enough",
    "cost": "it does not save enough",
}  # fmt: skip
_OPEN = {
    "loss": "the loss", "drift": "whether the gap grows", "held_out": "the held-out loss",
    "evals": "the evaluations", "stability": "stability", "fp8_health": "FP8 health", "speed": "speed",
    "cost": "cost",
}  # fmt: skip


def _sentence(
    verdict: Verdict, length: str, gates: Sequence[Gate], refused: Sequence[Refusal],
    needed: frozenset[GateName], health: Health | None, faults: OpenFaults,
) -> str:  # fmt: skip
    if verdict == "go":
        pays = ", and it pays" if needed & {"speed", "cost"} else ""
        text = f"Go, for these {length}: not worse by the margin, no critical finding{pays}."
        if any(g.name == "drift" and g.state == "undecided" for g in gates):
            text += " A gap that grows slowly is not excluded."
        if health is not None and not health.tensors_seen:
            text += " Faults of the number formats were not looked for: the log has no statistics of tensors."
        if health is not None and health.warnings:
            text += f" Look at the open warning first: {health.warnings[0].rstrip('.')}."
        return text
    failed = [_FAILED[g.name] for g in gates if g.state == "fail"]
    if verdict == "no_go":
        return f"No-go, for these {length}: {_listed(failed)}."
    blocking = [r for r in refused if r.blocks]
    if blocking:
        return f"This pair cannot be decided. {blocking[0].sentence}"
    keeping = [g for g in gates if _keeps_open(g, needed)]
    faulty = any(g.name == "fp8_health" and g.state == "undecided" for g in keeping)
    rest = [_OPEN[g.name] for g in keeping if not (faulty and g.name == "fp8_health")]
    if not faulty:
        return f"Not yet: these {length} do not decide {_listed(rest)}."
    head = f"these {length} do not decide {_listed(rest)}, and" if rest else f"for these {length}"
    return f"Not yet: {head} a fault of the number formats is open: {faults.said[0].rstrip('.')}."


def for_these(c: Comparison, part: Settled) -> str:
    """How much the decision rests on: steps, and tokens where they are known."""
    steps = part.span if len(part.step) else int(c.pairs.step[-1] - c.pairs.step[0]) + 1
    tokens = tokens_a_step(c.base.traces)
    if tokens is None:
        return f"{steps:,} steps"
    return f"{steps:,} steps ({_short(steps * tokens)} tokens)"


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + (names[-1] if names else "anything")


def _baseline_loss(c: Comparison, part: Settled) -> float:
    first = part.step[0] if len(part.step) else c.base.step[0]
    return level_of(c.base.loss[(c.base.step >= first) & (c.base.step <= c.pairs.step[-1])])


def _planned(c: Comparison, limits: Limits) -> tuple[int | None, str]:
    """The last step of the training that is planned, and where that is from."""
    if limits.planned_steps is not None:
        return limits.planned_steps, "planned steps"
    if limits.planned_tokens is not None:
        each = tokens_a_step(c.base.traces)
        if each is not None:
            return math.ceil(min(limits.planned_tokens / each, 2.0**53)), "planned tokens"
        return None, "planned tokens, but no tokens are logged"
    return None, f"{TIMES_AHEAD:g} times the length compared"


def _shown(
    limits: Limits, margin: float, margin_from: str, confidence: float, plan: str, pairs: int | None,
    seeds: Seeds | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "margin_nats": margin,
        "margin_from": margin_from,
        "min_speedup": limits.min_speedup,
        "min_saving_pct": limits.min_saving_pct,
        "min_net_saving_pct": limits.min_net_saving_pct,
        "price_ratio": limits.price_ratio,
        "eval_points": limits.eval_points,
        "confidence": confidence,
        "planned_steps": limits.planned_steps,
        "planned_tokens": limits.planned_tokens,
        "carried_on_to": plan,
        "presets": list(limits.presets),
        "pairs_if_equal": pairs,
        "seed_means": None if seeds is None else list(seeds.means),
        "null_means": None if seeds is None else list(seeds.nulls),
    }
