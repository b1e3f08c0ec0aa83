"""Pieces of text logs become rows: steps, epochs, evaluations, ranks, resumes, several runs, events."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_diagnostics.readers.assemble import assemble
from floatscope_diagnostics.readers.piece import EVAL, EVENT, RESUME, START, TRAIN, Piece
from floatscope_diagnostics.readers.records import MAX_STEP, Records
from floatscope_diagnostics.readers.run_log import Tally

Row = dict[str, float]


@dataclass(frozen=True)
class Read:
    """One run. rows: by rank, each with its step."""

    ranks: dict[int, list[Row]]
    notes: list[str]

    @property
    def rows(self) -> list[Row]:
        assert list(self.ranks) == [0]
        return self.ranks[0]

    @property
    def steps(self) -> list[float]:
        return [row["step"] for row in self.rows]

    def series(self, name: str) -> list[float | None]:
        return [row.get(name) for row in self.rows]

    def noted(self, words: str) -> bool:
        return any(words in note for note in self.notes)


def read(pieces: Iterable[Piece]) -> list[Read]:
    """All runs of a log whose lines gave these pieces."""
    records = Records()
    for number, piece in enumerate(pieces, start=1):
        assert records.add(number, piece)
    out = []
    for log in assemble(records, Tally(), "test"):
        ranks: dict[int, list[Row]] = {}
        for rank, batch in log.batches:
            assert (np.diff(batch.step) > 0).all()
            for t, step in enumerate(batch.step.tolist()):
                row = {
                    name: float(batch.scalars[t, k])
                    for k, name in enumerate(batch.scalar_names)
                    if batch.scalars_present[t, k]
                }
                ranks.setdefault(rank, []).append({"step": step, **row})
        out.append(Read(ranks, log.tally.notes))
    return out


def one(pieces: Iterable[Piece]) -> Read:
    runs = read(pieces)
    assert len(runs) == 1
    return runs[0]


def losses(steps: Iterable[int], level: float = 2.0) -> list[Piece]:
    return [Piece({"loss": level - 0.001 * k}, step=step) for k, step in enumerate(steps)]


def fall(steps: Iterable[int]) -> list[Piece]:
    """A loss that falls from 8 towards 2."""
    return [Piece({"loss": 2 + 6 * math.exp(-k / 10)}, step=step) for k, step in enumerate(steps)]


def test_pieces_that_share_a_step_are_one_row() -> None:
    run = one(
        [
            Piece({"lr": 0.1}, step=1),
            Piece({"loss": 2.0}, step=1),
            Piece({"lr": 0.1}, step=2),
            Piece({"loss": 1.9}, step=2),
            Piece({"eval_loss": 2.5}, kind=EVAL),
            Piece({"loss": 1.8}, step=3),
            Piece({"eval_loss": 2.4}, step=3, kind=EVAL),
        ]
    )
    assert run.rows == [
        {"step": 1, "lr": 0.1, "loss": 2.0},
        {"step": 2, "lr": 0.1, "loss": 1.9, "eval_loss": 2.5},
        {"step": 3, "loss": 1.8, "eval_loss": 2.4},
    ]


def test_records_without_any_step_are_counted_from_1() -> None:
    run = one([Piece({"loss": 3.0 - k}, epoch=0.01 * k) for k in range(3)])
    assert run.steps == [1, 2, 3]
    assert run.noted("records are counted")


def test_a_record_over_two_lines_ends_where_a_name_comes_again() -> None:
    run = one([Piece({n: 1.0}) for n in ("lr", "loss", "lr", "loss", "lr", "loss")])
    assert run.steps == [1, 2, 3]
    assert run.series("loss") == [1.0, 1.0, 1.0]


def test_epochs_and_batches_make_steps() -> None:
    pieces = [Piece({"loss": 1.0}, epoch=e, batch=b, batches=100) for e in (1, 2) for b in (50, 100)]
    pieces.append(Piece({"eval_loss": 1.0}, epoch=2, kind=EVAL))
    assert one(pieces).steps == [50, 100, 150, 200]
    from_zero = [Piece({"loss": 1.0}, epoch=e, batch=b, batches=100) for e in (0, 1) for b in (0, 50)]
    assert one(from_zero).steps == [0, 50, 100, 150]


def test_the_batches_of_an_epoch_are_learnt() -> None:
    run = one([Piece({"loss": 1.0}, epoch=e, batch=b) for e in (1, 2, 3) for b in (0, 10, 20)])
    assert run.steps == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert run.noted("epochs of 30 batches, as learnt")


def test_a_batch_number_that_goes_on_through_the_epochs_is_a_step() -> None:
    pieces = [Piece({"loss": 1.0}, epoch=1 + b // 30, batch=b, batches=90) for b in range(0, 90, 10)]
    assert one(pieces).steps == list(range(0, 90, 10))


def test_epochs_are_steps_where_there_is_nothing_finer() -> None:
    pieces = []
    for epoch in (5, 6, 7):
        pieces += [Piece({"loss": 1.0}, epoch=epoch), Piece({"eval_loss": 1.5}, epoch=epoch, kind=EVAL)]
    run = one(pieces)
    assert run.steps == [5, 6, 7]
    assert run.series("eval_loss") == [1.5, 1.5, 1.5]


def test_iterations_that_restart_with_each_epoch_are_counted_on() -> None:
    pieces = []
    for epoch in range(4):
        level = 5.0 - epoch
        pieces += [Piece({"loss": level - b / 100}, step=b) for b in range(10, 101, 10)]
    run = one(pieces)
    assert run.steps == list(range(10, 401, 10))
    assert run.noted("restart with each of 4 epochs")


def test_several_runs_are_told_apart_by_the_loss() -> None:
    runs = read([*fall(range(0, 500, 10)), *fall(range(0, 500, 10)), *fall(range(0, 300, 10))])
    assert [len(r.rows) for r in runs] == [50, 50, 30]
    assert runs[2].noted("3 runs in one file")


def test_several_runs_are_told_apart_by_their_headers() -> None:
    pieces = []
    for _ in range(30):
        pieces.append(Piece(kind=START))
        pieces += [Piece({"eval_loss": 10.0 - s / 1000}, step=s, kind=EVAL) for s in range(0, 3000, 125)]
    runs = read(pieces)
    assert len(runs) == 30
    assert {len(r.rows) for r in runs} == {24}


def test_an_evaluation_before_the_first_step_belongs_to_the_new_run() -> None:
    first = [Piece({"eval_loss": 9.0}, step=0, kind=EVAL), *fall(range(0, 300, 10))]
    runs = read([*first, *first])
    assert [r.rows[0] for r in runs] == [{"step": 0, "loss": 8.0, "eval_loss": 9.0}] * 2


def test_steps_that_go_back_are_a_resume() -> None:
    run = one([*losses(range(100)), *losses(range(80, 150), 1.9)])
    assert run.steps == [*range(100), *range(80, 150)]
    assert run.noted("resumes at step 80 (line 101), after step 99")


def test_a_resume_to_the_beginning_with_a_trained_loss_is_the_same_run() -> None:
    before, after = fall(range(1, 100)), losses(range(1, 50))
    run = one([*before, Piece(kind=RESUME), *after])
    assert run.steps == [*range(1, 100), *range(1, 50)]


def test_a_restart_that_goes_on_is_no_new_run() -> None:
    run = one([*losses(range(50)), Piece(kind=START), Piece(kind=RESUME), *losses(range(50, 90))])
    assert run.steps == list(range(90))
    assert run.noted("a checkpoint was loaded before step 50")


def test_a_log_that_begins_from_a_checkpoint_says_so() -> None:
    assert one([Piece(kind=RESUME), *losses(range(500, 520))]).noted("begins from a checkpoint, at step 500")


def test_steps_out_of_order_are_sorted() -> None:
    steps = [1, 2, 4, 3, 5, 6, 9, 8, 7, 10]
    run = one([Piece({"loss": float(s)}, step=s) for s in steps])
    assert run.steps == list(range(1, 11))
    assert run.series("loss") == [float(s) for s in range(1, 11)]
    assert run.noted("out of order")


def test_ranks_that_print_the_same_are_one() -> None:
    run = one([Piece({"loss": 2.0 + s}, step=s, rank=r) for s in range(20) for r in range(16)])
    assert len(run.rows) == 20
    assert run.noted("16 ranks print the same numbers")


def test_ranks_that_take_turns_are_one() -> None:
    run = one([Piece({"loss": 2.0}, step=s, rank=s % 16) for s in range(64)])
    assert run.steps == list(range(64))
    assert run.noted("take turns")


def test_ranks_with_losses_of_their_own_are_kept() -> None:
    run = one([Piece({"loss": 2.0 + r}, step=s, rank=r) for s in range(20) for r in range(4)])
    assert sorted(run.ranks) == [0, 1, 2, 3]
    assert all(len(rows) == 20 for rows in run.ranks.values())


def test_repeats_of_a_step_are_one_and_nan_of_one_rank_stays_visible() -> None:
    pieces = []
    for step in range(10):
        pieces += [Piece({"loss": 2.0}, step=step)] * 15
        pieces += [Piece({"loss": math.nan if step == 7 else 2.0}, step=step)]
    run = one(pieces)
    assert run.steps == list(range(10))
    assert [math.isnan(x or 0.0) for x in run.series("loss")].index(True) == 7
    assert run.noted("150 records repeat a step")


def test_of_two_records_of_a_step_the_later_counts() -> None:
    pieces = [Piece({"loss": x}, step=s) for s, x in ((1, 9.0), (2, 9.0), (2, 8.0), (3, 8.0), (3, 7.0))]
    assert one(pieces).series("loss") == [9.0, 8.0, 7.0]


def scale(value: float) -> Piece:
    return Piece({"loss_scale": value}, kind=EVENT)


def test_events_lie_between_the_records_around_them() -> None:
    run = one([*losses([10]), scale(8.0), scale(4.0), *losses([20]), scale(2.0), scale(1.0)])
    assert [(r["step"], r.get("loss_scale")) for r in run.rows] == [
        (10, None), (15, 8.0), (20, 4.0), (21, 2.0), (22, 1.0),
    ]  # fmt: skip


def test_events_before_the_first_record_belong_to_its_step() -> None:
    run = one([scale(8.0), scale(4.0), *losses([10, 20])])
    assert run.steps == [9, 10, 20]


def test_a_log_of_scaler_lines_only_keeps_every_reduction() -> None:
    run = one([scale(2.0**-k) for k in range(12)])
    assert run.steps == list(range(1, 13))
    assert run.series("loss_scale")[-1] == 2.0**-11


def test_scales_between_evaluations_alone_keep_every_reduction() -> None:
    pieces = []
    for epoch in range(3):
        pieces += [
            Piece({"eval_loss": 2.0}, epoch=epoch, kind=EVAL),
            *[scale(2.0**k) for k in range(9, 0, -1)],
        ]
    run = one(pieces)
    assert sum("loss_scale" in r for r in run.rows) == 27


def test_a_bar_on_the_line_places_an_event() -> None:
    event = Piece({"loss_scale": 8.0}, kind=EVENT, batch=17, batches=100)
    assert one([*losses([10]), event, *losses([20])]).steps == [10, 17, 20]


def test_nan_told_in_words_beats_the_number_of_its_step() -> None:
    run = one([*losses([1]), Piece({"loss": math.nan}, kind=EVENT), *losses([2, 3])])
    assert [math.isnan(x or 0.0) for x in run.series("loss")] == [False, True, False]


def test_a_printed_scale_beats_the_event_of_its_step() -> None:
    run = one([*losses([1]), scale(4.0), Piece({"loss": 1.0, "loss_scale": 8.0}, step=2)])
    assert run.series("loss_scale") == [None, 8.0]


def test_records_without_a_step_among_others_fall_between_them() -> None:
    pieces = [
        Piece({"loss": 1.0}),
        Piece(step=10),
        Piece({"loss": 2.0}),
        Piece({"loss": 3.0}),
        Piece(step=20),
    ]
    run = one([*pieces, Piece({"loss": 4.0})])
    assert [(r["step"], r["loss"]) for r in run.rows] == [(9, 1.0), (10, 2.0), (15, 3.0), (20, 4.0)]


def test_a_gradient_norm_that_is_always_0_was_not_logged() -> None:
    run = one([Piece({"loss": 2.0, "grad_norm": 0.0}, step=s) for s in range(5)])
    assert run.series("grad_norm") == [None] * 5
    assert run.noted("grad_norm is 0 on every line")


def test_a_training_loss_of_evaluations_is_the_loss_where_there_is_no_other() -> None:
    pieces = [Piece({"eval_loss": 2.0, "eval_train_loss": 1.9}, step=s, kind=EVAL) for s in (0, 250)]
    assert one(pieces).series("loss") == [1.9, 1.9]


def test_absurd_numbers_are_refused_or_left_out() -> None:
    records = Records()
    assert not records.add(1, Piece({"loss": 1.0}, step=MAX_STEP))
    run = one([*losses([-5, 1, 2]), Piece({"loss": 1.0}, step=MAX_STEP - 1)])
    assert run.steps == [1, 2, MAX_STEP - 1]


numbers = st.none() | st.integers(-3, 40) | st.integers(-(2**60), 2**60)
pieces_of_any_kind = st.builds(
    Piece,
    st.dictionaries(
        st.sampled_from(["loss", "eval_loss", "lr", "loss_scale", "grad_norm"]),
        st.floats() | st.sampled_from([1.0, 2.0, math.nan]),
        max_size=3,
    ),
    step=numbers,
    epoch=st.none() | st.floats() | st.integers(0, 5).map(float),
    batch=numbers,
    batches=numbers,
    rank=st.none() | st.integers(-1, 3),
    kind=st.sampled_from([TRAIN, TRAIN, TRAIN, EVAL, EVENT, START, RESUME]),
)


@given(st.lists(pieces_of_any_kind, max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_pieces_give_rows_with_rising_steps(pieces: list[Piece]) -> None:
    records = Records()
    for number, piece in enumerate(pieces, start=1):
        records.add(number, piece)
    for log in assemble(records, Tally(), "test"):
        for _, batch in log.batches:
            assert len(batch)
            assert (np.diff(batch.step) > 0).all()
            assert batch.step[0] >= 0
            assert batch.step[-1] < MAX_STEP
            assert batch.scalars_present.any(axis=0).all()


def test_steps_that_fall_back_while_the_loss_is_exactly_0() -> None:
    runs = read([Piece({"loss": 0.0}, step=s) for s in (1, 2, 3, 1, 2, 3)])
    assert [r.steps for r in runs] == [[1, 2, 3], [1, 2, 3]]
