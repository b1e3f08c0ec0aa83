"""What casts that were tried mean for training: whether too large values are cut off, and if it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.shape_rules import SIXTEEN_BIT, library_of
from floatscope.preflight.table_reading import read_table

CLAMPING = ("transformer_engine", "torchao")
"""Libraries that cut values off themselves in front of the cast."""
_FNUZ = ("e4m3fnuz", "e5m2fnuz")


def cast_checks(facts: Facts, wanted: Wanted, measured: Mapping[str, Any]) -> list[Check]:
    """Checks of what `cast_probe.probe` measured. Without a measurement: one that says so."""
    results = {key: value for key, value in measured.items() if " from " in key}
    if not results:
        return [
            _check(
                "casts.probe", "unknown", "no cast could be tried (no torch, or one without float8)", "none"
            )
        ]
    return [
        *_formats(facts, wanted, results),
        *_compiled(results),
        *_devices(results),
    ]


def _formats(facts: Facts, wanted: Wanted, results: Mapping[str, Any]) -> Iterator[Check]:
    amd = any(gpu.arch.startswith("gfx94") for gpu in facts.gpus)
    for key, value in results.items():
        form, source, device, mode = _parts(key)
        if source != "float32" or mode != "eager":
            continue
        name = f"casts.{form}.{device}"
        if not isinstance(value, list):
            yield _check(name, "unknown", f"{key}: {value}", "raised")
            continue
        kind = _kind(form, value)
        status = _status(form, kind, wanted, amd=amd)
        yield _check(name, status, f"{key}: {_shown(value)} ({kind})", f"{form}/{kind}")


def _kind(form: str, value: list[Any]) -> str:
    """The pattern of the table that the result is, "other" if none."""
    for kind, pattern in read_table("casts")["patterns"][form].items():
        if pattern == value:
            return str(kind)
    return "other"


def _status(form: str, kind: str, wanted: Wanted, *, amd: bool) -> Status:
    if form in _FNUZ and not amd:
        return "not_applicable"
    if kind == "other":
        return "warn"
    if kind in ("saturates", "rounds_up"):
        return "pass"
    clamped = library_of(wanted) in CLAMPING and bool(wanted.library or wanted.recipe)
    return "pass" if clamped or wanted.recipe in SIXTEEN_BIT else "warn"


def _compiled(results: Mapping[str, Any]) -> Iterator[Check]:
    """Whether torch.compile gives what eager mode gives."""
    pairs = {key: key.replace("compiled", "eager") for key in results if key.endswith("compiled")}
    if not pairs:
        yield _check(
            "casts.compiled", "not_applicable", "casts were not tried under torch.compile", "not_compiled"
        )
    for key, eager in pairs.items():
        form, _, device, _ = _parts(key)
        name = f"casts.{form}.{device}.compiled"
        if not isinstance(results[key], list):
            yield _check(name, "unknown", f"{key}: {results[key]}"[:300], "raised")
        elif results[key] == results.get(eager):
            yield _check(name, "pass", f"{key}: as in eager mode", "compiled")
        else:
            read = f"{key}: {_shown(results[key])}; eager: {_shown(results.get(eager))}"
            yield _check(name, "warn", read, "compiled")


def _devices(results: Mapping[str, Any]) -> Iterator[Check]:
    """Whether the GPU casts as the CPU does, where a rehearsal on the CPU is the same thing."""
    for key, value in results.items():
        form, source, device, mode = _parts(key)
        cpu = results.get(key.replace(" on cuda,", " on cpu,"))
        if device != "cuda" or mode != "eager" or not isinstance(value, list) or not isinstance(cpu, list):
            continue
        if value != cpu:
            read = f"{key}: {_shown(value)}; on the CPU: {_shown(cpu)}"
            yield _check(f"casts.{form}.from_{source}.devices", "warn", read, "devices")


def _parts(key: str) -> tuple[str, str, str, str]:
    """("e4m3", "float32", "cpu", "eager") of "e4m3 from float32 on cpu, eager"."""
    words = key.replace(",", "").split()
    return words[0], words[2], words[4], words[5]


def _shown(value: object) -> str:
    tried = read_table("casts")["tried"]
    if not isinstance(value, list) or len(value) != len(tried):
        return str(value)[:200]
    return ", ".join(f"{a} -> {b}" for a, b in zip(tried, value, strict=True))


def _check(name: str, status: Status, read: str, text: str) -> Check:
    texts = read_table("casts")["texts"]
    own = texts.get(text) or texts["other"]
    do = "" if status in ("pass", "not_applicable") else own.get("do", "")
    return Check(name, "casts", status, read, own["why"], do, own["source"])
