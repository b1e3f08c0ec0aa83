"""The signs that the tails are fitted to, from healthy runs that go through the detectors' own code."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnosis.settings import Base
from benchmarks.diagnosis.store import Store
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.common_shift import common_rise
from floatscope_diagnostics.detectors.limits import ANY, CLASSES, KINDS, classes_of, kinds_of
from floatscope_diagnostics.detectors.ranks import RankBoard
from floatscope_diagnostics.detectors.row import JudgedRow
from floatscope_diagnostics.detectors.tensor_alarms import IDLE_LOG2, OVER_LOG2, READY_ROWS
from floatscope_diagnostics.detectors.tensor_changes import PERSIST_ROWS, TensorChanges
from floatscope_diagnostics.frame import AMAX, HEADROOM, OVERFLOW, SQNR, UNDERFLOW
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.stream import RankStream

Float64 = NDArray[np.float64]
FEED_STEPS = 64
IDLE_ROWS = 2  # rows a scale must leave range unused


@dataclass(frozen=True)
class RunSigns:
    """One run's signs. of[sign, index of class]: (rows, tensors of the class), NaN where not judged."""

    run: str
    kind: str
    seed: int | None
    steps: int
    tensors: int
    of: Mapping[tuple[str, int], Float64]


class Recorder(TensorChanges):
    """The change detectors, one row at a time, noting what they see before they learn from it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Float64, Float64]] = []

    def _quiet_rows(self, judged: object) -> int:
        return 0

    def _step(self, judged: JudgedRow) -> bool:
        self.resize(len(judged.row.columns))
        x = judged.row.frame.signals[judged.row.d]
        unknown = (self.levels.tracker.count < READY_ROWS) | judged.excluded | judged.frozen
        away = np.where(unknown, np.nan, x - self.levels.tracker.center)
        if not judged.warming:
            self.seen.append((np.where(judged.excluded | judged.frozen, np.nan, x), away))
        return super()._step(judged)


def signs_of_runs(store: Store, bases: Iterable[Base]) -> Iterator[RunSigns]:
    """The signs of every stored run, as far as it has got."""
    for base in bases:
        run = store.load_base(base)
        if run is not None:
            yield signs_of(base.id, run.info, [run.batch], seed=base.seed)


def healthy_logs(folder: Path) -> list[RunSigns]:
    """The signs of a folder of labelled logs: its healthy ones with an odd number."""
    with (folder / "EXPECTED.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["cause"] == "healthy"]
    out = []
    for row in rows:
        digits = "".join(c for c in row["id"] if c.isdigit())
        path = next((p for s in ("", ".gz") if (p := folder / f"{row['id']}.jsonl{s}").exists()), None)
        if digits and int(digits) % 2 == 1 and path is not None:
            out.append(_log_signs(row["id"], path))
    return out


def signs_of(run: str, info: RunInfo, batches: Iterable[Batch], *, seed: int | None) -> RunSigns:
    """Sends a whole run through one rank's detectors."""
    columns = Columns(info)
    stream = RankStream(0, columns, RankBoard())
    recorder = Recorder()
    stream.changes = recorder
    for batch in batches:
        for start in range(0, len(batch), FEED_STEPS):
            stream.feed(batch.rows(start, min(start + FEED_STEPS, len(batch))), segment=None)
    size = len(columns)
    x, away = (
        np.stack([np.pad(row[k], ((0, 0), (0, size - row[k].shape[1])), constant_values=np.nan)
                  for row in recorder.seen]) if recorder.seen else np.empty((0, 9, size))
        for k in (0, 1)
    )  # fmt: skip
    kinds = kinds_of(columns)
    scaled = kinds[columns.scaled]
    kind = KINDS[int(scaled[0])] if len(scaled) and scaled[0] >= 0 else (ANY if len(scaled) else KINDS[3])
    return RunSigns(run, kind, seed, len(recorder.seen), size, dict(_signs(x, away, columns)))


def _signs(x: Float64, away: Float64, columns: Columns) -> Iterator[tuple[tuple[str, int], Float64]]:
    places = classes_of(columns)
    for place in range(len(CLASSES)):
        mine = np.flatnonzero(places == place)
        if len(mine) == 0 or len(x) == 0:
            continue
        here, off = x[:, :, mine], away[:, :, mine]
        for name, k, sense, rows in (
            ("amax_jump", AMAX, 1.0, 1), ("headroom_up", HEADROOM, 1.0, IDLE_ROWS),
            ("sqnr_drop", SQNR, -1.0, PERSIST_ROWS),
        ):  # fmt: skip
            rise = sense * off[:, k]
            shared = np.array([_shared(r) for r in rise])
            yield (name, place), lasting(rise - shared[:, None], rows)
            common = {"amax_jump": "amax_common", "headroom_up": "headroom_common", "sqnr_drop": "sqnr_all"}
            if (~np.isnan(rise)).any():
                yield (common[name], place), lasting(shared[:, None], rows)
        if not columns.scaled[mine].any():
            yield ("underflow_lasting", place), lasting(off[:, UNDERFLOW], PERSIST_ROWS)
            continue
        over, clipped, lost = -here[:, HEADROOM], here[:, OVERFLOW], off[:, UNDERFLOW]
        yield ("sat", place), over
        yield (
            ("clip_with_sat", place),
            np.where(over > OVER_LOG2[place], clipped, np.where(np.isnan(over), np.nan, 0)),
        )
        yield ("clip_at_once", place), clipped
        yield ("clip_lasting", place), lasting(clipped, PERSIST_ROWS)
        yield ("underflow_at_once", place), lost
        idle = off[:, HEADROOM] > IDLE_LOG2
        yield ("underflow_idle", place), np.where(idle, lost, np.where(np.isnan(lost), np.nan, 0.0))
        yield ("underflow_lasting", place), lasting(lost, PERSIST_ROWS)


def lasting(values: Float64, rows: int) -> Float64:
    """The least of each ``rows`` rows in a row (n, S), NaN for the first and where one is NaN."""
    out = values.copy()
    out[: rows - 1] = np.nan
    for back in range(1, rows):
        out[rows - 1 :] = np.minimum(out[rows - 1 :], values[rows - 1 - back : len(values) - back])
    return out


def _shared(rise: Float64) -> float:
    everything = np.arange(len(rise))
    return float(common_rise(rise, np.ones(len(rise), bool), [everything])[0])


def _log_signs(name: str, path: Path) -> RunSigns:
    with open_runs(str(path)) as runs:
        log = next(runs)
        return signs_of(name, log.run, (b for rank, b in log.batches if rank == 0), seed=None)
