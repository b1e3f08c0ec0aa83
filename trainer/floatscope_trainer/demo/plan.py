"""Which runs the demo trains, and what a right diagnosis of each says. Everything is drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from floatscope_trainer.config import ModelConfig
from floatscope_trainer.precision import linear_names

STEPS = 300
FORK_STEP = 180
"""Where faulty runs leave the healthy one: past the learning-rate warm-up and the fastest learning."""
QUIET_STEPS = 40
"""From the fork to the earliest fault. The scale recipe's window is 32 passes: before it is full the
diagnosis cannot know which scale is right, and change detectors need a healthy level to compare with."""
FAULT_SPREAD = 20  # the fault's step is drawn from so many
ONSET_TOLERANCE = 2  # steps, for abrupt faults
SLOW_ONSET_STEPS = 60  # a fault that works slowly may be dated this late
HEALTHY_TWIN = "fp8-delayed"
BASELINE = "bf16"
_DRAW_STREAM = 0xDE  # keeps these draws apart from those of initialisation and data


@dataclass(frozen=True)
class Expected:
    """A right diagnosis.

    cause: None for a healthy run.  layers: any of them may be named first; empty if the fault is everywhere
    or nowhere.  onset: first and last step at which the onset may be put.
    """

    family: str | None = None
    cause: str | None = None
    layers: tuple[str, ...] = ()
    onset: tuple[int, int] | None = None


@dataclass(frozen=True)
class DemoRun:
    """One run.

    options: of `floatscope train`.  put_in: what is wrong with it, in a few words.  fault_step: None for a
    healthy run.  is_fork: whether it starts from the healthy run's checkpoint.  resumes: whether it stops at
    the fault's step and is resumed there.  baseline: name of the run it is compared with.
    """

    name: str
    options: tuple[str, ...]
    put_in: str
    expected: Expected
    fault_step: int | None = None
    is_fork: bool = False
    resumes: bool = False
    baseline: str | None = None


@dataclass(frozen=True)
class Draw:
    """What the seed gave for one fault: a step, a layer, a block."""

    step: int
    layer: str
    block: int


def plan(seed: int) -> tuple[DemoRun, ...]:
    """All runs of the demo, in the order in which they are started."""
    healthy = Expected()
    twin = ("--recipe", "delayed", "--checkpoint-every", str(FORK_STEP))
    return (
        DemoRun(BASELINE, ("--precision", "bf16"), "nothing", healthy),
        DemoRun(HEALTHY_TWIN, twin, "nothing", healthy, baseline=BASELINE),
        DemoRun("fp8-current", ("--recipe", "current"), "nothing", healthy, baseline=BASELINE),
        *faulty_runs(seed),
    )


def faulty_runs(seed: int) -> tuple[DemoRun, ...]:
    """One run a fault, each with a step and place of its own."""
    random = np.random.default_rng([seed, _DRAW_STREAM])
    layers = linear_names(ModelConfig().layers)

    def draw() -> Draw:
        return Draw(
            step=FORK_STEP + QUIET_STEPS + int(random.integers(FAULT_SPREAD)),
            layer=layers[int(random.integers(len(layers)))],
            block=int(random.integers(ModelConfig().layers)),
        )

    return (
        _bad_input(draw()),
        _no_labels(draw()),
        _stale_scale(draw()),
        _poison(draw()),
        _frozen_scale(draw()),
        _inf_scale(draw()),
        _lost_history(draw()),
        _grad_flush(draw()),
        _stagnation(draw()),
        _rtz_drift(draw()),
    )


def _bad_input(at: Draw) -> DemoRun:
    places = ("tok_emb", "blocks.0.attn.qkv")  # the embedding's output, or the first layer that reads it
    expected = Expected("input_nan", "invalid_input", places, _abrupt(at.step))
    return _fork("bad-input", "NaN in one token", at.step, expected, f"nan_input@{at.step}")


def _no_labels(at: Draw) -> DemoRun:
    expected = Expected("input_nan", "invalid_input", (), _abrupt(at.step))
    return _fork("no-labels", "all labels ignored", at.step, expected, f"labels_ignored@{at.step}")


def _stale_scale(at: Draw) -> DemoRun:
    expected = Expected("scale_calibration_blowup", "stale_scale_saturation", (at.layer,), _abrupt(at.step))
    injection = f"stale_scale@{at.step}:{at.layer}/input*16"
    return _fork("stale-scale", f"amax x16, {short(at.layer)}", at.step, expected, injection)


def _poison(at: Draw) -> DemoRun:
    expected = Expected("scale_calibration_blowup", "amax_history_poisoning", (at.layer,), _abrupt(at.step))
    injection = f"history_poison@{at.step}:{at.layer}/input*1e5"
    return _fork("poison", f"one outlier, {short(at.layer)}", at.step, expected, injection)


def _frozen_scale(at: Draw) -> DemoRun:
    """The scale stops while its tensor grows fourfold: one that stays as it is would need no other scale."""
    expected = Expected("scale_calibration_blowup", "scale_state_fault", (at.layer,), _abrupt(at.step))
    tensor = f"{at.layer}/input"
    stops, grows = f"scale_frozen@{at.step}:{tensor}", f"stale_scale@{at.step}:{tensor}*4"
    return _fork("frozen-scale", f"scale stops, {short(at.layer)}", at.step, expected, stops, grows)


def _inf_scale(at: Draw) -> DemoRun:
    expected = Expected("scale_calibration_blowup", "scale_state_fault", (at.layer,), _abrupt(at.step))
    injection = f"scale_inf@{at.step}:{at.layer}/input"
    return _fork("inf-scale", f"scale inf, {short(at.layer)}", at.step, expected, injection)


def _lost_history(at: Draw) -> DemoRun:
    """The run stops before the step and is resumed from its checkpoint, without the scale state."""
    expected = Expected("scale_calibration_blowup", "scale_state_fault", (), _abrupt(at.step))
    run = _fork("lost-history", "resume, no scales", at.step, expected, f"history_lost@{at.step}")
    return replace(run, resumes=True)


def _grad_flush(at: Draw) -> DemoRun:
    block = f"blocks.{at.block}."
    layers = tuple(name for name in linear_names(ModelConfig().layers) if name.startswith(block))
    expected = Expected("slow_truncation_drift", "gradient_underflow", layers, _abrupt(at.step))
    injection = f"gradient_underflow@{at.step}:{block}*/grad_output"
    return _fork("grad-flush", f"gradient scale, L{at.block}", at.step, expected, injection)


def _stagnation(at: Draw) -> DemoRun:
    expected = Expected("slow_truncation_drift", "update_stagnation", (), _slow(at.step))
    return _fork("stagnation", "bf16 weights", at.step, expected, f"bf16_weights@{at.step}")


def _rtz_drift(at: Draw) -> DemoRun:
    expected = Expected("slow_truncation_drift", "quantization_drift", (), _slow(at.step))
    return _fork("rtz-drift", "casts toward zero", at.step, expected, f"round_to_zero@{at.step}")


def _fork(name: str, put_in: str, step: int, expected: Expected, *injections: str) -> DemoRun:
    options = tuple(part for injection in injections for part in ("--inject", injection))
    return DemoRun(name, options, put_in, expected, fault_step=step, is_fork=True, baseline=HEALTHY_TWIN)


def _abrupt(step: int) -> tuple[int, int]:
    return step - ONSET_TOLERANCE, step + ONSET_TOLERANCE


def _slow(step: int) -> tuple[int, int]:
    return step - ONSET_TOLERANCE, step + SLOW_ONSET_STEPS


def short(layer: str) -> str:
    """A layer's name for a narrow column: blocks.1.mlp.fc2 becomes L1.fc2."""
    _, block, _, part = layer.split(".")
    return f"L{block}.{part}"


def checkpoint_dir(scratch: Path) -> Path:
    """Where the healthy run keeps its checkpoint for the forks."""
    return scratch / "checkpoints"


def fork_checkpoint(scratch: Path) -> Path:
    """The checkpoint that forks start from."""
    return checkpoint_dir(scratch) / f"step-{FORK_STEP:06d}.safetensors"
