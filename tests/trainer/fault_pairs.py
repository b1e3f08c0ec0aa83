"""A faulty run beside its healthy twin."""

from __future__ import annotations

from floatscope_trainer.emulated.scaling import DelayedScalingState
from floatscope_trainer.training import Training
from tests.trainer.small_runs import equal, layer, scales, take, tiny_training, weights

AT = 6  # the window is full by then
TENSOR = "blocks.1.mlp.fc1/input"


def pair(injection: str, **config: object) -> tuple[Training, Training]:
    """(faulty, healthy), both trained up to the fault's step; until then they are the same to the bit."""
    faulty, healthy = tiny_training(injection, **config), tiny_training(**config)
    assert take(faulty, AT) == take(healthy, AT)
    assert equal(weights(faulty), weights(healthy))
    assert equal(scales(faulty), scales(healthy))
    return faulty, healthy


def slot(training: Training, tensor: str = TENSOR) -> tuple[DelayedScalingState, int]:
    name, _, role = tensor.rpartition("/")
    state = layer(training, name).fp8_meta["scaling_bwd" if role == "grad_output" else "scaling_fwd"]
    return state, {"input": 0, "weight": 1, "grad_output": 0}[role]


def scale(training: Training, tensor: str = TENSOR) -> float:
    state, column = slot(training, tensor)
    return float(state.scale[column].item())
