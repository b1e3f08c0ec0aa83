"""What a line of the overview shows of a run's batches: its loss as a short curve, its tokens a second.

Reading one takes milliseconds, so it is remembered with the number of batches it was made of.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from floatscope.protocol.names import MAX_STEP
from floatscope_server.curves import curve_of
from floatscope_server.levels import Level
from floatscope_server.store import series_reads
from floatscope_server.store.raw import Source
from floatscope_server.store.runs import RunRecord
from floatscope_server.store.stretches import Span
from floatscope_server.store.tensor_tables import TensorTables
from floatscope_server.store.tiles import Objects
from floatscope_server.store.warm import Warm

SPARK_POINTS = 60
TRACK_BYTES = 4_096  # about what one takes in memory
RATE_BINS = 5  # the last so many bins speak for now
RISING_BINS = 5  # tokens that rise in at least so many bins without an exception are counted from the start


@dataclass(frozen=True)
class Track:
    """loss: at most SPARK_POINTS, oldest first, None where a gap is.  tokens_per_s: of one rank."""

    loss: tuple[float | None, ...]
    tokens_per_s: float | None


@dataclass(frozen=True)
class Known:
    """A track as remembered. arrivals: batches of the run then.  made: by ``time.monotonic``."""

    track: Track
    arrivals: int
    made: float


def known(run: RunRecord, warm: Warm | None) -> Known | None:
    """What is remembered of the run, perhaps from fewer batches than it has now."""
    found: Known | None = None if warm is None else warm.get(("track", run.id))
    return found


def track(c: Connection, run: RunRecord, rank: int, objects: Objects | None, warm: Warm | None) -> Track:
    """The track of all the run's batches. Raises Damaged or Unreachable."""
    before = known(run, warm)
    if before is not None and before.arrivals == run.arrivals:
        return before.track
    seen = series_reads.view(Source(c, run.id, rank, TensorTables(), objects, warm), Span(0, MAX_STEP))
    levels = series_reads.scalars(seen, ["loss", "tokens", "step_time_s"], SPARK_POINTS)
    loss = tuple(value for _step, value in curve_of(levels["loss"], seen.first))
    made = Track(loss, tokens_per_s(levels["tokens"], levels["step_time_s"]))
    if warm is not None:
        warm.keep(("track", run.id), Known(made, run.arrivals, time.monotonic()), TRACK_BYTES)
    return made


def tokens_per_s(tokens: Level, step_time: Level) -> float | None:
    """Tokens a second lately. Some loops log the tokens of each step, others all since the start."""
    (_, seconds), (bins, counts) = _lasts(step_time), _lasts(tokens)
    seconds, lately = seconds[-RATE_BINS:], counts[-RATE_BINS:]
    seconds = seconds[seconds > 0]
    if not len(seconds) or not len(counts):
        return None
    if len(counts) >= RISING_BINS and bool((np.diff(counts) > 0).all()):
        steps = (bins[-1] - bins[-len(lately)]) * tokens.width
        rate = float((lately[-1] - lately[0]) / steps / np.median(seconds))
    else:
        rate = float(np.median(lately) / np.median(seconds))
    return rate if np.isfinite(rate) and rate > 0 else None


def _lasts(level: Level) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Bins with a finite value, and the last such value of each."""
    if level.last is None or not len(level.bins):
        return np.empty(0, dtype=np.int64), np.empty(0)
    values = np.asarray(level.last[0], dtype=np.float64)
    finite = np.isfinite(values)
    return np.asarray(level.bins, dtype=np.int64)[finite], values[finite]
