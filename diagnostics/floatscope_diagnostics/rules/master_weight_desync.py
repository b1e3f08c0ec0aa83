"""FS423 master weight desync.

What it checks
    Whether one optimizer step replaced the weights: the update is far longer than the learning rate allows,
    once.
Why it matters
    After a resume or a conversion, master weights that are not those of the model overwrite it in the first
    update; the model falls back by everything learned in between.
How it decides
    A single step whose update norm jumps out of its level by more than 2.5 times and moves the parameter
    norm, with a normal gradient and an unchanged learning rate; the next updates have their usual size, and
    the loss jumps one step later.
What excludes it
    A rate that jumped; updates that stay long (optimizer state fault); gradients that were not normal.
Known false positives
    Weights averaged or restored on purpose in the middle of a run.
What to do
    Load master weights and model from the same checkpoint, or rebuild the masters from the model before the
    first step.
Source
    Public reports: gpt-neox#947, DeepSpeed#3742. Measured: update norm x90 for one step, loss +2.1 nats one
    step later.
"""

from __future__ import annotations

from collections.abc import Iterator

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
)

REMEDY = Remedy(
    "Resume again with the master weights of the same checkpoint, or copy the model's weights into the "
    "masters before the first update.",
    {
        "transformer_engine": "FusedAdam.load_state_dict with master_param; check "
        "get_unscaled_state after loading",
        "megatron": "load the distributed optimizer's main params; without --no-load-optim, or use "
        "optimizer.reload_model_params()",
        "torchao": "rebuild the optimizer after loading the model",
        "deepspeed": 'load_from_fp32_weights in "zero_optimization", or refresh_fp32_params() after loading',
    },
)

# Weights of another checkpoint are of a similar size; further off the optimizer state is wrong.
FARTHEST_LOG2 = 1.5


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """One finding per single impossible update."""
    for s in symptoms.of("norm_jump"):
        weights = symptoms.near("weights_jump", s.onset, after=1)  # the norm may be taken before the update
        if s.rows > 1 or not weights or symptoms.near("lr_jump", s.onset, before=1):
            continue
        if symptoms.near("loss_jump", s.onset, before=8, after=0) or weights[0].peak > FARTHEST_LOG2:
            continue
        resumed = symptoms.near("resumed", s.onset, before=4)
        loss = symptoms.near("loss_jump", s.onset, after=3)
        yield about(
            s,
            cause="master_weight_desync",
            symptom="restart" if resumed else "spike_not_recovered",
            severity="critical",
            confidence=0.93 if resumed else 0.75,
            tensors=(),
            lasting=True,
            summary=f"The update of step {s.onset:,} is {2**s.peak:,.3g} times too long and replaced the "
            f"weights{' right after the resume' if resumed else ''}: the master weights are not those of the "
            "model.",
            evidence=[
                Evidence("update_norm, log2 above its level", s.onset, s.peak, "within 1.3"),
                Evidence(
                    "param_norm, log2 change in one step", weights[0].onset, weights[0].peak, "below 0.02"
                ),
                *(Evidence("loss above its level", x.peak_step, x.peak, "unchanged") for x in loss[:1]),
            ],
            remedy=REMEDY,
            decisive_test="Before the first update after loading, compare the master weights "
            "with the model's: they differ.",
        )


RULE = Rule(
    "FS423",
    "master_weight_desync",
    ("master_weight_desync",),
    (Need("update_norm"), Need("param_norm")),
    check,
)
