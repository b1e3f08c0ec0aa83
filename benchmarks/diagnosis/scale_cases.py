"""Cases of the FP8 scale and of precision that is lost bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.diagnosis.cases import Case, Inject, inside
from benchmarks.diagnosis.state_faults import GradientsInE5M2, HiddenInfinity


def at(fault: str, target: str = "", strength: str = "") -> Inject:
    """An injection at the step, into a target with ``{layer}`` and ``{block}``, with a strength."""

    def inject(step: int, layer: str) -> Sequence[str]:
        block = ".".join(layer.split(".")[:2])
        where = f":{target.format(layer=layer, block=block)}" if target else ""
        return [f"{fault}@{step}{where}{f'*{strength}' if strength else ''}"]

    return inject


def both(*parts: Inject) -> Inject:
    """Several injections at once."""
    return lambda step, layer: [text for part in parts for text in part(step, layer)]


def growing(target: str, rate: float, steps: int) -> Inject:
    """A tensor that grows at the cast by ``rate`` on each of so many steps."""
    return lambda step, layer: [
        text for age in range(steps) for text in at("stale_scale", target, f"{rate:g}")(step + age, layer)
    ]


IN, OUT, WEIGHT = "{layer}/input", "{layer}/grad_output", "{layer}/weight"

_STALE, _POISON, _STATE = "stale_scale_saturation", "amax_history_poisoning", "scale_state_fault"
_UNDERFLOW, _DRIFT, _MASKED = "gradient_underflow", "quantization_drift", "masked_nonfinite"
_FROZEN, _NONFINITE, _LOST = ("frozen",), ("nonfinite_scale",), ("lost_at_resume",)
_DEGENERATE = ("degenerate_amax", "nonfinite_scale")
_GROWS = ("activation_outlier_growth",)
_HIDDEN = (_STATE, _POISON, "activation_overflow", "op_kernel_fault")


def _stale(role: str, times: int, *, held_back: bool = False) -> Case:
    inject = at("stale_scale", "{layer}/" + role, str(times))
    case = Case(f"stale-{role}-x{times}", _STALE, on="delayed", held_back=held_back, inject=inject)
    return inside(case, role)


def _poison(role: str, times: str, *, held_back: bool = False) -> Case:
    inject = at("history_poison", "{layer}/" + role, times)
    case = Case(f"poison-{role}-{times}", _POISON, on="delayed", held_back=held_back, inject=inject)
    return inside(case, role)


def _state(
    name: str, kinds: tuple[str, ...], inject: Inject, *, held_back: bool = False, horizon: int = 60
) -> Case:
    return Case(name, _STATE, kinds, on="delayed", inject=inject, held_back=held_back, horizon=horizon)


STALE_SCALE: tuple[Case, ...] = (
    _stale("input", 16),
    _stale("input", 64),
    _stale("input", 8, held_back=True),
    _stale("input", 256, held_back=True),
    _stale("weight", 16),
    _stale("weight", 64, held_back=True),
    _stale("grad_output", 1000),  # a healthy gradient may jump 28 times its size in a step
    _stale("grad_output", 4096, held_back=True),
    Case("stale-all-inputs-x16", _STALE, on="delayed", inject=at("stale_scale", "*/input", "16")),
    Case("stale-all-inputs-x64", _STALE, on="delayed", inject=at("stale_scale", "*/input", "64"),
         held_back=True),
    Case("stale-nonsaturating-x16", _STALE, on="delayed", inject=at("stale_scale", IN, "16"),
         cast="nonsaturating", horizon=30),  # any layer: the small overflows of a healthy run turn to NaN too
    Case("growing-all-inputs-x1.5", _STALE, also=_GROWS, on="delayed", inject=growing("*/input", 1.5, 12),
         slow=4, within=5),
    Case("growing-all-inputs-x4", _STALE, also=_GROWS, on="delayed", inject=growing("*/input", 4, 8),
         slow=2, within=3, held_back=True),
)  # fmt: skip

POISON: tuple[Case, ...] = (
    _poison("input", "1e5"),
    _poison("input", "1e6"),
    _poison("input", "1e7", held_back=True),
    _poison("weight", "1e5"),
    _poison("weight", "1e6", held_back=True),
    _poison("grad_output", "1e9"),
    _poison("grad_output", "1e10", held_back=True),
    Case("poison-all-inputs-1e5", _POISON, on="delayed", inject=at("history_poison", "*/input", "1e5")),
    Case("poison-all-inputs-1e4", _POISON, on="delayed", inject=at("history_poison", "*/input", "1e4"),
         held_back=True),
    Case("poison-all-gradients-1e9", _POISON, also=(_UNDERFLOW,), on="delayed",
         inject=at("history_poison", "*/grad_output", "1e9")),
)  # fmt: skip

SCALE_STATE: tuple[Case, ...] = (
    Case("frozen-all", _STATE, _FROZEN, on="delayed", inject=at("scale_frozen"), slow=10, within=15,
         horizon=80),
    inside(Case("frozen-input", _STATE, _FROZEN, on="delayed", inject=at("scale_frozen", IN), slow=10,
                within=15, horizon=80), "input"),
    inside(_state("frozen-input-x16", _FROZEN,
                  both(at("scale_frozen", IN), at("stale_scale", IN, "16"))), "input"),
    _state("frozen-inputs-x4", _FROZEN,
           both(at("scale_frozen", "*/input"), at("stale_scale", "*/input", "4")), held_back=True),
    inside(_state("scale-nan", _NONFINITE, at("scale_nan", IN), horizon=30), "input"),
    inside(_state("scale-nan-weight", _NONFINITE, at("scale_nan", WEIGHT), horizon=30, held_back=True),
           "weight"),
    inside(_state("scale-inf", _NONFINITE, at("scale_inf", IN)), "input"),
    inside(_state("scale-inf-gradient", _NONFINITE, at("scale_inf", OUT), held_back=True), "grad_output"),
    Case("history-lost", _STATE, _LOST, on="delayed", inject=at("history_lost"), resumed=True),
    _state("history-lost-unmarked", _LOST, at("history_lost"), held_back=True),
    Case("history-lost-nonsaturating", _STATE, _LOST, on="delayed", inject=at("history_lost"), resumed=True,
         cast="nonsaturating", horizon=30),
    inside(_state("degenerate-amax", _DEGENERATE, at("degenerate_amax", IN)), "input"),
    inside(_state("degenerate-amax-weight", _DEGENERATE, at("degenerate_amax", WEIGHT), held_back=True),
           "weight"),
    inside(Case("hidden-inf", _MASKED, also=_HIDDEN, on="delayed",
                build=lambda p: HiddenInfinity(p.scene, step=p.step, tensor=f"{p.layer}/input", steps=1)),
           "input"),
    inside(Case("hidden-inf-lasting", _MASKED, also=_HIDDEN, on="delayed", held_back=True,
                build=lambda p: HiddenInfinity(p.scene, step=p.step, tensor=f"{p.layer}/input", steps=20)),
           "input"),
)  # fmt: skip

PRECISION: tuple[Case, ...] = (
    Case("gradient-scale-fixed-block", _UNDERFLOW, also=(_STATE,), on="fp8",
         inject=at("gradient_underflow", "{block}.*/grad_output")),
    Case("gradient-scale-fixed-all", _UNDERFLOW, also=(_STATE,), on="fp8", inject=at("gradient_underflow")),
    inside(Case("gradient-scale-fixed-one", _UNDERFLOW, also=(_STATE,), on="fp8", held_back=True,
                inject=at("gradient_underflow", OUT)), "grad_output"),
    Case("gradient-scale-falls-0.8", _UNDERFLOW, also=(_STATE,), on="delayed", slow=32, within=12,
         horizon=80, inject=at("gradient_scale_falls", "*/grad_output", "0.8")),
    Case("gradient-scale-falls-1.5", _UNDERFLOW, also=(_STATE,), on="delayed", slow=18, within=10,
         horizon=70, held_back=True, inject=at("gradient_scale_falls", "*/grad_output", "1.5")),
    Case("round-to-zero", _DRIFT, also=("undetermined",), on="fp8", slow=2, within=18, horizon=80,
         inject=at("round_to_zero")),
    Case("round-to-zero-inputs", _DRIFT, also=("undetermined",), on="fp8", slow=2, within=18, horizon=80,
         held_back=True, inject=at("round_to_zero", "*/input")),
    Case("bf16-weights", "update_stagnation", also=("undetermined",), when="late", slow=8, within=10,
         horizon=80, inject=at("bf16_weights")),
    Case("gradients-summed-in-e5m2", "accumulation_precision", also=("undetermined", _UNDERFLOW), slow=3,
         within=12, build=lambda p: GradientsInE5M2(p.training, step=p.step)),
)  # fmt: skip

SCALE_CASES = (*STALE_SCALE, *POISON, *SCALE_STATE, *PRECISION)
