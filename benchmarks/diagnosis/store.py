"""Stored runs: one compressed file each, written beside its place and moved there, so that it is whole or
absent.
"""

from __future__ import annotations

import fcntl
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnosis.settings import LIBRARY_VERSION, Base
from floatscope.protocol.batch import Batch
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.wire_safetensors import decode, encode

CHUNK_STEPS = 250  # steps of a healthy run between two stored pieces, which are also where faults fork
_COMPRESSION = 1  # zlib level: a third of the size, and reading stays faster than the diagnosis


class CacheBusy(RuntimeError):
    """Another process writes into the same cache."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run, or a piece of one.

    info: what a log's first line says.  facts: what is known about the injection, for people and for checks.
    """

    info: RunInfo
    batch: Batch
    facts: Mapping[str, Any]


class Store:
    """The cache folder. Its layout: ``v<version>/base/<base id>/<step>.run`` and ``.safetensors``, and
    ``v<version>/fork/<base id>/<fork id>.run``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / f"v{LIBRARY_VERSION}"

    @contextmanager
    def writing(self, *, part: str = "") -> Iterator[None]:
        """Held by the one process that adds runs, or that adds one part of them. Raises CacheBusy."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"lock{part}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CacheBusy(
                    f"{self.root}: another process is adding runs; wait for it or choose another --cache"
                ) from error
            yield

    def chunk_path(self, base: Base, end: int) -> Path:
        """The piece of a healthy run that ends before step ``end``."""
        return self.root / "base" / base.id / f"{end:06d}.run"

    def checkpoint_path(self, base: Base, step: int) -> Path:
        """The checkpoint with ``step`` trained steps."""
        return self.chunk_path(base, step).with_suffix(".safetensors")

    def fork_path(self, base: Base, fork: str) -> Path:
        return self.root / "fork" / base.id / f"{fork}.run"

    def chunks(self, base: Base) -> list[int]:
        """Ends of the pieces that are there without a gap from step 0."""
        ends: list[int] = []
        for end in chunk_ends(base):
            if not self.chunk_path(base, end).exists():
                break
            ends.append(end)
        return ends

    def is_complete(self, base: Base) -> bool:
        return len(self.chunks(base)) == len(chunk_ends(base))

    def load_base(self, base: Base, *, first: int = 0, last: int | None = None) -> StoredRun | None:
        """The stored steps from ``first`` up to, not including, ``last``; None if none are there.

        Reads only the pieces it needs.
        """
        ends = [e for e in self.chunks(base) if e > first and (last is None or e - CHUNK_STEPS < last)]
        if not ends:
            return None
        pieces = [read_run(self.chunk_path(base, end)) for end in ends]
        whole = joined([p.batch for p in pieces])
        low = int(np.searchsorted(whole.step, first))
        high = len(whole) if last is None else int(np.searchsorted(whole.step, last))
        return StoredRun(info=pieces[-1].info, batch=whole.rows(low, high), facts=pieces[-1].facts)


def chunk_ends(base: Base) -> list[int]:
    """Steps before which the pieces of a healthy run end; the last piece may be shorter."""
    return [*range(CHUNK_STEPS, base.steps, CHUNK_STEPS), base.steps]


def write_run(path: Path, run: StoredRun) -> None:
    """Writes a run so that a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    table = {name: dict(facts) for name, facts in run.info.tensors.items()}
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        archive.writestr("run.json", json.dumps(run.info.to_json(), sort_keys=True))
        archive.writestr("facts.json", json.dumps(dict(run.facts), sort_keys=True))
        if len(run.batch):
            archive.writestr("batch.safetensors", encode(run.batch, table, with_table=True))
    os.replace(partial, path)


def read_run(path: Path) -> StoredRun:
    """Reads a stored run. Raises ValueError naming a file that is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = RunInfo.from_json(json.loads(archive.read("run.json")))
            facts = json.loads(archive.read("facts.json"))
            body = archive.read("batch.safetensors") if "batch.safetensors" in archive.namelist() else None
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise ValueError(f"{path}: not a stored run ({error}); delete it and run again") from error
    if body is None:
        batch = joined([])
    else:
        batch, _ = decode(body, find_table=lambda _: None)
    return StoredRun(info=info, batch=batch, facts=facts)


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches of the same tensors one after the other as one; a column that one lacks is missing there."""
    full = [b for b in batches if len(b)]
    if not full:
        return Batch(np.empty(0, np.int64), np.empty(0), (), np.empty((0, 0)), np.empty((0, 0), bool))
    if len(full) == 1:
        return full[0]
    tensors = full[0].tensor_names
    if any(b.tensor_names != tensors for b in full):
        raise ValueError("the batches name different tensors")
    names = tuple(sorted({n for b in full for n in b.scalar_names}))
    columns = [[b.scalar(n) for n in names] for b in full]
    stats = sorted({n for b in full for n in b.stats})
    offsets = np.cumsum([0, *[len(b) for b in full]])
    return replace(
        full[0],
        step=np.concatenate([b.step for b in full]),
        time=np.concatenate([b.time for b in full]),
        scalar_names=names,
        scalars=np.concatenate([np.column_stack([v for v, _ in c]) for c in columns]),
        scalars_present=np.concatenate([np.column_stack([m for _, m in c]) for c in columns]),
        stat_row=np.concatenate([b.stat_row + o for b, o in zip(full, offsets, strict=False)]),
        stats={n: np.concatenate([b.stat(n)[0] for b in full]) for n in stats},
        stats_present={n: np.concatenate([b.stat(n)[1] for b in full]) for n in stats},
    )


def with_scalar(batch: Batch, name: str, values: Mapping[int, float]) -> Batch:
    """The batch with one scalar replaced at the given steps and, if it is new, missing elsewhere."""
    old, present = batch.scalar(name)
    old, present = old.copy(), present.copy()
    for row, step in enumerate(batch.step.tolist()):
        if step in values:
            old[row], present[row] = values[step], True
    return with_column(batch, name, old, present)


def with_column(batch: Batch, name: str, values: NDArray[np.float64], present: NDArray[np.bool_]) -> Batch:
    """The batch with one scalar more, or with that one replaced. values, present: [T]."""
    kept = [k for k, n in enumerate(batch.scalar_names) if n != name]
    return replace(
        batch,
        scalar_names=(*(batch.scalar_names[k] for k in kept), name),
        scalars=np.column_stack([batch.scalars[:, kept], np.where(present, values, 0.0)]),
        scalars_present=np.column_stack([batch.scalars_present[:, kept], present]),
    )
