"""What a run's preflight says of the machine it trains on, as far as the rules can use it.

It reads a document that came with the run: what is missing or of another type is not known, and a run without
a preflight is judged exactly as before there were any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STOCHASTIC_ROUNDING_FIXED = (2, 19)
"""Transformer Engine pull request 3281, merged 2026-08-11 into the development version 2.19.0.dev0: before it
stochastic rounding to FP4 on compute capability 12.x wrote only zeros. The release 2.19 was not looked into;
2.20.0.dev0 has it."""
MAX_NOTES, MAX_TEXT = 3, 300
NOTED = ("framework.accelerate.conversion",)
"""Checks that are noted when they only warn: layers that stay in BF16 without a word."""
_NUMBERS = re.compile(r"\d{1,9}")
_TE = ("transformer-engine", "transformer-engine-torch")


@dataclass(frozen=True)
class Machine:
    """capabilities: CUDA compute capabilities of its GPUs.  te: version of Transformer Engine, () if none.
    saturates: whether casts to E4M3 saturate, None if nobody tried.  told: name -> what was read, of the
    checks that fail or warn.  failing: names of those that fail.
    """

    capabilities: frozenset[tuple[int, int]] = frozenset()
    te: tuple[int, ...] = ()
    saturates: bool | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, preflight: Mapping[str, Any]) -> Machine:
        """Of the document ``floatscope.preflight/1``; empty of an empty one."""
        if not preflight:
            return cls()
        checks = [one for one in _objects(preflight.get("checks")) if one.get("status") in ("fail", "warn")]
        casts = preflight.get("casts")
        tried = casts.get("saturating_cast") if isinstance(casts, Mapping) else None
        return cls(
            capabilities=_capabilities(preflight.get("gpus")),
            te=_te(preflight.get("versions")),
            saturates=tried if isinstance(tried, bool) else None,
            told={str(one.get("name", "")): _text(one.get("read")) for one in checks},
            failing=frozenset(str(one.get("name", "")) for one in checks if one["status"] == "fail"),
        )

    def zeroes_fp4_gradients(self, recipe: Mapping[str, Any]) -> bool:
        """Whether this is a machine on which NVFP4's default recipe is known to give all-zero gradients."""
        return (
            recipe.get("name") == "nvfp4"
            and recipe.get("disable_stochastic_rounding") is not True
            and bool(self.te)
            and self.te[:2] < STOCHASTIC_ROUNDING_FIXED
            and any(major == 12 for major, _ in self.capabilities)
        )

    def warned(self, part: str) -> str:
        """What the first check whose name holds ``part`` read, "" if none of them fails or warns."""
        return next((read for name, read in sorted(self.told.items()) if part in name), "")

    def notes(self) -> tuple[str, ...]:
        """What a reader of any verdict should know of this machine."""
        named = [name for name in self.told if name in self.failing or name.startswith(NOTED)]
        return tuple(f"preflight, {name}: {self.told[name]}" for name in named[:MAX_NOTES])


def _capabilities(value: object) -> frozenset[tuple[int, int]]:
    found = set()
    for one in _objects(value):
        at = one.get("capability")
        if isinstance(at, list | tuple) and len(at) == 2 and all(type(part) is int for part in at):
            found.add((at[0], at[1]))
    return frozenset(found)


def _te(value: object) -> tuple[int, ...]:
    versions = value if isinstance(value, Mapping) else {}
    text = next((str(versions[name]) for name in _TE if versions.get(name)), "")
    return tuple(int(part) for part in _NUMBERS.findall(text.partition("+")[0])[:3])


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    return " ".join(str(value if value is not None else "")[: 2 * MAX_TEXT].split())[:MAX_TEXT]
