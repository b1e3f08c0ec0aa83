"""Asks the engine which layers of a stored run should leave FP8, and remembers the answer until the run, its
baseline or its verdict changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.protocol.names import MAX_STEP
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps
from floatscope_diagnostics.advisor.advice import FRAMEWORKS, Advice, Framework, NotDecided
from floatscope_diagnostics.advisor.advise import DEFAULT_RECIPES, RECIPES, STATS, advise, framework_of
from floatscope_diagnostics.advisor.evidence import Histogram
from floatscope_diagnostics.advisor.gap import Gap, gap_of
from floatscope_diagnostics.advisor.limits import default_limits
from floatscope_diagnostics.advisor.words import ALWAYS
from floatscope_diagnostics.compare.tensor_log import plain_name
from floatscope_diagnostics.compare.traces import on_common_steps
from floatscope_server import comparing
from floatscope_server.compared_side import Extent, LossesOf
from floatscope_server.comparing import CannotCompare, state
from floatscope_server.errors import Damaged, Refused
from floatscope_server.near_histograms import Known, near_histograms
from floatscope_server.routes import reading
from floatscope_server.services import Services
from floatscope_server.store import frame_reads, kinds, runs, verdicts
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.stored_batches import logged, stat_batches

MAX_VALUES = 4_000_000
"""Statistics that are read; of longer runs steps evenly spread."""
MOST_TENSORS = 10_000
"""Of a run that is advised on: the engine looks at each by itself, for one to three milliseconds."""
SCALARS = ("tokens", "passes")
NO_PAIRS, TOO_MANY = "no_pairs", "too_many_tensors"
_BYTES_PER_CHAR = 3  # of a document as Python keeps it, over its JSON text


@dataclass(frozen=True)
class Asked:
    """framework: to choose layers for, None for that of the run.  recipes: that a layer may get.  max_layers:
    to change at most.  gpu: by its name in the table, "" for none.
    """

    framework: Framework | None = None
    recipes: tuple[str, ...] = DEFAULT_RECIPES
    max_layers: int | None = None
    gpu: str = ""


@dataclass(frozen=True)
class Advised:
    """document: ``floatscope.advice/1``.  read, logged: steps with statistics that were looked at, and that
    there are.
    """

    document: Mapping[str, Any]
    read: int
    logged: int


def advised(
    c: Connection, services: Services, run: RunRecord, base: RunRecord | None, asked: Asked
) -> Advised:
    """The advice for the run, its gap taken to ``base`` or else to the reference loss that it logs. Raises
    Damaged or Unreachable.
    """
    key = ("advice", *state(run), run.version, None if base is None else state(base), asked)
    known: Advised | None = services.warm.get(key)
    if known is not None:
        return known
    with services.warm.alone(("advising", *state(run))):
        known = services.warm.get(key)
        if known is None:
            known = _made(c, services, run, base, asked)
            services.warm.keep(key, known, _BYTES_PER_CHAR * len(dumps(known.document)))
    return known


def checked(
    framework: str | None, recipes: tuple[str, ...], max_layers: int | None, gpu: str | None = None
) -> Asked:
    """What an address asks for. Raises Refused."""
    found: Framework | None = next((one for one in FRAMEWORKS if one == framework), None)
    if framework is not None and found is None:
        raise Refused("framework", "one of " + ", ".join(FRAMEWORKS), framework)
    for recipe in recipes:
        if recipe not in RECIPES:
            raise Refused("recipes", "names among " + ", ".join(RECIPES), recipe[:80])
    allowed = tuple(one for one in RECIPES if one in recipes)  # in one order: each set is worked out once
    return Asked(found, allowed or DEFAULT_RECIPES, max_layers, gpu_of(gpu) if gpu else "")


def gpu_of(name: str) -> str:
    """The GPU's name in the table. Raises Refused with the names that are like it."""
    try:
        return find_gpu(name).name
    except UnknownGpuError as error:
        _what, _, known = str(error).rpartition(": ")
        raise Refused("gpu", f"a GPU of the table, like {known}", name[:80]) from error


def _made(c: Connection, services: Services, run: RunRecord, base: RunRecord | None, asked: Asked) -> Advised:
    info = services.descriptions.get(c, run)
    known = runs.series(c, run.id)
    has = tuple(sorted({at for (kind, _), ranks in known.items() if kind == kinds.STAT for at in ranks}))
    source = reading.source(c, services, run, reading.rank_of(None, has))
    last = frame_reads.last(source, segment=None, tensors=info.tensors)
    names = {*info.tensors, *(() if last is None else last.names)}
    if len(names) > MOST_TENSORS:
        return Advised(_too_many(run, info, asked, len(names)).to_json(), 0, 0)
    stats = logged(c, run, STATS)
    found = stat_batches(source, Span(0, MAX_STEP), stats, most_values=MAX_VALUES, scalars=SCALARS)
    gap, why_no_gap = _gap(c, services, run, base)
    made = advise(
        info,
        found.counting(),
        name=run.name,
        framework=asked.framework,
        recipes=asked.recipes,
        max_layers=asked.max_layers,
        gap=gap,
        verdict=_verdict(c, run),
        gpu=asked.gpu,
        histograms=_histograms(source, run, names, known),
    )
    document = made.to_json()
    document["run"] = run.run_id
    if why_no_gap:
        document["not_decided"] = [*document["not_decided"], {"code": NO_PAIRS, "sentence": why_no_gap}]
    return Advised(document, found.read, found.logged)


def _too_many(run: RunRecord, info: RunInfo, asked: Asked, many: int) -> Advice:
    """The answer about a run that would keep the server busy for minutes."""
    sentence = (
        f"The run has {many:,} tensors, and the server looks at {MOST_TENSORS:,} at most. Ask on your own "
        f"machine: floatscope advise {run.run_id} --server URL."
    )
    framework = asked.framework or framework_of(info)
    notes = (NotDecided(TOO_MANY, sentence),)
    return Advice(
        run.run_id,
        None,
        framework,
        "cannot_say",
        sentence,
        default_limits(),
        always=ALWAYS,
        not_decided=notes,
    )


def _verdict(c: Connection, run: RunRecord) -> dict[str, Any] | None:
    try:
        return verdicts.find(c, run.id)
    except Damaged:
        return None  # the run's own page says so; here nothing was judged


def _gap(c: Connection, services: Services, run: RunRecord, base: RunRecord | None) -> tuple[Gap | None, str]:
    """To the baseline, else to the run's own reference loss; and why there is none to the baseline."""
    if base is None:
        found = LossesOf(c, services, run).scalars(("loss", "ref_loss"), Extent())
        step, loss, reference = on_common_steps(found["loss"], found["ref_loss"])
        with np.errstate(invalid="ignore", over="ignore"):
            return (gap_of(step, loss - reference) if len(step) else None), ""
    try:
        pairs = comparing.compared(c, services, run, base, comparing.Asked(values=0)).found.pairs
    except CannotCompare as error:
        return None, f"The gap to the baseline {base.run_id} is not known: {error.detail}."
    if not pairs.paired:
        return None, (
            f"The run and its baseline {base.run_id} did not see the same batches ({pairs.why}): their gap "
            "cannot be told from noise step by step."
        )
    return gap_of(pairs.step, pairs.gap), ""


def _histograms(
    source: Source, run: RunRecord, names: Collection[str], known: Known
) -> Mapping[str, Histogram]:
    """The newest histogram of each tensor, with the statistics of its step."""
    near = near_histograms(source, names, at=run.last_step or 0, known=known)
    return {plain_name(name): Histogram(one.step, one.counts, one.stats) for name, one in near.items()}
