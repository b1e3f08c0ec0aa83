"""FS302 quantization drift.

What it checks
    Whether the casts lose more precision than their format must, everywhere at once, and whether the loss
    parts from a baseline on the same batches.
Why it matters
    There is no event and no NaN: the run is simply worse, by an amount that noise hides for thousands of
    steps.
How it decides
    The signal-to-quantisation-noise ratio of nearly all inputs, weights and gradients drops in the same step
    and stays, while headroom and underflow do not move: rounding has changed (truncation instead of nearest,
    fewer mantissa bits). Or the paired loss difference to the baseline leaves its band; that alone is a
    note unless it is large and lasts. A constant offset means a biased forward, a widening gap an error that
    builds up in the
    state.
What to do
    Use round to nearest even; find the layer by switching layers to BF16 one after the other; block scaling.
Source
    Measured: truncating casts cost 6 dB in every tensor and a constant 0.0028 nats; pairing resolves 1e-4
    nats in 200 steps where the unpaired loss needs 3,000 times more.
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
    "Restore round to nearest even in every cast (and stochastic rounding for FP4 gradients "
    "only); if the casts are right, "
    "keep the layers with the lowest SQNR in BF16 or use a block recipe.",
    {
        "transformer_engine": "Float8BlockScaling() or MXFP8BlockScaling(); DisableFP8Layer "
        "(debug features) to find the layer; "
        "MMParams(use_split_accumulator=True) for fprop",
        "torchao": 'Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp"); use_fast_accum=False',
        "megatron": "--fp8-recipe blockwise; --first-last-layers-bf16; --accumulate-allreduce-grads-in-fp32",
        "deepspeed": "exclude the layer from the FP8 region",
    },
)


WARN_NATS = 0.08  # a gap alone proves no cause; healthy FP8 runs stay within 0.01 to 0.02 of BF16
WARN_ROWS = (
    6  # blocks of 8 pairs after the first 48: two runs from scratch leave a plateau at different times
)


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from the tensors and from the paired loss."""
    gaps = symptoms.of("paired_gap")
    for s in symptoms.of("sqnr_drop_all"):
        near = [g for g in gaps if s.onset - 16 <= g.onset]
        yield about(
            s,
            cause="quantization_drift",
            symptom="drift_up",
            severity="warning",
            confidence=0.92 if not near else 0.96,
            tensors=(),
            order=None,
            summary=f"All casts lose precision at once since step {s.onset:,}: {s.peak:.1f} dB "
            f"less in {len(s.tensors)} tensors "
            "with unchanged range. The rounding has changed.",
            evidence=[
                Evidence("sqnr_db below its level", s.peak_step, s.peak, "within 1", s.peak_tensor),
                *(
                    Evidence("loss minus baseline", g.peak_step, g.peak, f"near {g.expected or 0:.4f}")
                    for g in near[:1]
                ),
            ],
            remedy=REMEDY,
            decisive_test="Cast a tensor whose values lie between two codes and look at the "
            "signs of the errors: all toward zero "
            "proves truncation.",
        )
    for g in gaps:
        mean = g.extra.get("mean", g.peak)
        large = mean >= WARN_NATS and g.rows >= WARN_ROWS
        widening = g.extra.get("slope", 0.0) > 0.5 * mean
        yield about(
            g,
            cause="quantization_drift",
            symptom="drift_up",
            severity="warning" if large else "info",
            confidence=0.65,
            onset_last=g.detected,
            summary=f"The loss is {mean:.3g} nats above the baseline on the same batches since "
            f"about step {g.onset:,}"
            f"{', and the gap widens' if widening else ''}{'' if large else '; watch it'}.",
            evidence=[
                Evidence(
                    "loss minus baseline", g.peak_step, mean, f"0 within {g.extra.get('error', 0.0):.2g}"
                )
            ],
            remedy=REMEDY,
            decisive_test="Switch all FP8 layers to BF16 for 50 steps: if the gap closes it is "
            "precision, else look "
            "at the data and the optimizer.",
        )


RULE = Rule(
    "FS302",
    "quantization_drift",
    ("quantization_drift",),
    (Need("sqnr_db", ("input", "weight", "grad_output")),),
    check,
    needs_baseline=True,
)
