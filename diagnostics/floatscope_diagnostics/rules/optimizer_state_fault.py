"""FS422 optimizer state fault.

What it checks
    Whether updates change size although the learning rate did not: moments lost, flushed to zero, stale, or
    an epsilon that swallows the gradient.
Why it matters
    A second moment of 0 makes updates thousands of times too long: the loss reaches 1e8 without a single NaN.
    Updates that are too short waste the budget silently.
How it decides
    The update norm, or update_ratio of nearly all weights, leaves its level by more than 2.5 times while the
    learning rate stays, gradients were normal before it, and the loss follows one step later. One single long
    step right after a resume is a master weight fault instead.
What excludes it
    A rate that moved; a loss that moved first (updates follow the gradients); gradients that underflow or
    are 0; updates that round away; a single long step (master weight desync).
Known false positives
    Changing beta, epsilon, weight decay or the set of trained parameters on purpose while training.
What to do
    Restore both moments at a resume; keep the second moment in BF16 or FP32; epsilon 1e-8 or less.
Source
    Measured: second moment in E4M3, even with a scale per tensor, makes updates 5,000 times larger and costs
    182 nats; E5M2 or BF16 cost nothing. Moments lost at a resume: updates 2.4 times larger.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.placing import observed
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

EXCLUDING = ("lr_jump", "lr_zero", "zero_grad_rise", "grad_norm_zero", "underflow", "no_labels", "unchanged")
SHORT_ROWS = 3  # updates that are too short for so long
FARTHEST_LOG2 = 1.5  # of the parameter norm: further than any other checkpoint of the run lies
LOSS_FIRST = ("loss_jump", "loss_nonfinite", "loss_constant")
REMEDY = Remedy(
    "Check the optimizer state: both moments restored, the second moment not in FP8 E4M3, epsilon at most "
    "1e-8. Go back to the last clean step.",
    {
        "transformer_engine": "FusedAdam(exp_avg_sq_dtype=torch.bfloat16 or torch.float32, eps=1e-8)",
        "torchao": "avoid AdamWFp8 for the second moment",
        "megatron": "--exp-avg-sq-dtype fp32; do not use --no-load-optim at a resume",
        "deepspeed": "load_optimizer_states=True in load_checkpoint",
    },
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per stretch of updates of the wrong size."""
    seen: list[int] = []
    for s in symptoms.of("norm_jump", "update_jump", "norm_fall", "update_fall"):
        if any(abs(s.onset - other) <= 64 for other in seen) or _excluded(s, symptoms):
            continue
        seen.append(s.onset)
        long = s.signal.endswith("jump")
        weights = symptoms.near("weights_jump", s.onset, after=1)
        once = long and s.rows < 2 and not s.open
        if once and not (weights and weights[0].peak > FARTHEST_LOG2):
            continue  # weights of another checkpoint: see master weight desync
        if not long and s.rows < SHORT_ROWS:
            continue
        loss = [
            x for n in ("loss_jump", "loss_shift") for x in symptoms.near(n, s.onset, before=12, after=12)
        ]
        harm = bool(loss or weights)
        rate_known = "lr" in run.scalars
        at = "at an unchanged learning rate: the optimizer state is wrong"
        if not rate_known:
            at = "and the learning rate is not logged: a step of its schedule, or a wrong optimizer state"
        yield about(
            s,
            cause="optimizer_state_fault",
            symptom="divergence" if long else "plateau",
            severity="info" if not rate_known and not harm else "critical" if long else "warning",
            confidence=0.9 if (long and harm and rate_known) else 0.78 if rate_known else 0.5,
            tensors=(),
            detected=None if long else proof_after(s, SHORT_ROWS, symptoms),
            summary=f"Updates are {_plainly(2**s.peak)} times too {'long' if long else 'short'} since step "
            f"{s.onset:,} {at}.",
            evidence=[
                Evidence(
                    "update_norm or update_ratio, log2 off its level", s.peak_step, s.peak, "within 1.3"
                ),
                *(
                    Evidence("param_norm, log2 change in one step", w.peak_step, w.peak, "below 0.02")
                    for w in weights[:1]
                ),
                *(observed(x) for x in loss[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Print the norms of exp_avg and exp_avg_sq before and after this step: one of "
            "them jumps or is 0.",
        )


def _plainly(times: float) -> str:
    """A factor as people write it: no exponent below a million."""
    return f"{times:,.0f}" if 100 <= times < 1e6 else f"{times:.3g}"


def _excluded(s: Symptom, symptoms: Symptoms) -> bool:
    if any(symptoms.near(name, s.onset, before=24, after=0) for name in LOSS_FIRST):
        return True  # the loss moved first: updates follow the gradients
    return any(symptoms.active(name, s.onset, slack=1) for name in EXCLUDING)


RULE = Rule(
    "FS422",
    "optimizer_state_fault",
    ("optimizer_state_fault",),
    (Need("update_norm"), Need("update_ratio", ("weight",)), Need("lr")),
    check,
)
