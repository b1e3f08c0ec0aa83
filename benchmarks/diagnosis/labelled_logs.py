"""Judges the diagnosis on a folder of logs whose answers are known, with the same measures as the library.

The folder holds ``EXPECTED.csv`` with the columns id, family, cause, kind, onset_lo, onset_hi,
detect_by_step, layer (or first_layer), tensor and also_accept (several right answers joined with ``|``; any
may be empty), and per row a log ``<id>.jsonl`` or ``<id>.jsonl.gz``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.diagnosis.outcome import (
    FAMILY,
    Finding,
    Judged,
    alarms_of,
    hypothesis,
    outside,
    same_layer,
)
from floatscope_diagnostics.diagnose import diagnose_paths

SUFFIXES = (".jsonl", ".jsonl.gz")
ABRUPT_STEPS = 1  # an onset window not wider than this is an abrupt fault's


class UnreadableFolder(ValueError):
    """The folder is not one of labelled logs; the message says what is missing."""


def judge_logs(folder: Path) -> Iterator[Judged]:
    """One judged run per row. Raises UnreadableFolder."""
    index = folder / "EXPECTED.csv"
    try:
        with index.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UnreadableFolder(f"{index}: cannot be read ({error.strerror}); it lists the answers") from error
    for row in rows:
        yield judge_row(row, steps_and_alarms(folder, row["id"]))


def steps_and_alarms(folder: Path, name: str) -> tuple[int, list[Finding]]:
    """Steps and alarms of a log's verdict. Raises UnreadableFolder for a log that cannot be read."""
    path = next((p for s in SUFFIXES if (p := folder / f"{name}{s}").exists()), None)
    if path is None:
        raise UnreadableFolder(f"{folder / name}: no such log; expected it with {' or '.join(SUFFIXES)}")
    done, unread = diagnose_paths([str(path)])
    if unread:
        raise UnreadableFolder(f"{path}: {unread[0].error}")
    verdict = done[0].verdict.to_json()
    return int(verdict["source"]["steps"]), alarms_of(verdict)


def judge_row(row: Mapping[str, str], answer: tuple[int, list[Finding]]) -> Judged:
    """One row of EXPECTED.csv against the steps and alarms of the log's verdict."""
    steps, alarms = answer
    cause = row["cause"]
    accepted = {cause, *words(row.get("also_accept"))}
    first = alarms[0] if alarms else None
    predicted = str(first["cause"]) if first else "healthy"
    named = next((f for f in alarms if f["cause"] in accepted), first)
    silent = named is None and "healthy" in accepted
    low, high, limit = (number(row.get(key)) for key in ("onset_lo", "onset_hi", "detect_by_step"))
    healthy = cause == "healthy"
    layers, tensors = words(row.get("layer") or row.get("first_layer")), words(row.get("tensor"))
    kinds = words(row.get("kind"))
    judgeable = not healthy and not silent
    detected = None if named is None else int(named["detected_step"])
    layer, tensor = (named["layer"], named["tensor"]) if named is not None else (None, None)
    guess = hypothesis(first)
    return Judged(
        run=row["id"],
        case=row.get("note") or cause,
        cause=cause,
        split="logs",
        held_back=False,
        recipe=row.get("recipe") or "-",
        flavour="-",
        healthy_steps=steps if healthy else 0,
        resampled_steps=0,
        false_alarms=tuple(alarms) if healthy else (),
        predicted=predicted,
        family=str(first["family"]) if first else "none",
        cause_ok=predicted in accepted,
        family_ok=predicted in accepted or FAMILY.get(predicted) in {FAMILY.get(name) for name in accepted},
        kind_ok=named["kind"] in kinds if kinds and named is not None and named["cause"] == cause else None,
        abrupt=low is not None and high is not None and high - low <= ABRUPT_STEPS,
        detected=None if limit is None or not judgeable else detected is not None and detected <= limit,
        onset_error=None
        if low is None or named is None
        else outside(int(named["onset_step"]), low, low if high is None else high),
        delay=None if low is None or detected is None else detected - low,
        layer_ok=same_layer(layer, layers) if layers and judgeable else None,
        tensor_ok=tensor in tensors if tensors and judgeable else None,
        alarms=tuple(alarms),
        confidence=None if guess is None else guess[1],
        hypothesis_ok=None if guess is None else guess[0] in accepted,
        accepted=frozenset(accepted),
    )


def words(text: str | None) -> list[str]:
    """Answers joined with ``|``."""
    return [word.strip() for word in (text or "").split("|") if word.strip()]


def number(text: str | None) -> int | None:
    return int(text) if text else None
