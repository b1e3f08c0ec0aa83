"""Sends one run of a log: what the server lacks of it, and nothing twice.

The server says of each rank which segment and step it holds last. Rows up to there are passed over, the rest
is sent under the seq it expects. So an import that is repeated changes nothing, one that was cut off goes on,
and a log that has grown brings only what is new.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np

from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.names import check_run_id
from floatscope.protocol.runinfo import RunInfo, TensorTable
from floatscope.protocol.strict_json import dumps
from floatscope_diagnostics.gather import Gathered
from floatscope_diagnostics.importing.pieces import RankCutter
from floatscope_diagnostics.importing.server import ImportFailed, Position, Server

ID_ROWS = 16  # rows that make a run's identity: they stay the same however the log grows
SLUG_CHARS = 60
COMPARED = 8  # scalars compared where the server stands
SAME = 1e-6  # relative difference of a value that went through text
ENDED = ("finished", "failed", "crashed")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_PACKED = (".gz", ".zst", ".xz", ".bz2")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; None: not given."""

    project: str | None = None
    name: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class Sent:
    """What became of one run. present: rows the server had already."""

    label: str
    number: int
    run_id: str
    url: str
    sent: int
    present: int
    health: str | None
    summary: str | None


def send(found: Gathered, server: Server, wanted: Wanted) -> Sent:
    """Sends a run. Raises ImportFailed, and UnreadableLog while it is read."""
    head, batches = _head(found)
    name = wanted.name or found.run.name or _file_name(found.label)
    name = name if found.number == 1 else f"{name}, run {found.number}"
    run_id = _run_id(found, head, wanted)
    stored = server.find(run_id)
    described = replace(
        found.run, name=name, project=wanted.project or found.run.project, status=None, reason=None
    )
    sending = _Sending(server, run_id, described, dict(stored.positions) if stored else {})
    if stored is None or stored.status not in ENDED:
        sending.open()
    for rank, batch in batches:
        sending.add(rank, batch)
    sending.flush()
    ended = found.run
    if sending.is_open:
        server.finish(run_id, ended.status if ended.status in ENDED else "finished", ended.reason)
    after = server.find(run_id)
    return Sent(
        found.label,
        found.number,
        run_id,
        sending.url or server.link(run_id),
        sending.sent,
        sending.present,
        None if after is None else after.health,
        None if after is None else after.summary,
    )


@dataclass
class _Sending:
    """info: the run as it is described to the server.  positions: how far each rank is stored."""

    server: Server
    run_id: str
    info: RunInfo
    positions: dict[int, Position]
    url: str | None = None
    sent: int = 0
    present: int = 0
    _cutters: dict[int, RankCutter] = field(default_factory=dict)
    _met: set[int] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        return self.url is not None

    def open(self) -> None:
        """Creates the run, or sets one that had ended running again."""
        self.url = self.server.open(self.run_id, self.info)

    def add(self, rank: int, batch: Batch) -> None:
        """Takes the next batch of a rank and sends what the server lacks."""
        for part in self._cutters.setdefault(rank, RankCutter()).add(batch):
            self._put(rank, part)

    def flush(self) -> None:
        """Sends the rest."""
        for rank, cutter in self._cutters.items():
            for part in cutter.flush():
                self._put(rank, part)

    def _put(self, rank: int, whole: Batch) -> None:
        for part in self._lacking(rank, whole):
            if not self.is_open:
                self.open()
            at = self.positions.get(rank, Position())
            table: TensorTable = {name: dict(self.info.tensors.get(name, {})) for name in part.tensor_names}
            seq = self.server.put(self.run_id, rank, at.seq, part, table)
            self.positions[rank] = Position(seq, part.segment or 0, int(part.step[-1]))
            self._met.add(rank)
            self.sent += len(part)

    def _lacking(self, rank: int, part: Batch) -> Iterator[Batch]:
        """The rows of a part behind the last one the server has of this rank."""
        at = self.positions.get(rank, Position())
        segment = part.segment or 0
        start = 0
        if at.last_step is not None and segment <= at.segment:
            start = len(part)
            if segment == at.segment:
                start = int(np.searchsorted(part.step, at.last_step, side="right"))
                self._compare(rank, part, start - 1, at)
        self.present += start
        if start == len(part):
            return
        if at.last_step is not None and rank not in self._met:
            raise ImportFailed(
                f"run {self.run_id} on the server stands at step {at.last_step:,} of rank {rank}, which "
                "this log does not hold: it is another run. Give --run-id a name of its own"
            )
        yield part.rows(start, len(part)) if start else part

    def _compare(self, rank: int, part: Batch, row: int, at: Position) -> None:
        """Where the server stands both must have the same values, or they are different runs."""
        if rank in self._met or row < 0 or int(part.step[row]) != at.last_step:
            return
        self._met.add(rank)
        names = [n for k, n in enumerate(part.scalar_names) if part.scalars_present[row, k] and "," not in n]
        names.sort(key=lambda n: n != "loss")
        theirs = self.server.scalars_at(self.run_id, rank, at, tuple(names[:COMPARED])) if names else {}
        for name, stored in theirs.items():
            ours = float(part.scalars[row, part.scalar_names.index(name)])
            if not math.isfinite(ours):
                same = stored is None
            else:
                same = stored is not None and math.isclose(ours, stored, rel_tol=SAME, abs_tol=1e-30)
            if not same:
                raise ImportFailed(
                    f"run {self.run_id} on the server has {name} {stored} at step {at.last_step:,}, this log "
                    f"has {ours:g}: it is another run. Give --run-id a name of its own"
                )


def _head(found: Gathered) -> tuple[list[str], Iterator[tuple[int, Batch]]]:
    """The first ID_ROWS rows of the first rank as canonical text, and all batches from the beginning."""
    batches = found.batches()
    looked: list[tuple[int, Batch]] = []
    rows: list[str] = []
    for rank, batch in batches:
        looked.append((rank, batch))
        if rank == looked[0][0]:
            part = batch.rows(0, ID_ROWS - len(rows))
            rows += [dumps(row) for row in rows_from_batch(part, rank=rank)]
        if len(rows) >= ID_ROWS:
            break
    if not rows:
        raise ImportFailed("holds no step")
    return rows, itertools.chain(looked, batches)


def _run_id(found: Gathered, head: list[str], wanted: Wanted) -> str:
    """As asked for, with the number of the run where a log holds several; else from the content."""
    if wanted.run_id is not None:
        return wanted.run_id if found.number == 1 else check_run_id(f"{wanted.run_id}-{found.number}")
    slug = _UNFIT.sub("-", found.run.name or _stem(found.label)).strip("-.")[:SLUG_CHARS] or "run"
    said = "\n".join([found.run.name or "", str(found.number), *head])
    return f"{slug}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def _file_name(label: str) -> str:
    return "standard input" if label == "-" else PurePath(label).name[:200] or label


def _stem(label: str) -> str:
    name = PurePath(label).name
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return PurePath(name).stem
