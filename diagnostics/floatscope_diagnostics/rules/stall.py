"""FS502 stall.

What it checks
    Steps that take much longer than usual while all numbers are healthy.
Why it matters
    A throttled card or a waiting loader costs as much as a fault, and GPU utilisation hides it: it counts
    time in which any kernel ran.
How it decides
    Step time stays above 1.7 times its level for three steps. The data loader's wait and the card's throttle
    reasons tell where the time goes; without either it is only a note, since machines are shared, unless
    they take 3.5 times as long for 24 steps, or twice as long for 8 on a machine whose steps are even: 12 of
    their own standard deviations. One wait for data of 10 seconds and 20 steps counts as well.
What excludes it
    Steps that are slow for less than three in a row; a slow run without any reason in the log is a note.
Known false positives
    Evaluation or checkpointing inside the step, other jobs on a shared machine.
What to do
    Data: faster loader or more workers. Card: cooling, power cap, clocks, ECC; drain the node.
Source
    NVML clock event reasons; utilisation is the share of time with at least one kernel running.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import (
    Evidence,
    Finding,
    Need,
    Remedy,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
    proof_after,
)
from floatscope_diagnostics.thresholds import Threshold

WAITING = Threshold(
    "data_share",
    "of the step time",
    0.5,
    0.05,
    1.0,
    "Slow steps that wait longer than this for their data are a stall of the loader.",
)
NOTE_ROWS = 16
WAITED = Threshold(
    "wait_s",
    "s",
    10.0,
    10.0,
    86400.0,
    "A single step must wait so long for its data, and 20 times its usual length.",
)
# a shared machine is slow for a while, and by less
SLOW = Threshold(
    "slow_times",
    "times the usual step time",
    3.5,
    1.75,
    1000.0,
    "Slow steps without a known reason must be slower than this; on a machine whose steps are even, 2 "
    "times and 8 steps are enough.",
)
LASTING = Threshold(
    "slow_rows",
    "logged steps",
    24.0,
    3.0,
    1000000.0,
    "Slow steps without a known reason must last so long, on a machine whose steps are not even.",
)
STEADY_ROWS, STEADY_TIMES, STEADY_SIGMA = (
    8,
    2.0,
    12.0,
)  # a machine of its own is even to a few percent, a shared one to half
REMEDY = Remedy(
    "If data_time_s is high, speed up the loader; if the card throttles, check cooling, power "
    "cap and clocks, and drain the node.",
    {
        "transformer_engine": "no setting",
        "torchao": "no setting",
        "megatron": "--log-straggler; --num-workers",
        "deepspeed": '"wall_clock_breakdown": true',
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of slow steps."""
    watched = any(name.startswith("gpu_") for name in run.scalars)
    yield from _waits(symptoms, run)
    for s in symptoms.of("slow_steps"):
        lasting, proof_rows = False, None
        data = s.extra.get("data_time_s", 0.0)
        throttle = s.extra.get("gpu_throttle", 0.0)
        if data > WAITING.of(run) * s.value:
            kind, where = "data_loader", "the data loader waits"
        elif throttle > 0:
            kind, where = "throttle", "the card throttles"
        else:
            kind, where = "slow_rank", "the cause is not in the log"
            proof_rows = _proof_rows(s, run)
            lasting = proof_rows is not None and s.rows >= proof_rows
            if not lasting and (not watched or s.rows < NOTE_ROWS):
                continue  # a busy machine; nothing to act on
        yield about(
            s,
            cause="stall",
            kind=kind,
            symptom="stall",
            severity="warning" if kind != "slow_rank" or lasting else "info",
            confidence=0.9 if kind != "slow_rank" else 0.7,
            detected=proof_after(s, proof_rows, symptoms) if lasting and proof_rows else None,
            summary=f"Steps take {s.value / (s.expected or s.value):.1f} times as long since "
            f"step {s.onset:,}: {where}.",
            evidence=[
                Evidence("step_time_s", s.peak_step, s.peak, f"near {s.expected or 0:.3g}"),
                *([Evidence("gpu_throttle", s.onset, throttle, "0")] if throttle > 0 else []),
                *([Evidence("data_time_s", s.onset, data, "small")] if data > 0 else []),
            ],
            remedy=REMEDY,
            decisive_test="Run ten steps on another card with the same data: the same time means the loader.",
        )


def _proof_rows(s: Symptom, run: RunFacts) -> int | None:
    """Rows after which other jobs on the machine no longer explain it; None if they always may. sigma: of
    log2 of the step time.
    """
    times = s.value / (s.expected or s.value)
    if times > STEADY_TIMES and math.log2(times) > STEADY_SIGMA * s.extra.get("sigma", math.inf):
        return STEADY_ROWS
    return int(LASTING.of(run)) if times > SLOW.of(run) else None


def _waits(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    for s in symptoms.of("loader_wait"):
        if s.peak < WAITED.of(run):
            continue
        yield about(
            s,
            cause="stall",
            kind="data_loader",
            symptom="stall",
            severity="warning",
            confidence=0.9,
            summary=f"Step {s.onset:,} waited {s.peak:,.0f} s for its batch; a step takes "
            f"{s.expected or 0:.3g} s.",
            evidence=[Evidence("data_time_s", s.peak_step, s.peak, "small")],
            remedy=REMEDY,
            decisive_test="Iterate the data loader alone over the same batches: it waits again.",
        )


RULE = Rule(
    "FS502",
    "stall",
    ("stall",),
    (Need("step_time_s"), Need("data_time_s"), Need("gpu_throttle")),
    check,
    thresholds=(
        WAITING,
        WAITED,
        SLOW,
        LASTING,
    ),
)
