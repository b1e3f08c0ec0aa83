"""One rank's steps, judged one by one in order: owns the rank's detectors and their memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.detectors.gross_changes import GrossChanges
from floatscope_diagnostics.detectors.level import Level
from floatscope_diagnostics.detectors.level_steps import LevelSteps
from floatscope_diagnostics.detectors.nonfinite import detect_nonfinite
from floatscope_diagnostics.detectors.passed_rows import pass_over
from floatscope_diagnostics.detectors.phases import Phases
from floatscope_diagnostics.detectors.ranks import RankBoard
from floatscope_diagnostics.detectors.row import JudgedRow, ScalarRow, StatRow
from floatscope_diagnostics.detectors.run_changes import RunChanges
from floatscope_diagnostics.detectors.run_invariants import detect_run_invariants
from floatscope_diagnostics.detectors.run_trends import RunTrends
from floatscope_diagnostics.detectors.scale_state import ScaleState
from floatscope_diagnostics.detectors.tensor_changes import TensorChanges
from floatscope_diagnostics.detectors.trends import Trends
from floatscope_diagnostics.detectors.weight_gradients import WeightGradients
from floatscope_diagnostics.episodes import EpisodeLog, Symptom
from floatscope_diagnostics.frame import Frame, frame_of, rows_at
from floatscope_diagnostics.logged import Coverage, LoggedSteps
from floatscope_diagnostics.quiet_rows import QuietRows

MAX_FRAME_VALUES = 1 << 20  # rows times tensors laid out at a time: 75 MB of signals


class RankStream:
    """Detectors of one rank. logged, measured: its steps, and those with tensor statistics. steps: rows so
    far.  judged: those of them whose scalars were judged one by one.

    Rows must come in the rank's order; a step at or before the last one opens a segment.
    """

    def __init__(self, rank: int, columns: Columns, board: RankBoard) -> None:
        self.rank = rank
        self.columns = columns
        self.board = board
        self.segment = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.steps = 0
        self.judged = 0
        self.stat_rows = 0
        self.seams: list[int] = []
        self.holes: list[list[int]] = []
        self.last_scalars: dict[str, float] = {}
        self.coverage = Coverage()
        self.logged = LoggedSteps()
        self.measured = LoggedSteps()
        self.gap = Level(0.5)
        self.quiet = QuietRows()
        self.tensor_log = EpisodeLog()
        self.scalar_log = EpisodeLog()
        self.scales = ScaleState()
        self.changes = TensorChanges()
        self.run_changes = RunChanges()
        self.trends = Trends()
        self.phases = Phases()
        self.run_trends = RunTrends()
        self.weight_gradients = WeightGradients()
        self.level_steps = LevelSteps()
        self.gross_changes = GrossChanges()
        self._waiting: list[JudgedRow] = []

    def feed(self, batch: Batch, *, segment: int | None) -> None:
        """Judges every step of the batch."""
        if batch.lost is not None:
            self.holes = [*self.holes, [int(batch.lost[0]), int(batch.lost[1])]][-64:]
            return
        if len(batch) == 0:
            return
        rows = max(1, MAX_FRAME_VALUES // max(1, len(batch.tensor_names)))
        if len(batch) > rows:  # in parts, so that memory is bounded for any number of tensors
            for start in range(0, len(batch), rows):
                self.feed(batch.rows(start, min(start + rows, len(batch))), segment=segment)
            return
        asked = segment if segment is not None else batch.segment
        if asked is not None and asked > self.segment:
            self._seam(asked)
        frame = frame_of(batch, self.columns)
        if frame is not None:
            self.coverage.note_stats(frame.present)
        known = self.last_step
        back = np.flatnonzero(np.diff(batch.step, prepend=batch.step[0] - 1 if known is None else known) <= 0)
        edges = [0, *(k for k in back.tolist() if k), len(batch)]
        for start, stop in pairwise(edges):
            if self.last_step is not None and batch.step[start] <= self.last_step:
                self._judge_rows()
                self._seam(self.segment + 1)
            self._ascending(batch, start, stop, frame)
        self._judge_rows()

    def _ascending(self, batch: Batch, start: int, stop: int, frame: Frame | None) -> None:
        """Judges rows of one segment, each by itself or, far into a run without tensors, those chosen."""
        step = batch.step[start:stop]
        self.logged.extend(self.segment, step)
        self.coverage.note_scalars(batch.scalar_names, batch.scalars_present[start:stop])
        self._note_last(batch, start, stop)
        thin = stop  # up to here rows may be passed over
        if self.stat_rows or self.columns.run.ranks not in (None, 1) or self.board.knows_others(self.rank):
            thin = start
        elif frame is not None:
            at = int(np.searchsorted(batch.stat_row, start))
            thin = min(stop, int(batch.stat_row[at])) if at < len(batch.stat_row) else stop
        plain = min(thin, start + self.quiet.unseen())
        self._each(batch, start, plain, frame)
        if plain < thin:
            self._chosen(batch.rows(plain, thin))
        self._each(batch, thin, stop, frame)
        self.steps += stop - start

    def _each(self, batch: Batch, start: int, stop: int, frame: Frame | None) -> None:
        """Judges every one of the rows."""
        if start >= stop:
            return
        stat_at = {int(r): d for d, r in enumerate(batch.stat_row)}
        index = np.arange(start, stop)
        for t, step, scalars in zip(
            range(start, stop), batch.step[start:stop].tolist(), rows_at(batch, index), strict=True
        ):
            gap = None if self.last_step is None else step - self.last_step
            self._row(step, scalars, gap, frame, stat_at.get(t))
        self.quiet.total += stop - start

    def _chosen(self, batch: Batch) -> None:
        """Judges those of the rows, and of the last ones before them, that need it."""
        for row in self.quiet.choose(batch, self.columns.run.vocab_size):
            gap = row.gap
            if gap is None and self.last_step is not None:
                gap = row.step - self.last_step
            if row.passed is not None and gap is not None:
                pass_over(self.run_changes, self.run_trends, row.passed)
                self.board.pass_to(self.rank, row.step - gap)
            self._row(row.step, row.scalars, gap, None, None)
        self.last_step = int(batch.step[-1])
        self.board.pass_to(self.rank, self.last_step)

    def _row(
        self, step: int, scalars: dict[str, float], gap: int | None, frame: Frame | None, d: int | None
    ) -> None:
        """Judges one row. gap: steps since the row before it.  d: its place in the frame, if it has one."""
        if gap is not None:
            self.gap.update(float(gap))
        self._scalars(step, scalars)
        if d is not None and frame is not None:
            self._tensors(step, scalars, frame, d)
        if self.columns.run.ranks != 1:
            self.board.add(self.rank, step, self.segment, frame, d, scalars, self.columns)
        if self.first_step is None or step < self.first_step:
            self.first_step = step
        self.last_step = step

    def _note_last(self, batch: Batch, start: int, stop: int) -> None:
        """The newest value of each scalar that is counted."""
        present = batch.scalars_present[start:stop]
        for k, name in enumerate(batch.scalar_names):
            if name not in self.coverage.scalars or not present[:, k].any():
                continue
            row = stop - 1 - int(present[::-1, k].argmax())
            self.last_scalars[name] = float(batch.scalars[row, k])

    def recipe_changed(self) -> None:
        """Another recipe from here on: what the scales should be must be learned anew."""
        self.scales.seam()
        self.changes.seam()
        self.gross_changes.seam()
        self.trends.restart()

    def symptoms(self) -> list[Symptom]:
        return [
            *self.tensor_log.symptoms(self.columns, rank=self.rank, row=self.stat_rows),
            *self.scalar_log.symptoms(self.columns, rank=self.rank, row=self.judged),
        ]

    def stride(self) -> int:
        """Steps from one row to the next, as seen most of the time; 1 when every step is logged."""
        return max(1, round(self.gap.center)) if self.gap.count else 1

    def _seam(self, segment: int) -> None:
        self.segment = segment
        self.seams.append(self.last_step if self.last_step is not None else 0)
        self.seams = self.seams[-64:]
        self.last_step = None
        self.quiet.seam()
        self.tensor_log.seam()
        self.scalar_log.seam()
        self.scales.seam()
        self.changes.seam()
        self.run_changes.seam()
        self.trends.restart()
        self.phases.seam()
        self.run_trends.seam()
        self.weight_gradients.seam()
        self.level_steps.seam()
        self.gross_changes.seam()

    def _scalars(self, step: int, scalars: dict[str, float]) -> None:
        row = ScalarRow(
            step=step,
            index=self.judged,
            segment=self.segment,
            scalars=scalars,
            log=self.scalar_log,
            vocab_size=self.columns.run.vocab_size,
        )
        detect_run_invariants(row)
        self.run_changes.step(row)
        self.run_trends.step(row)
        self.scalar_log.close(row=self.judged)
        self.judged += 1

    def _tensors(self, step: int, scalars: Mapping[str, float], frame: Frame, d: int) -> None:
        row = StatRow(
            step=step,
            index=self.stat_rows,
            segment=self.segment,
            frame=frame,
            d=d,
            scalars=scalars,
            columns=self.columns,
            log=self.tensor_log,
        )
        self.measured.add(self.segment, step)
        broken = detect_nonfinite(row)
        wrong = self.scales.step(row, broken=broken)
        warming = self.run_changes.warming_up(self.first_step)
        warming |= self.phases.rising(row)
        if self.phases.other_source(scalars):
            self._judge_rows()
            self.changes.new_phase()
            self.trends.restart()
        self._waiting.append(JudgedRow(row, broken, wrong, warming))
        self.weight_gradients.step(row, excluded=broken | wrong, warming=warming)
        self.level_steps.step(row, excluded=broken, warming=warming)
        self.gross_changes.step(row, excluded=broken)
        self.stat_rows += 1

    def _judge_rows(self) -> None:
        """Detectors that look at many rows at once get those since the last seam or batch."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self.changes.rows_in_order(waiting)
        self.trends.rows_in_order(waiting)
        self.tensor_log.close(row=self.stat_rows - 1)

    def state(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "segment": self.segment,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "steps": self.steps,
            "judged": self.judged,
            "stat_rows": self.stat_rows,
            "seams": self.seams,
            "holes": self.holes,
            "last_scalars": self.last_scalars,
            "coverage": self.coverage.state(),
            "logged": self.logged.state(),
            "measured": self.measured.state(),
            "gap": self.gap.state(),
            "quiet": self.quiet.state(),
            "tensor_log": self.tensor_log.state(),
            "scalar_log": self.scalar_log.state(),
            "scales": self.scales.state(),
            "changes": self.changes.state(),
            "run_changes": self.run_changes.state(),
            "trends": self.trends.state(),
            "phases": self.phases.state(),
            "run_trends": self.run_trends.state(),
            "weight_gradients": self.weight_gradients.state(),
            "level_steps": self.level_steps.state(),
            "gross_changes": self.gross_changes.state(),
        }

    @classmethod
    def load(cls, state: Mapping[str, Any], columns: Columns, board: RankBoard) -> RankStream:
        out = cls(int(state["rank"]), columns, board)
        for name in (
            "segment",
            "first_step",
            "last_step",
            "steps",
            "judged",
            "stat_rows",
            "seams",
            "holes",
            "last_scalars",
        ):
            setattr(out, name, state[name])
        out.coverage = Coverage.load(state["coverage"])
        out.logged = LoggedSteps.load(state["logged"])
        out.measured = LoggedSteps.load(state["measured"])
        out.gap.load(state["gap"])
        out.quiet = QuietRows.load(state["quiet"])
        out.tensor_log = EpisodeLog.load(state["tensor_log"])
        out.scalar_log = EpisodeLog.load(state["scalar_log"])
        out.scales = ScaleState.load(state["scales"])
        out.changes = TensorChanges.load(state["changes"])
        out.run_changes = RunChanges.load(state["run_changes"])
        out.trends = Trends.load(state["trends"])
        out.phases = Phases.load(state["phases"])
        out.run_trends = RunTrends.load(state["run_trends"])
        out.weight_gradients = WeightGradients.load(state["weight_gradients"])
        out.level_steps = LevelSteps.load(state["level_steps"])
        if "gross_changes" in state:  # a state saved before there were any
            out.gross_changes = GrossChanges.load(state["gross_changes"])
        return out
