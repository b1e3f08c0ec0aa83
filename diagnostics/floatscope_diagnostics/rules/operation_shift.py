"""FS604 operation shift: another result without NaN.

What it checks
    Whether one operation computes something else from one step on.
Why it matters
    A wrong tile without NaN costs nothing in one layer and the whole run in another, and every check for NaN
    is green.
How it decides
    A step that stays. The gradients of all layers become smaller together while the loss goes up: a residual
    stream that became too large divides them. Or the size of one layer's input steps while everything in
    front of it is as before; exact zeros appear in it; the gradient at one layer leaps out of line with all
    others. Or the loss steps up on training and held-out data alike, or parts from a baseline on the same
    batches together with one of these. The operation in front of the first input that changed, in forward
    order, is named.
What excludes it
    A rate, update, parameter or scale that moved first; rounding that changed everywhere; gradients that grow
    with the loss while the held-out loss does not step (data shift); an effect that ends when a delayed scale
    has followed (stale scale saturation); growth bit by bit (activation outlier growth, attention logit
    growth).
Known false positives
    A change of the model on purpose (a dropout, a frozen layer or another attention backend switched on while
    training) looks the same. Of a residual connection the block can be named, not always the layer.
What to do
    Run that one operation in BF16 or with another backend, and report the shape; block the checkpoint written
    after it.
Source
    Public reports: TE#2905, TE#2589, torchtitan#1056. Measured: a tile of a layer's output times 8 to 1,000
    makes the gradients of the whole network 4 to 250 times smaller at once; another domain, a permuted
    vocabulary or random labels make them larger.
"""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.operation_remedy import operation_remedy
from floatscope_diagnostics.placing import (
    abrupt,
    effect_outlasts,
    first_block,
    first_step_forward,
    held_out_step,
    loss_stepped_at,
    observed,
    producer_of,
)
from floatscope_diagnostics.rule import (
    Evidence,
    Finding,
    Need,
    Rule,
    RunFacts,
    Symptoms,
    Window,
    about,
)

MOVERS = (
    "lr_jump", "norm_jump", "update_jump", "weights_jump", "clipping", "scale_high", "scale_low",
    "scale_reset", "scale_nonfinite", "sqnr_drop_all", "underflow", "unchanged", "loss_constant",
    "grad_norm_zero", "amax_trend",
)  # fmt: skip
STEADY = (
    "lr_jump", "norm_jump", "update_jump", "weights_jump", "resumed", "scale_high", "scale_low",
    "scale_reset", "scale_nonfinite", "sqnr_drop_all", "loss_constant", "grad_norm_zero",
    "no_labels", "nonfinite_forward", "nonfinite_weight",
)  # fmt: skip
FLUSHED = ("underflow", "headroom_up", "amax_zero")  # zeros in one gradient make those behind it small
FALL_LOG2 = -1.2  # all gradients together; data that is harder makes them larger
LEAP_LOG2 = 2.0  # of an input's size in one step, with nothing in front of it that moved
# No tensor of a healthy operation becomes a hundred times larger from one step to the next.
FAR_LEAP_LOG2 = 6.5
FEW_LAYERS = 2
OUTLIER_LOG2 = 2.0  # amax further up than rms: a few elements; a tile moves both alike, measured within 0.9
INNER_LEAP_LOG2 = 1.0  # behind a first block that stays: other data changes the first block as well


def check(symptoms: Symptoms, window: Window, run: RunFacts) -> Iterator[Finding]:
    """Findings from the loss, from all gradients, and from single tensors."""
    yield from _shifts(symptoms, run)
    yield from _breaks(symptoms, run)
    yield from _gradients_fall(symptoms, run)
    yield from _leaps(symptoms, run)
    yield from _zeros(symptoms, run)
    yield from _apart(symptoms, run)


def _shifts(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The loss steps up together with the held-out loss on a fixed batch: it is not the data."""
    for s in symptoms.of("loss_shift"):
        held_out = held_out_step(s.onset, s.value, symptoms)
        if held_out is None or any(symptoms.near(name, s.onset, before=24, after=8) for name in MOVERS):
            continue
        where = first_step_forward(s.onset, symptoms, run, rank=s.rank)
        fell = any(
            g.extra.get("log2", 0.0) <= FALL_LOG2 for g in symptoms.near("gradients_step", s.onset, after=8)
        )
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=0.8,
            onset=loss_stepped_at(s, symptoms),
            onset_last=s.detected,
            detected=held_out.detected,
            tensors=_located(where, run) if fell else () if where is None else (where,),
            order="forward" if where is not None or fell else None,
            summary=f"The loss stepped up by {s.peak:.2f} nats about step {s.onset:,} on training and "
            f"held-out data alike, with no precision fault: {_operation(where)} computes something else.",
            evidence=[
                Evidence("loss above its level", s.peak_step, s.peak, f"{s.expected or 0:.3g}"),
                Evidence("eval_loss above its level", held_out.peak_step, held_out.peak, "unchanged"),
            ],
            remedy=operation_remedy(run),
            decisive_test="Compare each layer's output with an FP32 reference on one batch: the "
            "first that differs is it.",
        )


def _breaks(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The run parts from its baseline from one step to the next and no tensor, scale or update moved."""
    for s in symptoms.of("paired_break"):
        if any(symptoms.near(name, s.onset, before=4, after=2) for name in MOVERS):
            continue
        where = first_step_forward(s.onset, symptoms, run, rank=s.rank)
        held_out = held_out_step(s.onset, s.value, symptoms)
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning" if where is not None or held_out is not None else "info",
            confidence=0.8 if where is not None or held_out is not None else 0.5,
            tensors=() if where is None else (where,),
            order=None if where is None else "forward",
            summary="The loss parts from the baseline on the same batches from one step to the "
            f"next: {s.value:.3f} nats at step {s.onset:,}, with no precision fault. "
            f"{_operation(where).capitalize()} computes something else.",
            evidence=[Evidence("loss minus baseline", s.onset, s.value, f"{s.expected or 0:.4f} as before")],
            remedy=operation_remedy(run),
            decisive_test="Compare each layer's output of both runs on one batch: the first that differs is "
            "it.",
        )


def _gradients_fall(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """All gradients become smaller from one step to the next and stay so: the forward has changed."""
    if "fp16" in run.formats.values() and "loss_scale" not in run.scalars:
        return  # gradients are as large as the unknown loss scale makes them
    for g in symptoms.of("gradients_step"):
        if g.extra.get("log2", 0.0) > FALL_LOG2:
            continue
        if any(symptoms.near(name, g.onset, before=16, after=2) for name in STEADY):
            continue
        if any(symptoms.near(name, g.onset, before=16, after=-1) for name in FLUSHED):
            continue  # in the same step an idle scale and zeros follow from gradients that are smaller
        loss = [x for n in ("loss_jump", "loss_shift") for x in symptoms.near(n, g.onset, before=8, after=12)]
        if any(
            (x.detected or x.onset) < g.onset - 4 * symptoms.stride <= x.last
            for x in symptoms.of("loss_climb")
        ):
            continue  # a run that diverges for some time: gradients follow
        where = first_step_forward(g.onset, symptoms, run, rank=g.rank)
        yield about(
            g,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=0.9 if loss and where else 0.85 if loss else 0.75 if where else 0.5,
            tensors=_located(where, run),
            order="forward",
            lasting=True,
            summary=f"At step {g.onset:,} the gradients of all layers became {2 ** -g.extra['log2']:,.3g} "
            f"times smaller{' while the loss went up' if loss else ''}, with the same data, rate and scales: "
            f"{_operation(where)} computes something else.",
            evidence=[
                Evidence(
                    "log2 rms of all grad_output, median", g.onset, g.extra["log2"], "within 1 of its level"
                ),
                *(observed(x) for x in loss[:1]),
            ],
            remedy=operation_remedy(run),
            decisive_test="Compare each layer's output with an FP32 reference on one batch: the "
            "first that differs is it.",
        )


def _leaps(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The size of one layer's input leaps and stays, with everything in front of it as before."""
    for s in symptoms.of("rms_step"):
        layers = {t.rpartition("/")[0] for t in s.first}
        limit = INNER_LEAP_LOG2 if _inside_only(s, symptoms, run) else LEAP_LOG2
        if len(layers) > FEW_LAYERS or s.value < limit or s.tensor is None:
            continue
        if not abrupt(s) or any(symptoms.near(name, s.onset, before=16, after=2) for name in STEADY):
            continue
        clips = symptoms.near("clipping", s.onset, before=1, after=1)
        if clips and s.value < FAR_LEAP_LOG2 and not effect_outlasts(s, symptoms):
            continue  # a scale that lags behind explains all of it, see stale scale saturation
        grown = [
            g
            for g in symptoms.near("amax_trend", s.onset, before=32, after=2)
            if set(g.tensors) & set(s.first)
        ]
        where = first_step_forward(s.onset, symptoms, run, rank=s.rank)
        corrupted = [
            j for j in symptoms.near("amax_jump", s.onset, before=1) if (j.tensor or "").endswith("/weight")
        ]
        outliers = [
            k
            for k in symptoms.near("amax_jump", s.onset, before=1, after=1)
            if set(k.first) & set(s.first) and k.value > s.value + OUTLIER_LOG2
        ]
        if where is None or grown or corrupted or outliers:
            continue  # a weight that changed, or a few elements: not a whole tile
        sure = s.value >= FAR_LEAP_LOG2 or effect_outlasts(s, symptoms) or limit < LEAP_LOG2
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning" if sure or run.recipe_name != "fp8_delayed_scaling" else "info",
            confidence=0.95 if sure else 0.7,
            tensors=(where,),
            order="forward",
            summary=f"{s.tensor} is {2**s.value:,.3g} times its size from step {s.onset:,} on and everything "
            f"in front of it is as before: {_operation(where)} computes something else.",
            evidence=[Evidence("log2 rms against its level", s.onset, s.value, "within 0.5", s.tensor)],
            remedy=operation_remedy(run),
            decisive_test="Recompute the operation in front of this tensor in FP32 from its saved inputs: "
            "another result proves the kernel.",
        )


def _inside_only(s: Symptom, symptoms: Symptoms, run: RunFacts) -> bool:
    """Whether the loss stepped in the same row, and the first block of the network did not change."""
    layer = (s.tensor or "").rpartition("/")[0]
    jumps = [j for n in ("loss_jump", "loss_shift") for j in symptoms.near(n, s.onset, before=3, after=2)]
    return bool(jumps) and not first_block(layer, run)


def _zeros(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """A share of exact zeros appears in front of a cast that had none: a tile is left out."""
    for z in symptoms.of("zeros_appear"):
        layers = {t.rpartition("/")[0] for t in z.first}
        if len(layers) > FEW_LAYERS or z.tensor is None:
            continue
        if any(symptoms.near(name, z.onset, before=16, after=2) for name in (*STEADY, *FLUSHED, "clipping")):
            continue
        forward = next((t for t in z.first if not t.endswith("/grad_output")), None)
        where = None if forward is None else producer_of(forward, run)
        place = z.tensor if where is None else f"{where}/output"
        yield about(
            z,
            cause="op_kernel_fault",
            symptom="underflow",
            severity="warning",
            confidence=0.85,
            tensors=(place,),
            order="backward" if forward is None else "forward",
            lasting=True,
            summary=f"From step {z.onset:,} on {z.value:.0f} % of {forward or z.tensor} are exactly 0 before "
            f"the cast, without an underflow in front of it: {_operation(place)} leaves a tile out.",
            evidence=[
                Evidence("zero_pct above its level", z.onset, z.value, "within 4", forward or z.tensor)
            ],
            remedy=operation_remedy(run),
            decisive_test="Recompute the operation in front of this tensor in FP32 from its saved inputs: "
            "numbers where the zeros are prove the kernel.",
        )


def _apart(symptoms: Symptoms, run: RunFacts) -> Iterator[Finding]:
    """The gradient that enters one layer leaps out of line with all others from one step to the next."""
    for s in symptoms.of("gradient_apart", "underflow_step"):
        layers = {t.rpartition("/")[0] for t in s.first}
        last = run.forward_order[-1].rpartition("/")[0] if run.forward_order else ""
        if len(layers) > FEW_LAYERS or s.tensor is None or not abrupt(s) or last in layers:
            continue  # the loss's own gradient parts from the rest with the data
        near = (*STEADY, "clipping", "clipping_grad", "amax_trend", "nonfinite_grad")
        if any(symptoms.near(name, s.onset, before=16, after=1) for name in near):
            continue
        if any(symptoms.near(name, s.onset, before=16, after=-1) for name in FLUSHED):
            continue
        yield about(
            s,
            cause="op_kernel_fault",
            symptom="spike_not_recovered",
            severity="warning",
            confidence=0.7 if s.signal == "gradient_apart" else 0.65,
            order="backward",
            summary=f"From step {s.onset:,} on the gradient at {s.tensor} is {2**s.value:,.3g} times out of "
            "line with those of all other layers: the operation around it computes something else.",
            evidence=[
                Evidence("log2 rms against the median", s.onset, s.value, "within 1 of its level", s.tensor)
            ],
            remedy=operation_remedy(run),
            decisive_test="Recompute this layer and the operation behind it in FP32, forward and backward: "
            "another result proves the kernel.",
        )


def _located(where: str | None, run: RunFacts) -> tuple[str, ...]:
    """The place found; else, since no input changed, the layer that only the head reads."""
    if where is not None:
        return (where,)
    if ("input", "rms") not in run.stats:
        return ()  # largest elements scatter too much to say that no input changed
    layers = list(dict.fromkeys(t.rpartition("/")[0] for t in run.forward_order))
    inner = [layer for layer in layers if layer != "head" and not layer.endswith(("lm_head", "output_layer"))]
    return (f"{inner[-1]}/output",) if inner else ()


def _operation(where: str | None) -> str:
    return "an operation" if where is None else f"the operation of {where.rpartition('/')[0]}"


RULE = Rule(
    "FS604",
    "operation_shift",
    ("op_kernel_fault",),
    (Need("rms", ("input", "output")), Need("rms", ("grad_output",)), Need("loss"), Need("eval_loss")),
    check,
)
