"""From an injection to a fault aimed at its tensors, and the text of `--inject list`."""

from __future__ import annotations

from fnmatch import fnmatchcase

from floatscope_trainer.emulated.quantizers import Quantizer
from floatscope_trainer.faults.fault import Fault, Scene, scale_slot
from floatscope_trainer.faults.injection import Injection, InjectionError
from floatscope_trainer.faults.kinds import FAULTS, REACH_TEXT, FaultKind, Reach


def make_fault(injection: Injection, scene: Scene, *, first_step: int, steps: int) -> Fault:
    """The fault, aimed at its tensors.  first_step: of this process.  steps: of the run. Raises
    InjectionError.
    """
    kind = _kind(injection)
    what = f"--inject {injection.fault}"
    if not first_step <= injection.step < steps:
        raise InjectionError(
            f"{what}: step {injection.step} is never trained, "
            f"this run trains steps {first_step} to {steps - 1}"
        )
    _check_strength(kind, injection)
    if kind.reach == "none":
        if injection.tensor is not None:
            raise InjectionError(f"{what}: it acts on no tensor, leave out :{injection.tensor}")
        return kind.make(scene, injection, ())
    pattern = injection.tensor or kind.default_tensor
    candidates = reachable(kind.reach, scene)
    if pattern is None:
        example = candidates[0] if candidates else "blocks.0.mlp.fc1/input"
        raise InjectionError(
            f"{what}: it needs {REACH_TEXT[kind.reach]} to act on, "
            f"as in {injection.fault}@{injection.step}:{example}"
        )
    if not candidates:
        raise InjectionError(
            f"{what}: it needs {REACH_TEXT[kind.reach]}, and this run has none; "
            "choose another --precision, --recipe or --backend"
        )
    tensors = [name for name in candidates if fnmatchcase(name, pattern)]
    if not tensors:
        raise InjectionError(
            f"{what}: no tensor matches {pattern!r}; it acts on {REACH_TEXT[kind.reach]}: "
            f"{', '.join(candidates[:3])}, ..."
        )
    return kind.make(scene, injection, tensors)


def reachable(reach: Reach, scene: Scene) -> list[str]:
    """Names of the tensors that a fault with this reach can act on, in call order."""
    if reach == "weight":
        return [f"{layer}/weight" for layer in scene.layers]
    if reach == "output":
        return [f"{layer}/output" for layer in scene.layers]
    if reach == "cast":
        return list(scene.quantizers)
    if reach == "fp8_cast":
        return [name for name, quantizer in scene.quantizers.items() if is_fp8(quantizer)]
    if reach == "delayed":
        return [name for name in scene.quantizers if scale_slot(scene, name) is not None]
    return []


def is_fp8(quantizer: Quantizer) -> bool:
    """Whether the quantizer casts to an 8-bit format."""
    return quantizer.fmt not in ("bf16", "fp16", "fp32")


def describe_faults() -> str:
    """The text of `--inject list`."""
    lines = ["Faults, injected with --inject FAULT@STEP[:tensor][*strength] (repeatable):", ""]
    for kind in FAULTS:
        lines.append(f"  {kind.name}: {kind.text}")
        if kind.needs_tensor:
            lines.append(f"      needs {REACH_TEXT[kind.reach]}")
        elif kind.default_tensor is not None:
            lines.append(
                f"      takes {REACH_TEXT[kind.reach]}; without one all that match {kind.default_tensor}"
            )
        if kind.strength:
            lines.append(f"      *strength: {kind.strength}")
    lines += [
        "",
        "A tensor is a layer/role such as blocks.1.mlp.fc1/input, or a glob such as '*/grad_output'.",
    ]
    return "\n".join(lines)


def _kind(injection: Injection) -> FaultKind:
    for kind in FAULTS:
        if kind.name == injection.fault:
            return kind
    names = ", ".join(kind.name for kind in FAULTS)
    raise InjectionError(
        f"--inject {injection.fault!r}: there is no such fault; the faults are {names} (--inject list)"
    )


def _check_strength(kind: FaultKind, injection: Injection) -> None:
    if injection.strength is None:
        return
    if not kind.strength:
        raise InjectionError(f"--inject {kind.name}: it takes no strength, leave out *{injection.strength:g}")
    low, high = kind.strength_range
    if not low <= injection.strength <= high:
        raise InjectionError(
            f"--inject {kind.name}: the strength is {kind.strength}, from {low:g} to {high:g}; "
            f"got {injection.strength:g}"
        )
