"""Logs whose steps do not ascend: rows are counted where there are too many steps back to be believed, and
nothing is changed where they are restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from floatscope.protocol.batch import Batch, lost_batch
from floatscope_diagnostics.diagnose import diagnose_paths
from floatscope_diagnostics.readers.falling_steps import MOST_BACK, ascending
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.run_log import Tally

ROWS = 20_000
SECONDS = 20.0  # a second or two where nothing else runs; minutes if each step back were a resume


def text(steps: Iterable[int]) -> str:
    return "".join(f"step {s} loss: {2 + 0.1 * (k % 7):.2f}\n" for k, s in enumerate(steps))


def csv(steps: Iterable[int]) -> str:
    return "step,loss\n" + "".join(f"{s},{2 + 0.1 * (k % 7):.2f}\n" for k, s in enumerate(steps))


def jsonl(steps: Iterable[int]) -> str:
    return "".join(json.dumps({"step": s, "loss": 2 + 0.1 * (k % 7)}) + "\n" for k, s in enumerate(steps))


def trainer_state(steps: Iterable[int]) -> str:
    rows = [{"step": s, "epoch": 0.0, "loss": 2 + 0.1 * (k % 7)} for k, s in enumerate(steps)]
    return json.dumps({"log_history": rows, "global_step": 1})


FORMATS = pytest.mark.parametrize("write", [text, csv, jsonl, trainer_state])


def read(path: Path) -> tuple[list[int], list[str]]:
    """The steps of all rows, and the notes."""
    steps: list[int] = []
    notes: list[str] = []
    with open_runs(str(path)) as runs:
        for run in runs:
            steps += [s for _, batch in run.batches for s in batch.step.tolist()]
            notes += run.tally.notes
    return steps, notes


@FORMATS
@pytest.mark.parametrize("step", [lambda k: ROWS - k, lambda k: k % 2], ids=["down", "to and fro"])
def test_steps_that_never_rise_for_long_are_counted(
    tmp_path: Path, write: Callable[[Iterable[int]], str], step: Callable[[int], int]
) -> None:
    path = tmp_path / "log"
    path.write_text(write(map(step, range(ROWS))))
    begun = time.monotonic()
    done, unread = diagnose_paths([str(path)])
    assert time.monotonic() - begun < SECONDS
    assert not unread
    source = done[0].verdict.source
    assert len(done) == 1
    assert source.steps == ROWS
    assert any("steps are a count of " in note for note in source.notes)
    assert read(path)[0] == list(range(1, ROWS + 1))


@FORMATS
def test_some_hundred_restarts_stay(tmp_path: Path, write: Callable[[Iterable[int]], str]) -> None:
    path = tmp_path / "log"
    steps = [s for k in range(300) for s in range(10 * k + 5, 10 * k + 19)]  # each loses 3 or 4 steps
    path.write_text(write(steps))
    found, notes = read(path)
    assert set(found) == set(steps)
    assert not any("count of" in note for note in notes)


def test_the_note_names_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text([*range(1, 501), *range(ROWS, 0, -1)]))
    steps, notes = read(path)
    assert steps == list(range(1, len(steps) + 1))
    assert any("the first of them at line 502)" in note for note in notes)


def batches(*parts: list[int], rank: int = 0) -> Iterator[tuple[int, Batch]]:
    for steps in parts:
        size = len(steps)
        yield (
            rank,
            Batch(
                np.array(steps),
                np.full(size, np.nan),
                ("loss",),
                np.ones((size, 1)),
                np.ones((size, 1), bool),
            ),
        )


def test_what_went_before_keeps_its_steps() -> None:
    tally = Tally()
    down = list(range(5_000, 0, -1))
    out = list(ascending(batches(list(range(10, 110)), down, [7, 7]), tally))
    steps = np.concatenate([b.step for _, b in out]).tolist()
    assert steps == list(range(10, 110 + len(down) + 2))
    assert tally.steps_from is not None
    assert "the first of them is row 102)" in tally.steps_from
    assert "on from there" in tally.steps_from


def test_each_rank_is_counted_by_itself() -> None:
    many = MOST_BACK + 1

    def both() -> Iterator[tuple[int, Batch]]:
        for k in range(many):
            yield from batches([many - k], rank=0)
            yield from batches([many - k], rank=1)

    out = list(ascending(both(), Tally()))
    for rank in (0, 1):
        assert [int(b.step[0]) for r, b in out if r == rank] == list(range(many, 2 * many))


def test_rows_are_not_held_back_while_steps_ascend() -> None:
    asked: list[int] = []

    def source() -> Iterator[tuple[int, Batch]]:
        for k in range(3):
            asked.append(k)
            yield from batches(list(range(100 * k, 100 * k + 100)))

    out = ascending(source(), Tally())
    next(out)
    assert asked == [0]


def test_holes_stay_where_steps_are_steps() -> None:
    out = list(ascending(iter([(0, lost_batch(3, 5))]), Tally()))
    assert out[0][1].lost == (3, 5)
