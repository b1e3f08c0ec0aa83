"""The diagnosis engine: batches in, verdict out. Streaming, restartable, equal under any chunking.

Each rank has a stream whose detectors see every step once, in order; rules then look only at the few symptoms
the streams hold. The verdict is a function of those symptoms, so it does not depend on how the run was cut
into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.arbiter import judge
from floatscope_diagnostics.calibration import Calibration, fitted
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.curve_shapes.book import CurveBook
from floatscope_diagnostics.curve_shapes.shapes import shapes
from floatscope_diagnostics.curve_shapes.unjudged import too_little, unjudged
from floatscope_diagnostics.detectors.pairs import PairedLoss
from floatscope_diagnostics.detectors.ranks import WAIT_STEPS, RankBoard
from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.lifecycle import incident_id, incident_ids, state_of
from floatscope_diagnostics.log_next import wishes
from floatscope_diagnostics.logged import LoggedSteps, seen_stats
from floatscope_diagnostics.machine import Machine
from floatscope_diagnostics.machine_hints import hinted
from floatscope_diagnostics.not_checked import LogGaps, unchecked
from floatscope_diagnostics.rule import Finding, Rule, RunFacts, Symptoms, Window
from floatscope_diagnostics.rule_settings import RuleSettings
from floatscope_diagnostics.rules import load_rules
from floatscope_diagnostics.state_codec import StateError, pack, unpack
from floatscope_diagnostics.stream import RankStream
from floatscope_diagnostics.summary import summarize
from floatscope_diagnostics.verdict import Judged, Source, Verdict, status_of

STATE_VERSION = 6
MOST_SEGMENTS = 32  # listed in the source, the newest
# No scalar of a training run lies beyond these; between them ratios and squares are exact enough and finite.
LARGEST, SMALLEST = 1e30, 1e-37


class Engine:
    """Diagnosis of one run.

    run: what is known of it, may grow by ``update_run``.  run_key: what makes finding ids unique among runs
    (a run id); default the run's name.  rules: default all.  calibration: of the confidences, default the one
    fitted on the injection library.  settings: what people set for the rules; may be replaced by ``use``.
    """

    def __init__(
        self,
        run: RunInfo,
        *,
        run_key: str | None = None,
        rules: tuple[Rule, ...] | None = None,
        calibration: Calibration | None = None,
        settings: RuleSettings | None = None,
    ) -> None:
        self.run = run
        self.run_key = run_key if run_key is not None else (run.name or "")
        self.rules = load_rules() if rules is None else rules
        self.calibration = fitted() if calibration is None else calibration
        self.settings = settings or RuleSettings()
        self.columns = Columns(run)
        self._streams: dict[int, RankStream] = {}
        self._board = RankBoard()
        self._pairs = PairedLoss()
        self._book = CurveBook()
        self._table_version = -1  # what follows is derived from the columns of this version
        self._formats: dict[str, str] = {}
        self._forward_order: tuple[str, ...] = ()
        self._call_order: dict[str, int] = {}
        self._machine = Machine.of(run.preflight)

    def feed(self, batch: Batch, rank: int = 0, segment: int | None = None) -> None:
        """Judges the steps of one batch of one rank.

        Batches of a rank come in the rank's order; ranks may interleave.
        """
        self._book.feed(batch, rank=rank, segment=segment)
        batch = replace(batch, scalars=_tamed(batch.scalars))
        stream = self._streams.get(rank)
        if stream is None:
            stream = self._streams[rank] = RankStream(rank, self.columns, self._board)
        with np.errstate(over="ignore", invalid="ignore"):  # a log may hold any number
            stream.feed(batch, segment=segment)
        if rank == min(self._streams):
            self._pair(batch)

    def feed_baseline(
        self,
        step: NDArray[np.int64],
        loss: NDArray[np.float64],
        data_id: NDArray[np.float64] | None = None,
        lr: NDArray[np.float64] | None = None,
    ) -> None:
        """Takes steps of the baseline run, ascending; in any order relative to ``feed``."""
        own = _tamed(np.asarray(loss, np.float64))
        self._pairs.add_baseline(np.asarray(step, np.int64), own, data_id, lr)

    def update_run(self, run: RunInfo) -> None:
        """Merges a later description: more tensors, another recipe, status or reason."""
        before = self.run.recipe
        self.run = self.run.merged(run)
        if run.preflight:
            self._machine = Machine.of(self.run.preflight)
        self.columns.update_run(self.run)
        if dict(before) != dict(self.run.recipe):
            for rank in sorted(self._streams):
                self._streams[rank].recipe_changed()
            self._board.recipe_changed()

    def finish(self, status: str | None = None, reason: str | None = None) -> None:
        """The run ended (or was marked so); later steps are still accepted."""
        self.update_run(RunInfo(status=status, reason=reason))

    def use(self, settings: RuleSettings) -> None:
        """Takes other settings of the rules. They hold for all steps, those fed before as well: only what
        the rules say of the symptoms depends on them.
        """
        self.settings = settings

    def verdict(self, *, live: bool = False) -> Verdict:
        """What the steps fed so far show. live: a running run drops recovered findings from its status."""
        rules = self.settings.bound(self.rules)
        facts = self.facts()
        symptoms = self.symptoms()
        window = Window(last_step=facts.last_step or 0, last_scalars=self._last_scalars())
        found: list[Finding] = []
        for rule in rules:
            for finding in rule.check(symptoms, window, facts):
                signal = finding.evidence[0].signal if finding.evidence else finding.symptom
                key = finding.key if finding.key[2] else (finding.detected, finding.onset, signal)
                found.append(replace(finding, rule=rule.code, key=key))
        judgement = judge(found, stride=symptoms.stride, calibration=self.calibration)
        explained: dict[int, list[Finding]] = {}
        for old, by in judgement.replaced:
            explained.setdefault(id(by), []).append(old)
        ids = incident_ids(self.run_key, judgement.findings, symptoms)
        findings: list[Judged] = []
        replaced: list[Judged] = []
        gaps = self.gaps()
        for finding in judgement.findings:
            state = state_of(finding, rules=rules, symptoms=symptoms, window=window, run=facts)
            before = explained.get(id(finding), [])
            shown = self.settings.judged(self._placed(hinted(finding, self._machine), before))
            if state != "recovered":
                shown = replace(shown, log_next=wishes(shown, rules, gaps))
            findings.append(Judged(ids[id(finding)], shown, state))
            replaced += [
                self._replaced(f, name, findings[-1].id)
                for f in before
                if (name := incident_id(self.run_key, f, symptoms)) not in ids.values()
            ]
        onsets = [j.finding for j in findings if j.finding.severity != "info"]
        clean = facts.last_step
        if onsets:
            clean = self._clean_before(min(onsets, key=lambda f: (f.onset, f.segment)))
        findings += replaced
        status = status_of(tuple(findings), live=live)
        return Verdict(
            source=self._source(facts),
            status=status,
            summary=summarize(
                tuple(findings), facts, but=too_little(self._book) if facts.curves_only else ""
            ),
            last_clean_step=clean,
            confidence_basis=self.calibration.basis,
            findings=tuple(findings),
            not_checked=unchecked(rules, facts, gaps)
            + (self._unjudged(rules) if facts.curves_only else ())
            + self.settings.off(self.rules),
            rule_settings=self.settings.to_json(),
        )

    def symptoms(self) -> Symptoms:
        found: list[Symptom] = []
        for rank in sorted(self._streams):
            found.extend(self._streams[rank].symptoms())
        found.extend(self._board.symptoms(self.columns))
        found.extend(self._pairs.symptoms(self.columns))
        if not len(self.columns):
            found.extend(shapes(self._book, vocab_size=self.run.vocab_size))
        lowest = min(self._streams, default=None)
        stride = 1 if lowest is None else self._streams[lowest].stride()
        return Symptoms(tuple(sorted(found, key=lambda s: (s.segment, s.onset, s.rank, s.signal))), stride)

    def facts(self) -> RunFacts:
        streams = [self._streams[r] for r in sorted(self._streams)]
        firsts = [s.first_step for s in streams if s.first_step is not None]
        lasts = [s.last_step for s in streams if s.last_step is not None]
        columns = self.columns
        if self._table_version != columns.version:
            self._table_version = columns.version
            forward = columns.ordered(~columns.backward)
            self._formats = {n: f for n, f in zip(columns.names, columns.fmt, strict=True) if f is not None}
            self._forward_order = tuple(columns.names[i] for i in forward)
            self._call_order = dict(zip(columns.names, columns.call_order.tolist(), strict=True))
        return RunFacts(
            recipe=self.run.recipe,
            formats=self._formats,
            tensors=len(columns),
            stats=seen_stats([s.coverage for s in streams], columns),
            scalars=frozenset(n for s in streams for n in s.coverage.scalars),
            ranks=len(streams),
            world_size=max(self.run.ranks or 1, len(streams)),
            first_step=min(firsts, default=None),
            last_step=max(lasts, default=None),
            vocab_size=self.run.vocab_size,
            status=self.run.status,
            reason=self.run.reason,
            has_baseline=self._pairs.used,
            forward_order=self._forward_order,
            call_order=self._call_order,
            stats_every=max((s.coverage.measured_every() for s in streams), default=1),
            machine=self._machine,
        )

    def gaps(self) -> LogGaps:
        """What the ranks have not logged, or too seldom."""
        return LogGaps({r: self._streams[r].coverage for r in sorted(self._streams)}, self.columns)

    def state(self) -> bytes:
        """Everything the engine remembers; see ``restore``."""
        return pack(
            {
                "version": STATE_VERSION,
                "run_key": self.run_key,
                "columns": self.columns.names,
                "pairs": self._pairs.state(),
                "book": self._book.state(),
                "board": self._board.state(),
                "streams": [self._streams[r].state() for r in sorted(self._streams)],
            }
        )

    @classmethod
    def restore(
        cls,
        run: RunInfo,
        state: bytes,
        *,
        rules: tuple[Rule, ...] | None = None,
        calibration: Calibration | None = None,
        settings: RuleSettings | None = None,
    ) -> Engine:
        """An engine that goes on as if it had never stopped.

        Raises StateError for foreign or damaged bytes.
        """
        tree = unpack(state)
        if tree.get("version") != STATE_VERSION:
            raise StateError(
                f"the saved diagnosis state has version {tree.get('version')}, not {STATE_VERSION}"
            )
        engine = cls(run, run_key=tree["run_key"], rules=rules, calibration=calibration, settings=settings)
        engine.columns.add(tree["columns"])
        engine._board = RankBoard.load(tree["board"])
        engine._pairs = PairedLoss.load(tree["pairs"])
        engine._book = CurveBook.load(tree["book"])
        for saved in tree["streams"]:
            stream = RankStream.load(saved, engine.columns, engine._board)
            engine._streams[stream.rank] = stream
        return engine

    def _unjudged(self, rules: tuple[Rule, ...]) -> tuple[Mapping[str, Any], ...]:
        """Curves that are too short, for the rules that are on."""
        codes = {rule.code for rule in rules}
        return tuple(entry for entry in unjudged(self._book) if entry["rule"] in codes)

    def _pair(self, batch: Batch) -> None:
        """Losses of the lowest rank meet those of the baseline."""
        rows = {name: batch.scalar(name) for name in ("loss", "ref_loss", "data_id", "lr")}
        self._pairs.add_own_rows(batch.step, rows, declared=self.run.baseline is not None)

    def _last_scalars(self) -> Mapping[str, float]:
        lowest = min(self._streams, default=None)
        return {} if lowest is None else dict(self._streams[lowest].last_scalars)

    def _stream_of(self, finding: Finding) -> RankStream | None:
        """The stream whose steps a finding's are: of its rank, or the lowest."""
        known = self._streams.get(-1 if finding.rank is None else finding.rank)
        return known if known is not None else self._streams.get(min(self._streams, default=0))

    def _steps_of(self, finding: Finding) -> LoggedSteps | None:
        """The logged steps that could show it: those with tensor statistics if it is about tensors."""
        stream = self._stream_of(finding)
        return None if stream is None else stream.measured if finding.tensors else stream.logged

    def _clean_before(self, finding: Finding) -> int | None:
        steps = self._steps_of(finding)
        return None if steps is None else steps.clean_before(finding.segment, finding.onset)

    def _placed(self, finding: Finding, explained: list[Finding]) -> Finding:
        """The finding with its window and end on logged steps, and with what it replaced in its summary."""
        steps = self._steps_of(finding)
        if steps is not None:
            before = steps.before(finding.segment, finding.onset)
            if finding.onset_first is None and before is not None and before + 1 < finding.onset:
                finding = replace(finding, onset_first=before + 1)
            after = None if finding.last is None else steps.after(finding.segment, finding.last)
            if finding.resolved is not None and after is not None:
                finding = replace(finding, resolved=after)
        names = sorted({f"{f.cause.replace('_', ' ')} at step {f.detected:,}" for f in explained})
        if names:
            said = f"{finding.summary} It explains what was reported as {' and '.join(names)}."
            finding = replace(finding, summary=said)
        return finding

    def _replaced(self, finding: Finding, name: str, by: str) -> Judged:
        """An earlier report that a better one explains now: a note, so that its alert can be closed."""
        return Judged(name, replace(finding, severity="info"), "replaced", by)

    def _source(self, facts: RunFacts) -> Source:
        lowest = min(self._streams, default=None)
        stream = None if lowest is None else self._streams[lowest]
        notes = [] if stream is None else [f"step numbers restart after step {s}" for s in stream.seams]
        if stream is not None:
            notes += [f"steps {a} to {b} were lost before they could be sent" for a, b in stream.holes]
        notes += self._machine.notes()
        return Source(
            steps=0 if stream is None else stream.steps,
            first_step=facts.first_step,
            last_step=facts.last_step,
            judged_step=self._judged_step(),
            segments=() if stream is None else tuple(sorted(stream.logged.starts().items()))[-MOST_SEGMENTS:],
            scalars=tuple(sorted(facts.scalars)),
            tensors=facts.tensors,
            notes=tuple(notes),
        )

    def _judged_step(self) -> int | None:
        """Last step of the newest segment that every rank has sent, or one is WAIT_STEPS ahead of."""
        newest = max((s.segment for s in self._streams.values()), default=0)
        current = [s for s in self._streams.values() if s.segment == newest and s.last_step is not None]
        if not current:
            return None
        lasts = [s.last_step for s in current if s.last_step is not None]
        if len(current) < len(self._streams):  # a rank has not gone back yet
            lasts.append(min(s.logged.starts().get(newest, lasts[0]) for s in current) - 1)
        judged = max(min(lasts), max(lasts) - WAIT_STEPS)
        return judged if judged >= 0 else None


def _tamed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scalars with finite ones beyond LARGEST at LARGEST and those below SMALLEST at 0; NaN and Inf stay."""
    inside = np.where(np.isfinite(values), np.clip(values, -LARGEST, LARGEST), values)
    return np.where(np.abs(inside) < SMALLEST, 0.0, inside)
