"""Cases of bad input, data, optimization, activations, kernels and the machine; and the controls."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.diagnosis.cases import Build, Case, inside
from benchmarks.diagnosis.data_faults import LabelNoise, OtherDomain, Permutation, RepeatedBatches
from benchmarks.diagnosis.scale_cases import at
from benchmarks.diagnosis.state_faults import (
    DeadLogits,
    Epsilon,
    GradientElement,
    GradientRace,
    GradientsTimes,
    GrowingChannel,
    GrowingInput,
    GrowingLogits,
    LearningRate,
    LossScale,
    MomentsLost,
    SecondMomentTimes,
    StaleMasterWeights,
)
from floatscope.protocol.batch import Batch

_FIRST_LAYERS = ("tok_emb", "blocks.0.attn.qkv")
_FIRST_TENSORS = ("tok_emb/output", "blocks.0.attn.qkv/input")
_OPTIMIZER, _KERNEL = "optimizer_state_fault", "op_kernel_fault"
_LEARNS_NOTHING = ("plateau", "undetermined", "update_stagnation")
_TILE = ("{layer}", "{next}")


def slower(batch: Batch, step: int, *, times: float) -> Batch:
    """Steps take ``times`` as long from the step on, as on a GPU that throttles."""
    seconds = batch.scalars.copy()
    column = batch.scalar_names.index("step_time_s")
    late = np.where(batch.step >= step, (times - 1) * seconds[:, column], 0.0)
    seconds[:, column] += late
    return replace(batch, scalars=seconds, time=batch.time + np.cumsum(late))


def waiting(batch: Batch, step: int, *, seconds: float) -> Batch:
    """The step waits for its data for so many seconds."""
    values = batch.scalars.copy()
    at_step = batch.step == step
    for name in ("step_time_s", "data_time_s"):
        values[at_step, batch.scalar_names.index(name)] += seconds
    return replace(batch, scalars=values, time=batch.time + np.where(batch.step >= step, seconds, 0.0))


def _noise(share: float) -> Build:
    return lambda p: LabelNoise(p.scene, step=p.step, share=share)


def _permuted(share: float) -> Build:
    return lambda p: Permutation(p.scene, step=p.step, share=share)


def _channel(rate: float) -> Build:
    return lambda p: GrowingChannel(p.scene, step=p.step, block=p.block, rate=rate)


def _logits(rate: float) -> Build:
    return lambda p: GrowingLogits(p.scene, step=p.step, block=p.block, rate=rate)


def _moment(factor: float) -> Build:
    return lambda p: SecondMomentTimes(p.training, step=p.step, factor=factor)


def _gradient(value: float, *, period: int | None = None) -> Build:
    return lambda p: GradientElement(p.scene, step=p.step, layer=p.layer, value=value, period=period)


def _rate(factor: float, *, ramp: int = 0) -> Build:
    return lambda p: LearningRate(step=p.step, factor=factor, ramp=ramp)


def _domain(share: float, *, ramp: int = 0, steps: int | None = None) -> Build:
    return lambda p: OtherDomain(p.scene, step=p.step, share=share, ramp=ramp, steps=steps)


INPUT: tuple[Case, ...] = (
    Case("nan-input", "invalid_input", ("nonfinite_values",), inject=at("nan_input"), horizon=30,
         layers=_FIRST_LAYERS, tensors=_FIRST_TENSORS),
    Case("inf-input", "invalid_input", ("nonfinite_values",), inject=at("inf_input"), horizon=30,
         layers=_FIRST_LAYERS, tensors=_FIRST_TENSORS),
    Case("labels-ignored", "invalid_input", ("empty_targets",), inject=at("labels_ignored"), horizon=40),
    Case("id-out-of-range", "invalid_input", ("id_out_of_range",), also=("undetermined",),
         inject=at("id_out_of_range"), horizon=3),
)  # fmt: skip

DATA: tuple[Case, ...] = (
    Case("bad-batch-1", "bad_batch", inject=at("bad_batch", strength="1")),
    Case("bad-batch-2", "bad_batch", inject=at("bad_batch", strength="2")),
    Case("bad-batch-4", "bad_batch", inject=at("bad_batch", strength="4"), held_back=True),
    Case("labels-random-0.3", "data_shift", build=_noise(0.3), within=8, horizon=80),
    Case("labels-random-0.6", "data_shift", build=_noise(0.6), within=8, horizon=80, held_back=True),
    Case("vocabulary-permuted-1", "data_shift", build=_permuted(1.0), within=8, horizon=80),
    Case("vocabulary-permuted-0.5", "data_shift", build=_permuted(0.5), within=8, horizon=80, held_back=True),
)

OPTIMIZATION: tuple[Case, ...] = (
    Case("lr-x20", "lr_divergence", when="early", inject=at("lr_spike", strength="20"), within=4),
    Case("lr-x50", "lr_divergence", when="early", inject=at("lr_spike", strength="50"), within=4,
         held_back=True),
    Case("second-moment-1e-4", _OPTIMIZER, build=_moment(1e-4)),
    Case("second-moment-1e-3", _OPTIMIZER, build=_moment(1e-3), held_back=True),
    Case("moments-lost", _OPTIMIZER, build=lambda p: MomentsLost(p.training, step=p.step), resumed=True),
    Case("epsilon-1e-2", _OPTIMIZER, also=_LEARNS_NOTHING, slow=4, within=8,
         build=lambda p: Epsilon(p.training, step=p.step, value=1e-2)),
    Case("stale-master-weights", "master_weight_desync", resumed=True, needs_old_weights=True, when="early",
         build=lambda p: StaleMasterWeights(p.training, step=p.step, weights=p.old_weights)),
    Case("fp16-overflow-always", "loss_scale_collapse", on="fp16", slow=4, within=6,
         build=_gradient(math.inf, period=1)),
    Case("fp16-overflow-every-2nd", "loss_scale_collapse", on="fp16", slow=4, within=12, held_back=True,
         build=_gradient(math.inf, period=2)),
    Case("fp16-loss-scale-2^-9", "gradient_underflow", also=("loss_scale_collapse",), on="fp16",
         build=lambda p: LossScale(p.training, step=p.step, value=2.0**-9)),
    Case("dead-logits", "dead_logits", horizon=40, build=lambda p: DeadLogits(p.scene, step=p.step)),
    Case("repeated-batches", "overfitting", also=("data_shift", "healthy"), slow=25, within=25, horizon=100,
         build=lambda p: RepeatedBatches(p.scene, step=p.step)),
    Case("learning-rate-0", "plateau", also=_LEARNS_NOTHING, slow=10, within=30, horizon=80,
         build=_rate(0.0)),
)  # fmt: skip

_CHANNEL_LAYERS = ("{block}.mlp.fc2", "{block}.mlp.fc1")
_CHANNEL_TENSORS = ("{block}.mlp.fc2/input", "{block}.mlp.fc1/weight")

ACTIVATION: tuple[Case, ...] = (
    Case("growing-channel-x1.2", "activation_outlier_growth", build=_channel(1.2), slow=25, within=13,
         horizon=70, parts=("mlp.fc2",), layers=_CHANNEL_LAYERS, tensors=_CHANNEL_TENSORS),
    Case("growing-channel-x1.3", "activation_outlier_growth", build=_channel(1.3), slow=25, within=13,
         horizon=70, parts=("mlp.fc2",), layers=_CHANNEL_LAYERS, tensors=_CHANNEL_TENSORS, held_back=True),
    Case("growing-logits-x1.05", "logit_growth", build=_logits(1.05), slow=25, within=13, parts=("attn.qkv",),
         layers=("{block}.attn.qkv", "{block}.attn")),
    Case("growing-logits-x1.08", "logit_growth", build=_logits(1.08), slow=25, within=13, parts=("attn.qkv",),
         layers=("{block}.attn.qkv", "{block}.attn"), held_back=True),
    inside(Case("fp16-activation-overflow", "activation_overflow", also=("activation_outlier_growth",),
                on="fp16", slow=14, within=4, horizon=50,
                build=lambda p: GrowingInput(p.scene, step=p.step, tensor=f"{p.layer}/input", rate=2.5)),
           "input"),
)  # fmt: skip

KERNEL: tuple[Case, ...] = (
    Case("zero-tile", _KERNEL, also=("undetermined", "healthy"), layers=_TILE, within=10,
         inject=at("wrong_op", "{layer}/output", "0")),
    Case("tile-x300", _KERNEL, also=("undetermined", "activation_outlier_growth"), layers=_TILE, within=5,
         inject=at("wrong_op", "{layer}/output", "300")),
    Case("tile-x30", _KERNEL, also=("undetermined", "activation_outlier_growth"), layers=_TILE, within=5,
         held_back=True, inject=at("wrong_op", "{layer}/output", "30")),
    inside(Case("bit-30-of-a-weight", _KERNEL, horizon=40, inject=at("bit_flip", "{layer}/weight", "30"),
                also=("amax_history_poisoning", "rank_divergence", "undetermined", "stale_scale_saturation")),
           "weight"),
    Case("nan-in-a-weight-gradient", _KERNEL, on="not_fp16", horizon=30,
         build=_gradient(math.nan)),  # any layer: clipping spreads it before the norms are taken
    Case("gradient-race", "comm_overlap_race", also=("undetermined", _KERNEL, "rank_divergence"), slow=4,
         within=26, horizon=70, build=lambda p: GradientRace(p.scene, step=p.step)),
)  # fmt: skip

MACHINE: tuple[Case, ...] = (
    Case("steps-x5-slower", "stall", slow=3, within=3, horizon=40,
         edits=(lambda batch, step: slower(batch, step, times=5),)),
    Case("steps-x3-slower", "stall", slow=3, within=6, horizon=40, held_back=True,
         edits=(lambda batch, step: slower(batch, step, times=3),)),
    Case("loader-waits-120-s", "stall", horizon=20,
         edits=(lambda batch, step: waiting(batch, step, seconds=120),)),
)  # fmt: skip

SPIKES = (0, 17, 18, 41)  # steps after the fork at which a control's gradients are large and clipped

CONTROLS: tuple[Case, ...] = (
    Case("clean-resume", "healthy", resumed=True, horizon=120),
    Case("clean-resume-other-data", "healthy", resumed=True, other_data=True, horizon=120),
    Case("hard-batch-half", "healthy", build=_domain(0.5, steps=1), horizon=80),
    Case("hard-batch-whole", "healthy", also=("bad_batch",), build=_domain(1.0, steps=1), horizon=80),
    Case("domain-change-slow", "healthy", also=("data_shift",), build=_domain(1.0, ramp=80), horizon=150),
    Case("domain-change-at-once", "healthy", also=("data_shift",), build=_domain(1.0), horizon=120),
    Case("gradient-spike-clipped", "healthy", horizon=80,
         build=lambda p: GradientsTimes(p.training, steps=[p.step + age for age in SPIKES], factor=20.0)),
    Case("lr-rewarmed-x3", "healthy", when="late", build=_rate(3.0, ramp=40), horizon=150),
    Case("lr-stepped-down-x0.1", "healthy", build=_rate(0.1), horizon=120),
)  # fmt: skip

OTHER_CASES = (*INPUT, *DATA, *OPTIMIZATION, *ACTIVATION, *KERNEL, *MACHINE)
