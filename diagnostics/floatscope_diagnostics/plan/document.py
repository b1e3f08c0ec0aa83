"""A plan as the JSON document of ``--json``, schema floatscope.plan/1."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from floatscope_diagnostics.plan.cost import REMINDER, Interval
from floatscope_diagnostics.plan.memory import REST, UPPER
from floatscope_diagnostics.plan.planning import LinearVerdict, Plan, RecipePlan

SCHEMA = "floatscope.plan/1"


def document(plan: Plan) -> dict[str, Any]:
    """All of the plan. Memory in bytes, times in seconds, cost in the currency of the price."""
    setup, best = plan.setup, plan.best
    return {
        "schema": SCHEMA,
        "model": {
            "name": plan.shape.name,
            "source": plan.shape.source,
            "parameters": plan.shape.parameters,
            "notes": list(plan.shape.notes),
        },
        "gpu": {**_gpu(plan), "count": setup.gpus},
        "setup": {
            **asdict(setup),
            "tokens_per_step": setup.tokens_per_step,
            "global_batch": setup.micro_batch * setup.accumulate * setup.parallelism.data,
        },
        "rates": asdict(plan.rates),
        "wish": asdict(plan.wish),
        "best": None if best is None else best.key,
        "recipes": [_recipe(one) for one in plan.plans],
        "not_on_this_gpu": [{"recipe": label, "why": why} for label, why in plan.refused],
        "warnings": list(plan.warnings),
        "memory_upper_factor": UPPER,
        "memory_rest": REST,
        "cost_rule": REMINDER,
    }


def _gpu(plan: Plan) -> dict[str, Any]:
    values = asdict(plan.gpu)
    values["capability"] = None if plan.gpu.capability is None else list(plan.gpu.capability)
    return values


def _recipe(one: RecipePlan) -> dict[str, Any]:
    found = one.memory
    return {
        "recipe": one.key,
        "label": one.label,
        "memory": {
            "parts": [asdict(part) for part in found.parts],
            "estimate_bytes": found.estimate,
            "lower_bytes": found.lower,
            "upper_bytes": found.upper,
            "capacity_bytes": found.capacity,
            "fits": found.fits,
            "pipeline_stage": found.stage,
        },
        "largest_micro_batch": one.largest_micro_batch,
        "step_time_s": _interval(one.step_s),
        "step_parts_s": one.time.parts,
        "dominates": one.time.dominates,
        "tokens_per_s_per_gpu": one.time.tokens_per_step / one.step_s.value / one.time.gpus,
        "mfu": one.mfu,
        "speedup": _interval(one.speedup),
        "pays": None if one.key == "bf16" else one.pays,
        "linear_speedup": one.linear_speedup,
        "linear_share": one.linear_share,
        "saving_pct": _interval(one.saving_pct),
        "cost_per_million_tokens": _interval(one.cost_per_million),
        "run_hours": _interval(one.run_hours),
        "run_cost": _interval(one.run_cost),
        "break_even_k_n": one.break_even,
        "linears": [_linear(linear) for linear in one.linears],
        "notes": list(one.notes),
    }


def _interval(value: Interval | None) -> dict[str, float] | None:
    return None if value is None else asdict(value)


def _linear(found: LinearVerdict) -> dict[str, Any]:
    gemm = found.time.gemm
    return {
        "name": gemm.name,
        "kind": gemm.kind,
        "count": gemm.count,
        "k": gemm.k,
        "n": gemm.n,
        "tokens": gemm.tokens,
        "converted": found.time.converted,
        "misfit": found.time.misfit,
        "speedup": found.time.speedup,
        "pays": found.time.pays,
        "pays_from_tokens": found.from_tokens,
        "share_pct": found.share_pct,
    }
