"""The run and its baseline, from files or from a server, read once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from floatscope.api import Api, ApiError, Server
from floatscope.protocol.batch import Batch
from floatscope.protocol.names import RUN_ID_PATTERN
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor.evidence import Histogram
from floatscope_diagnostics.advisor.gap import Gap, gap_of, gap_to_twins
from floatscope_diagnostics.compare.pairing import NotComparable, pair
from floatscope_diagnostics.compare.side import side_of
from floatscope_diagnostics.compare.sources import MAX_FETCHED_BYTES, Reading, read_side, refusal
from floatscope_diagnostics.compare.tensor_log import plain_name
from floatscope_diagnostics.engine import Engine
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.whatif.selecting import Selection
from floatscope_diagnostics.whatif.server_reading import read_server

_RUN_ID = re.compile(f"{RUN_ID_PATTERN}\\Z")


@dataclass(frozen=True)
class Read:
    """A run that was read. batches: of its lowest rank, scalars and statistics.  verdict: of all ranks.
    histograms: the newest by tensor where the batches have none.
    """

    name: str
    info: RunInfo
    verdict: dict[str, Any]
    batches: list[Batch] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


def read_run(name: str, reading: Reading) -> Read:
    """A file or, where no file is called so, a run of the server. Raises UnreadableLog with what to do."""
    is_file = name == "-" or os.path.exists(name)
    if reading.ids_only or (not is_file and reading.server is not None):
        if reading.server is None:
            raise UnreadableLog("run ids need a server: --server URL or FLOATSCOPE_URL")
        return _fetched(name, reading.server)
    if not is_file:
        raise UnreadableLog("no such file, and no server to ask for a run of this id: --server URL")
    with open_runs(name, format_name=reading.format_name) as runs:
        log = next(runs, None)
        if log is None:
            raise UnreadableLog("holds no run")
        return _read(name, log)


def read_gap(run: Read, baseline: str, reading: Reading) -> Gap:
    """The gap to a baseline. Raises UnreadableLog, also where the two cannot be paired step by step."""
    own = side_of(run.name, RunLog(run.info, "floatscope", iter([(0, b) for b in run.batches]), Tally()))
    other = read_side(baseline, reading)
    try:
        pairs = pair(own, other)
    except NotComparable as error:
        raise UnreadableLog(str(error)) from error
    if not pairs.paired:
        raise UnreadableLog(
            f"the two runs did not see the same batches ({pairs.why}): their gap cannot be told from noise "
            "step by step. Train the baseline on the same data in the same order, or leave --baseline out."
        )
    gap = gap_of(pairs.step, pairs.gap)
    if gap is None:
        raise UnreadableLog("fewer than 20 steps have a finite loss in both runs; a gap needs 20")
    return gap


def read_gaps(run: Read, baselines: Sequence[str], reading: Reading) -> Gap:
    """The gap to the mean of the baseline and its twins. Raises UnreadableLog with the bad one's name."""
    gaps: list[Gap] = []
    for name in baselines:
        try:
            gap = read_gap(run, name, reading)
            if gap in gaps:
                raise UnreadableLog(
                    "its losses are those of the one before, to the last bit: a twin differs by chance"
                )
            if gaps and gap.steps != gaps[0].steps:
                first, last = gaps[0].steps
                raise UnreadableLog(
                    f"it shares steps {gap.steps[0]:,} to {gap.steps[1]:,} of the last quarter with the run, "
                    f"the one before {first:,} to {last:,}: twins are compared over the same steps"
                )
        except UnreadableLog as error:
            raise UnreadableLog(f"--baseline {name}: {error}") from error
        gaps.append(gap)
    return gap_to_twins(gaps)


def reference_gap(run: Read) -> Gap | None:
    """The gap to the reference loss that the run logs itself (``ref_loss``); None if it logs none."""
    steps: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    gaps: list[np.ndarray[Any, np.dtype[np.float64]]] = []
    for batch in run.batches:
        loss, has = batch.scalar("loss")
        reference, has_reference = batch.scalar("ref_loss")
        both = has & has_reference
        with np.errstate(invalid="ignore", over="ignore"):
            gaps.append((loss - reference)[both])
        steps.append(batch.step[both])
    if not steps or not sum(map(len, steps)):
        return None
    return gap_of(np.concatenate(steps), np.concatenate(gaps))


def _read(name: str, log: RunLog) -> Read:
    """Diagnoses the log while its batches pass, and keeps those of the lowest rank."""
    engine = Engine(log.run)
    kept: list[Batch] = []
    lowest: int | None = None
    for rank, batch in log.batches:
        engine.feed(batch, rank=rank)
        if lowest is None or rank < lowest:
            lowest, kept = rank, []
        if rank == lowest:
            kept.append(batch)
    if not sum(len(batch) for batch in kept):
        raise UnreadableLog("holds no step that could be read. " + (log.tally.first_skipped or ""))
    run_id = log.run.extra.get("run_id")
    shown = log.run.name or (run_id if isinstance(run_id, str) else name)
    return Read(shown, log.run, engine.verdict().to_json(), kept, log.tally.all_notes())


def _fetched(run_id: str, server: Server) -> Read:
    """From a server: the log, kept in a temporary file while it is read, and the newest histograms."""
    if not _RUN_ID.match(run_id):
        raise UnreadableLog("is neither a file nor a run id (letters, digits, . _ -; at most 128)")
    with TemporaryDirectory(prefix="floatscope-advise-") as folder:
        path = os.path.join(folder, "run.jsonl")
        size = 0
        try:
            with Api(server, user_agent="floatscope-advise") as api, open(path, "wb") as file:
                for line in api.lines(run_id):
                    size += len(line) + 1
                    if size > MAX_FETCHED_BYTES:
                        raise UnreadableLog(
                            f"the run is larger than {MAX_FETCHED_BYTES >> 30} GiB as a log; export a part "
                            "of its steps with floatscope export --from and --to, and ask about the file"
                        )
                    file.write(line + b"\n")
        except ApiError as error:
            raise UnreadableLog(refusal(error, server)) from error
        if not size:
            raise UnreadableLog(f"the server {server.url} has no steps of this run")
        with open_runs(path, format_name="floatscope") as runs:
            log = next(runs, None)
            if log is None:
                raise UnreadableLog(f"the server {server.url} has no steps of this run")
            made = _read(run_id, log)
    try:
        stored = read_server(run_id, server, Selection()).tensors
    except UnreadableLog:  # a run without histograms: the advice itself says what that costs
        return made
    found = {plain_name(one.name): Histogram(one.step, tuple(one.counts), one.stats) for one in stored}
    return replace(made, name=run_id, histograms=found)
