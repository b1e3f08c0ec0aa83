"""When a row of a preflight table applies: its conditions, asked of a machine and of what is wanted.

A condition is an object with one question and is answered yes, no or "not read" (None):

{"recipe": [names]}, {"library": [names]}, {"capability": {"min": "9.0", "below": "10.0"}},
{"arch": [prefixes]}, {"env": NAME, "is": [values]}; and of a version {"fact": name} with one of
"below": version, "at_least": version, "is": [versions], "major_below": other fact, "installed": bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.preflight.facts import Facts, GpuFacts, Version
from floatscope.preflight.versions import is_below, is_same, parse_version, version_of

Condition = Mapping[str, Any]


@dataclass(frozen=True)
class Situation:
    """A machine, and what of it is looked at.  gpu: one GPU, None for the machine as a whole without any.

    library: whose rules count, "" for none in particular.
    """

    facts: Facts
    recipe: str = ""
    library: str = ""
    gpu: GpuFacts | None = None


def all_hold(conditions: Sequence[Condition], situation: Situation) -> bool | None:
    """True when all hold, False when one does not, None when that depends on something that was not read."""
    answers = [_ASK[_kind(condition)](condition, situation) for condition in conditions]
    if False in answers:
        return False
    return None if None in answers else True


def unread(conditions: Sequence[Condition], situation: Situation) -> list[str]:
    """What was not read of what these conditions ask for, in the words of the table."""
    return list(
        dict.fromkeys(
            str(condition.get("fact", _kind(condition)))
            for condition in conditions
            if _ASK[_kind(condition)](condition, situation) is None
        )
    )


def capability_of(gpu: GpuFacts) -> tuple[int, int] | None:
    """Compute capability as read, or of the GPU table for that name; None on AMD and where neither knows."""
    if gpu.capability is not None or gpu.arch.startswith("gfx"):
        return gpu.capability
    try:
        return find_gpu(gpu.name).capability
    except UnknownGpuError:
        return None


def arch_of(gpu: GpuFacts) -> str:
    """ "gfx942" on AMD, "sm_90" on NVIDIA, "" where not known."""
    if gpu.arch:
        return gpu.arch.split(":")[0]
    if gpu.capability is not None:
        return f"sm_{gpu.capability[0]}{gpu.capability[1]}"
    try:
        return find_gpu(gpu.name).arch
    except UnknownGpuError:
        return ""


def _kind(condition: Condition) -> str:
    return next(kind for kind in _ASK if kind in condition)


def _recipe(condition: Condition, situation: Situation) -> bool | None:
    return situation.recipe in condition["recipe"]


def _library(condition: Condition, situation: Situation) -> bool | None:
    return situation.library in condition["library"]


def _capability(condition: Condition, situation: Situation) -> bool | None:
    if situation.gpu is None:
        return None
    capability = capability_of(situation.gpu)
    if capability is None:
        return False if arch_of(situation.gpu).startswith("gfx") else None
    bounds = condition["capability"]
    lowest, end = parse_version(bounds.get("min", "0.0")), parse_version(bounds.get("below", "999.0"))
    return not is_below(capability, lowest) and is_below(capability, end)


def _arch(condition: Condition, situation: Situation) -> bool | None:
    if situation.gpu is None:
        return None
    arch = arch_of(situation.gpu)
    return arch.startswith(tuple(condition["arch"])) if arch else None


def _env(condition: Condition, situation: Situation) -> bool | None:
    return situation.facts.environment.get(condition["env"], "") in condition["is"]


def _fact(condition: Condition, situation: Situation) -> bool | None:
    version = version_of(situation.facts, condition["fact"])
    if version is None:
        return None
    if "installed" in condition:
        return (version != ()) == bool(condition["installed"])
    return False if version == () else _compare(version, condition, situation)


def _compare(version: Version, condition: Condition, situation: Situation) -> bool | None:
    if "major_below" in condition:
        other = version_of(situation.facts, condition["major_below"])
        return None if not other else version[0] < other[0]
    if "is" in condition:
        return any(is_same(version, parse_version(text)) for text in condition["is"])
    if "below" in condition:
        return is_below(version, parse_version(condition["below"]))
    return not is_below(version, parse_version(condition["at_least"]))


_ASK: dict[str, Callable[[Condition, Situation], bool | None]] = {
    "recipe": _recipe,
    "library": _library,
    "capability": _capability,
    "arch": _arch,
    "env": _env,
    "fact": _fact,
}
