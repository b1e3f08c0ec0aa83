"""The card of a run's preflight: what was found on its machine before it trained, as the run page shows it.

It reads a document that came with the run, field by field: whatever has another type than it should counts as
not given. The sentences of the checks are those of the agent; the page escapes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.say import Say, later
from floatscope_dashboards.wording import Sign

MAX_CHECKS, MAX_VERSIONS, MAX_TEXT = 40, 40, 600
"""Shown of each; what is beyond is counted, or cut."""
SIGNS: Mapping[str, Sign] = {
    "fail": Sign("crit", "\u25b2", later("Fails")),
    "warn": Sign("warn", "\u25c6", later("Warnings")),
    "unknown": Sign("idle", "?", later("Not known")),
    "pass": Sign("ok", "\u2713", later("Passed")),
}
SHOWN = ("fail", "warn")
FIRST_VERSIONS = (
    "torch", "transformer-engine", "torchao", "megatron-core", "cuda", "cudnn", "nccl", "driver", "cublaslt",
    "accelerate", "transformers", "deepspeed", "lightning", "triton", "python",
)  # fmt: skip
"""In this order; the others after them by name."""


@dataclass(frozen=True)
class CheckLine:
    """A check that fails or warns. what, why, do: its sentences, why and do may be ""."""

    sign: Sign
    name: str
    what: str
    why: str
    do: str


@dataclass(frozen=True)
class CastLine:
    """What a cast to one format does with values that do not fit. pairs: (value, what became of it)."""

    name: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PreflightCard:
    """light: made by the agent inside the training process. counts: in words, "23 pass, 2 warn"."""

    sign: Sign
    counts: str
    made_at: str
    light: bool
    checks: tuple[CheckLine, ...]
    more: int
    unknown: tuple[CheckLine, ...]
    versions: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    saturates: bool | None
    casts: tuple[CastLine, ...]


def preflight_card(info: Mapping[str, Any], say: Say) -> PreflightCard | None:
    """The card, or None for a run that came without a preflight. info: the run's description."""
    found = info.get("preflight")
    if not isinstance(found, Mapping) or str(found.get("decision")) not in SIGNS:
        return None
    lines = [(str(one.get("status")), _line(one, say)) for one in _objects(found.get("checks"))]
    loud = [line for wanted in SHOWN for status, line in lines if status == wanted]
    casts = found.get("casts")
    return PreflightCard(
        sign=SIGNS[str(found["decision"])],
        counts=_counts(found.get("counts"), say),
        made_at=_text(found.get("made_at"))[:40],
        light=found.get("light") is True,
        checks=tuple(loud[:MAX_CHECKS]),
        more=max(0, len(loud) - MAX_CHECKS),
        unknown=tuple(line for status, line in lines if status == "unknown")[:MAX_CHECKS],
        versions=_versions(found.get("versions")),
        gpus=_gpus(found.get("gpus")),
        saturates=_saturates(casts, info.get("recipe")),
        casts=_casts(casts),
    )


def _line(one: Mapping[str, Any], say: Say) -> CheckLine:
    sign = SIGNS.get(str(one.get("status")), SIGNS["unknown"])
    return CheckLine(
        sign,
        _text(one.get("name"))[:120],
        say.engine(_text(one.get("read"))),
        say.engine(_text(one.get("why"))),
        say.engine(_text(one.get("do"))),
    )


def _counts(value: object, say: Say) -> str:
    given = value if isinstance(value, Mapping) else {}
    numbers = {key: n for key in SIGNS if isinstance(n := given.get(key), int) and n > 0}
    words = [
        say.plural("{n} fails", "{n} fail", numbers["fail"]) if "fail" in numbers else "",
        say.plural("{n} warning", "{n} warnings", numbers["warn"]) if "warn" in numbers else "",
        say("{n} not known", n=numbers["unknown"]) if "unknown" in numbers else "",
        say.plural("{n} passes", "{n} pass", numbers["pass"]) if "pass" in numbers else "",
    ]
    return ", ".join(word for word in words if word)


def _versions(value: object) -> tuple[tuple[str, str], ...]:
    given = value if isinstance(value, Mapping) else {}
    known = {_text(name)[:80]: _text(text)[:80] for name, text in given.items()}
    first = [name for name in FIRST_VERSIONS if name in known]
    rest = sorted(known.keys() - set(first))
    return tuple((name, known[name]) for name in (*first, *rest))[:MAX_VERSIONS]


def _gpus(value: object) -> tuple[str, ...]:
    """``8 x NVIDIA H100 80GB HBM3 (9.0)``, each kind once."""
    kinds: dict[str, int] = {}
    for one in _objects(value):
        at = one.get("capability")
        shown = _text(one.get("name"))[:80]
        if isinstance(at, list | tuple) and len(at) == 2:
            shown += f" ({at[0]}.{at[1]})"[:20]
        kinds[shown] = kinds.get(shown, 0) + 1
    return tuple(f"{n} \u00d7 {name}" for name, n in kinds.items())


def _saturates(casts: object, recipe: object) -> bool | None:
    """Whether a value beyond E4M3's range becomes its largest; None where nobody tried."""
    for given in (casts, recipe):
        if isinstance(given, Mapping) and isinstance(given.get("saturating_cast"), bool):
            return bool(given["saturating_cast"])
    return None


def _casts(value: object) -> tuple[CastLine, ...]:
    given = value if isinstance(value, Mapping) else {}
    probe = given.get("cast_probe")
    probe = probe if isinstance(probe, Mapping) else given
    tried = probe.get("tried")
    if not isinstance(tried, list | tuple):
        return ()
    return tuple(
        CastLine(
            _text(name)[:40],
            tuple((_text(a)[:24], _text(b)[:24]) for a, b in zip(tried, became, strict=False))[:16],
        )
        for name, became in probe.items()
        if name != "tried" and isinstance(became, list | tuple)
    )[:8]


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    return "" if value is None else " ".join(str(value)[: 2 * MAX_TEXT].split())[:MAX_TEXT]
