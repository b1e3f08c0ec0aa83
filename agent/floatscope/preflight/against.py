"""Holds two preflights against each other: an earlier one of this machine, or that of another rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.preflight.check import Check, Status

FAILING = ("torch", "transformer-engine", "transformer-engine-torch", "torchao", "cuda", "nccl", "cublaslt")
"""Versions that must agree over ranks: they decide the bits of a GEMM or the protocol of a collective."""
NUMERIC = (*FAILING, "cudnn", "megatron-core", "flash-attn", "flash-attn-3", "flash-attn-4", "triton",
           "transformer-engine-cu12", "transformer-engine-cu13", "driver", "numpy", "accelerate",
           "transformers", "deepspeed", "lightning")  # fmt: skip
"""Versions that are compared; those that do not fail warn."""
INSTALLED = ("torch", "transformer-engine", "transformer-engine-torch", "torchao")
"""Distributions whose absence on one side is a difference as well."""
MOST_NAMED = 8
_WHY = (
    "ranks of one job must run the same code: mixed versions give other bits, other formats or collectives "
    "that hang, and a comparison with an earlier run no longer compares only what was changed"
)


def against_checks(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, name: str) -> list[Check]:
    """What differs between two documents. name: of the other, as it is shown."""
    return [
        _versions(ours, theirs, name),
        _casts(ours, theirs, name),
        _recipe(ours, theirs, name),
        _gpus(ours, theirs, name),
    ]


def different_versions(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, ours, theirs) of versions that bear on numbers; "" is one that is not installed.

    What only one side could read (driver, CUDA, ...) is not known to differ; an FP8 library that only one
    side has installed does.
    """
    mine, other = _table(ours, "versions"), _table(theirs, "versions")
    pairs = [(key, str(mine.get(key, "")), str(other.get(key, ""))) for key in NUMERIC]
    return [(key, a, b) for key, a, b in pairs if a != b and ((a and b) or key in INSTALLED)]


def different_casts(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Names of casts that both have tried and that came out differently.

    Where the casts themselves are there ``saturating_cast`` is not asked: in a training process it is what
    the FP8 library does, so that a run with one and a baseline without differ in it on the same machine.
    """
    mine, other = _table(ours, "casts"), _table(theirs, "casts")
    common = (mine.keys() & other.keys()) - {"tried"}
    tried = common - {"saturating_cast"}
    return sorted(key for key in tried or common if mine[key] != other[key])


def _versions(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Check:
    if not _table(theirs, "versions"):
        return _check("against.versions", "unknown", f"{name} says nothing of versions")
    found = different_versions(ours, theirs)
    if not found:
        return _check("against.versions", "pass", f"the same versions as {name}")
    status: Status = "fail" if any(key in FAILING for key, _, _ in found) else "warn"
    shown = ", ".join(f"{key} {a or 'absent'} / {b or 'absent'}" for key, a, b in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return _check(
        "against.versions",
        status,
        f"mixed versions (here / {name}): {shown}{more}",
        "install the same versions everywhere, best from one image",
    )


def _casts(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Check:
    mine, other = _table(ours, "casts"), _table(theirs, "casts")
    if not mine.keys() & other.keys():
        return _check("against.casts", "unknown", f"here and in {name} no cast was tried in common")
    found = different_casts(ours, theirs)
    if not found:
        return _check("against.casts", "pass", f"casts come out as in {name}")
    return _check(
        "against.casts",
        "fail",
        f"casts differ from {name}: {', '.join(found[:MOST_NAMED])}",
        "use the same versions of torch and of the FP8 library: one side saturates where the other gives NaN",
    )


def _recipe(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Check:
    pairs = [
        (key, _table(ours, "wanted").get(key), _table(theirs, "wanted").get(key))
        for key in ("recipe", "library")
    ]
    other = [f"{key} {a} / {b}" for key, a, b in pairs if a and b and a != b]
    if other:
        return _check(
            "against.recipe",
            "fail",
            f"here / {name}: {', '.join(other)}",
            "give every rank the same recipe, or compare what was asked the same way",
        )
    if not all(a and b for _, a, b in pairs[:1]):
        return _check("against.recipe", "unknown", f"here or in {name} no recipe was chosen")
    return _check("against.recipe", "pass", f"the same recipe as {name}")


def _gpus(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> Check:
    mine, other = _gpu_names(ours), _gpu_names(theirs)
    if not mine or not other:
        return _check("against.gpus", "unknown", f"here or in {name} no GPU was seen")
    if mine != other:
        return _check(
            "against.gpus",
            "warn",
            f"GPUs here: {', '.join(mine)[:120]}; in {name}: {', '.join(other)[:120]}",
            "ranks on different GPUs may take different kernels; compare only what ran on the same",
        )
    return _check("against.gpus", "pass", f"the same kind of GPU as {name}")


def _gpu_names(document: Mapping[str, Any]) -> list[str]:
    rows = document.get("gpus")
    found = rows if isinstance(rows, list | tuple) else []
    return sorted({str(one.get("name", "")) for one in found if isinstance(one, Mapping)})


def _check(name: str, status: Status, read: str, do: str = "") -> Check:
    return Check(name, "against", status, read, _WHY, do)


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
