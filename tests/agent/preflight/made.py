"""Facts, checks and parts of a preflight made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.document import Preflight
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.run import Parts

H100 = GpuFacts(0, "NVIDIA H100 80GB HBM3", (9, 0), 80 * 2**30)
FACTS = Facts(
    python="3.12.3",
    versions={"torch": "2.13.0", "transformer-engine": "2.20.2"},
    gpus=(H100,),
    driver="580.65",
    torch={"cuda": "12.9", "cudnn": "9.12.0"},
)


def check(name: str, status: Status, area: str = "software", **more: str) -> Check:
    return Check(name, area, status, more.get("read", f"{name} was read"), f"why {name}", more.get("do", ""))


def parts(*checks: Check, facts: Facts = FACTS, **more: Any) -> Parts:
    return Parts(gather=lambda: facts, checks={"own": lambda facts, wanted: checks}, **more)


def preflight(checks: Sequence[Check], **changes: Any) -> Preflight:
    made = Preflight("2026-11-30T00:00:00Z", FACTS, Wanted(recipe="fp8_delayed_scaling"), tuple(checks))
    return replace(made, **changes)
