"""A run as one line: of the overview, and the head of its own page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from floatscope_dashboards.views import RunRow
from floatscope_server.errors import Damaged, Unreachable
from floatscope_server.outcome import worst_finding
from floatscope_server.store import runs
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm
from floatscope_server.times import moment
from floatscope_server.views.run_tracks import Track, track

RECIPE_WORDS = {
    "fp8_delayed_scaling": "FP8 delayed scaling",
    "fp8_current_scaling": "FP8 current scaling",
    "fp8_block_scaling": "FP8 block scaling",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "ao_tensorwise": "torchao tensorwise FP8",
    "ao_rowwise": "torchao rowwise FP8",
    "fp16_amp": "FP16 with loss scaling",
    "bf16": "BF16",
    "fp32": "FP32",
}


def recipe_words(recipe: Mapping[str, Any]) -> str:
    """The recipe as people write it, for example "FP8 delayed scaling, hybrid"."""
    name = str(recipe.get("name") or "")
    words = RECIPE_WORDS.get(name, name)
    fp8_format = recipe.get("fp8_format")
    return f"{words}, {str(fp8_format).lower()}" if words and fp8_format else words


def row(
    c: Connection,
    run: RunRecord,
    verdict: Mapping[str, Any] | None,
    objects: Objects | None,
    warm: Warm | None,
) -> RunRow:
    """The run with its curve and the words of its verdict."""
    try:
        found: Track | None = track(c, run, rank(c, run), objects, warm)
    except Damaged as error:
        return replace(line(run, None, verdict), damaged=error.part)
    except Unreachable:
        found = None  # logged where it was met; the line of the run does without its curve
    return line(run, found, verdict)


def line(run: RunRecord, found: Track | None, verdict: Mapping[str, Any] | None = None) -> RunRow:
    """The run without what only its batches say."""
    worst = worst_finding((verdict or {}).get("findings", []))
    confidence = None if worst is None else _confidence(worst)
    remedy = (worst or {}).get("remedy") or {}
    return RunRow(
        run_id=run.run_id,
        name=run.name,
        project=run.project,
        recipe=recipe_words(run.recipe),
        status=run.status,
        health=run.health,
        headline=run.summary,
        cause=run.cause,
        first_step=run.first_step,
        last_step=run.last_step,
        last_loss=run.last_loss,
        created=moment(run.created),
        last_seen=None if run.last_seen is None else moment(run.last_seen),
        onset_step=run.onset_step,
        sparkline=() if found is None else found.loss,
        baseline=run.baseline,
        confidence=confidence if isinstance(confidence, int | float) else None,
        remedy=_first_sentence(remedy.get("text")) if isinstance(remedy, Mapping) else None,
        tokens_per_s=None if found is None else found.tokens_per_s,
        pace_s=run.pace_s,
        damaged=run.damaged,
        judged_steps=run.judged_steps,
    )


def _confidence(finding: Mapping[str, Any]) -> object:
    """Of the cause, or of the likeliest candidate where none is determined."""
    if finding.get("cause") != "undetermined":
        return finding.get("confidence")
    shares = [a.get("confidence") for a in finding.get("alternatives") or [] if isinstance(a, Mapping)]
    return max((x for x in shares if isinstance(x, int | float)), default=None)


def rank(c: Connection, run: RunRecord) -> int:
    """The lowest rank that sent something; it speaks for the run."""
    found = runs.positions(c, run.id)
    return found[0].rank if found else 0


def _first_sentence(text: object) -> str | None:
    if not isinstance(text, str) or not text:
        return None
    head, stop, _rest = text.partition(". ")
    return head + "." if stop else text
