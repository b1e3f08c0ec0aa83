"""Gradients that are zero because of a defect of this machine's software, which only its preflight can tell.

NVFP4 on compute capability 12.x with Transformer Engine before the fix of stochastic rounding: every linear
layer's gradient is 0 from the first step on, the loss falls a little by what is not in FP4, and nothing ever
changes, so that no detector of changes sees it.
"""

from __future__ import annotations

from floatscope_diagnostics.rule import Evidence, Finding, Remedy, RunFacts, Symptoms, Window

MOSTLY_ZERO_PCT = 50.0
"""The linear layers hold most of a transformer's parameters; a healthy run has a few per cent of zeros."""
LEAST_ROWS = 5
"""Logged steps before it is said: the first ones may have a learning rate or a loss scale of their own."""
REMEDY = Remedy(
    "Turn stochastic rounding off in the NVFP4 recipe, or update Transformer Engine: versions before 2.19 "
    "write only zeros when they round gradients to FP4 stochastically on compute capability 12.x (TE#3281). "
    "Start again from the last checkpoint before it: the linear layers have not learned.",
    {
        "transformer_engine": "NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)",
        "torchao": "no setting: the defect is Transformer Engine's",
        "megatron": "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING=1 NVTE_NVFP4_DISABLE_RHT=1 in the environment",
        "deepspeed": "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING=1 NVTE_NVFP4_DISABLE_RHT=1 in the environment",
    },
)


def zeroed_gradients(
    symptoms: Symptoms, window: Window, run: RunFacts, *, remedy: Remedy, decisive_test: str
) -> Finding | None:
    """The finding, where preflight knows the defect and the gradients are zero now.

    remedy, decisive_test: of the rule that asks, whose page shows them.
    """
    if run.first_step is None or not run.machine.zeroes_fp4_gradients(run.recipe):
        return None
    if window.last_step - run.first_step + 1 < LEAST_ROWS * symptoms.stride:
        return None
    began = [s.onset for s in symptoms.of("zero_grad_rise", "grad_norm_zero", proven=False)]
    if began and min(began) > run.first_step + symptoms.stride:
        return None  # the defect is there from the first step on: something else made them zero
    zeros = window.last_scalars.get("zero_grad_pct")
    norm = window.last_scalars.get("grad_norm")
    if zeros is not None and zeros >= MOSTLY_ZERO_PCT:
        proof = Evidence("zero_grad_pct", window.last_step, zeros, "a few per cent")
        what = f"{zeros:.0f} % of the weight gradients are exactly 0"
    elif norm == 0.0:
        proof = Evidence("grad_norm", window.last_step, norm, "above 0")
        what = "The gradient norm is exactly 0"
    else:
        return None
    te = ".".join(map(str, run.machine.te))
    return Finding(
        cause="gradient_underflow",
        symptom="underflow",
        severity="critical",
        confidence=0.95,
        onset=run.first_step,
        detected=run.first_step,
        order="backward",
        summary=f"{what}, and preflight knows the defect that does this here: Transformer Engine {te} rounds "
        "NVFP4 gradients to zero on compute capability 12.x.",
        evidence=(proof,),
        remedy=remedy,
        decisive_test=decisive_test,
    )
