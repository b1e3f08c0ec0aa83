"""What `--inject` says: `FAULT@STEP[:tensor][*strength]`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

FORM = "FAULT@STEP[:tensor][*strength]"
_PARTS = re.compile(r"(?P<fault>[a-z0-9_]+)@(?P<step>[^:*]+)(?::(?P<tensor>.+))?", re.DOTALL)


class InjectionError(ValueError):
    """An injection that cannot be made; the message says what to write instead."""


@dataclass(frozen=True)
class Injection:
    """A read `--inject` value.  tensor: a `layer/role` or a glob over them."""

    fault: str
    step: int
    tensor: str | None = None
    strength: float | None = None


def parse_injection(text: str) -> Injection:
    """Reads `nan_input@100`, `stale_scale@80:blocks.1.mlp.fc1/input*16`, `round_to_zero@50:*/input`.

    The strength is a number after the last `*`; what follows a `*` and is no number belongs to the glob.
    Raises InjectionError.
    """
    head, strength = _split_strength(text)
    match = _PARTS.fullmatch(head)
    if match is None:
        raise InjectionError(
            f"--inject {text!r}: expected {FORM}, as in stale_scale@80:blocks.1.mlp.fc1/input*16"
        )
    step = match["step"]
    if not (step.isascii() and step.isdecimal()):
        raise InjectionError(
            f"--inject {text!r}: expected a step (a whole number from 0) after the @, got {step!r}"
        )
    return Injection(fault=match["fault"], step=int(step), tensor=match["tensor"], strength=strength)


def _split_strength(text: str) -> tuple[str, float | None]:
    head, star, tail = text.rpartition("*")
    if not star:
        return text, None
    try:
        strength = float(tail)
    except ValueError:
        return text, None
    if not math.isfinite(strength):
        raise InjectionError(
            f"--inject {text!r}: the strength after the last * must be a finite number, got {tail!r}"
        )
    return head, strength
