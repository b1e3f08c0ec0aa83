"""The stored histograms of a run on a server, nearest to a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.api import Api, ApiError, Server
from floatscope_diagnostics.compare.sources import refusal
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.whatif.log_reading import Found, in_order
from floatscope_diagnostics.whatif.selecting import NO_HISTOGRAMS, Selection, Stored, check_found
from floatscope_diagnostics.whatif.stored import BLOCK_STATS, READ_STATS

MOST_FRAMES = 12
"""Sampled steps that are looked at for tensors that the newest one lacks: those of suspects have few."""

_OF_THE_VALUES = ("amax", "rms", *BLOCK_STATS)
"""Statistics that must be of the histogram's own step."""


def read_server(run_id: str, server: Server, selection: Selection) -> Found:
    """As ``log_reading.read_log`` for a run id. Raises UnreadableLog with what to do."""
    try:
        with Api(server, user_agent="floatscope-what-if") as api:
            return _read(api, run_id, selection)
    except ApiError as error:
        raise UnreadableLog(refusal(error, server)) from error


def _read(api: Api, run_id: str, selection: Selection) -> Found:
    facts = {str(item["name"]): item for item in api.tensors(run_id)}
    wanted = {name for name in facts if selection.takes(name)}
    if facts and not wanted:
        check_found((), facts, selection)
    found: dict[str, Stored] = {}
    step = selection.step
    for _ in range(MOST_FRAMES):
        answer = api.frame(run_id, step=step, histograms=True)
        at = answer["hist_log2"]["step"]
        if at is None:
            break
        if answer["step"] != at:  # statistics were sampled later
            answer = api.frame(run_id, step=at, histograms=True)
        for name, counts in answer["hist_log2"]["counts"].items():
            if name in wanted and name not in found and any(counts):
                found[name] = _stored(name, at, counts, answer, facts.get(name, {}))
        if len(found) == len(wanted) or at == 0:
            break
        step = at - 1
    if not found:
        later = _first_later(api, run_id, selection, wanted)
        if later is not None:
            return _read(api, run_id, Selection(selection.tensor, selection.layer, selection.role, later))
        if selection.is_everything or not facts:
            raise UnreadableLog(NO_HISTOGRAMS)
    check_found(found, facts, selection)
    missing = len(wanted) - len(found)
    notes = [f"{missing} tensors have no histogram near this step"] if missing else []
    return Found(run_id, in_order(list(found.values())), tuple(notes))


def _first_later(api: Api, run_id: str, selection: Selection, wanted: set[str]) -> int | None:
    """The first sampled step after the one asked for, of one of the tensors."""
    if selection.step is None:
        return None
    for name in sorted(wanted)[:3]:
        steps = api.histogram(run_id, name, first=selection.step)["step"]
        if steps:
            return int(steps[0])
    return None


def _stored(
    name: str, step: int, counts: list[int], answer: Mapping[str, Any], facts: Mapping[str, Any]
) -> Stored:
    place = answer["tensors"].index(name) if name in answer["tensors"] else None
    stats: dict[str, float | None] = {}
    oldest = step
    for stat in READ_STATS:
        column = answer["stats"].get(stat)
        if place is None or column is None:
            continue
        value = column["values"][place]
        if isinstance(value, int | float):  # NaN and Inf come as text
            stats[stat] = float(value)
            if stat in _OF_THE_VALUES:
                oldest = min(oldest, int(column["step"]))
    return Stored(name, step, counts, stats, facts, oldest)
