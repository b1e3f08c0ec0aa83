"""Tables: the quick way reads what the way line by line reads, and the traps of real tables."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.protocol.batch import Batch
from floatscope_diagnostics.readers import number_table
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.number_table import read_lines, read_plain
from floatscope_diagnostics.readers.run_log import Tally, UnreadableLog

Read = tuple[list[tuple[int, int, dict[str, float]]], Tally]

NUMBERS = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "", " ", "0.0", "-0", "1e5", "1E-7", "+3", ".5",
         "5.", "007", "1_000", " 2.5", "2.5 ", "1e400", "1e-400", "4.9e-324"]
    ),
)  # fmt: skip
TEXTS = st.sampled_from(
    ["x", "None", "null", "n/a", "True", "1.2.3", "12:30", "[nan]", "1.#QNAN", "0x10", "é", "-"]
)
LINES = st.sampled_from(["", "  ", "1,2", "1,2,3,4", '"1","2","3"', '"1,000",2,3', '1,"2', "1,2,3\r", "#"])


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    rows = draw(st.lists(st.tuples(NUMBERS, NUMBERS, st.one_of(NUMBERS, TEXTS)), min_size=1, max_size=12))
    lines = [",".join(row) for row in rows]
    for at, line in draw(st.lists(st.tuples(st.integers(0, 12), LINES), max_size=2)):
        lines.insert(at, line)
    return (draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))).encode()


@pytest.mark.parametrize("pandas", [True, False])
@settings(max_examples=120, deadline=None)
@given(data=blocks())
def test_both_ways_read_the_same(data: bytes, pandas: bool) -> None:
    quick = read_plain(data, ",", 3, large=pandas)
    tally = Tally()
    slow = read_lines(data, 1, ",", 3, tally)
    if quick is None:
        return
    assert tally.skipped == 0
    assert np.array_equal(quick.present, slow.present)
    assert quick.values.tobytes() == slow.values.tobytes() or _same(quick.values, slow.values)


def _same(a: np.typing.NDArray[np.float64], b: np.typing.NDArray[np.float64]) -> bool:
    """Equal to the last bit but for the sign of zeros and NaN."""
    return bool(np.array_equal(a, b, equal_nan=True))


@pytest.mark.parametrize("pandas", [True, False])
def test_a_plain_block_is_read_at_once(pandas: bool) -> None:
    data = b"1,nan,\n2,-inf,0.5\n\n3,,0.0\n"
    table = read_plain(data, ",", 3, large=pandas)
    assert table is not None
    assert table.present.tolist() == [[True, True, False], [True, True, True], [True, False, True]]
    assert math.isnan(table.values[0, 1])
    assert table.values[1, 1] == -math.inf
    assert table.values[2, 2] == 0.0


def read(path: Path, text: str, mapping: dict[str, str] | None = None) -> Read:
    path.write_bytes(text.encode())
    with open_runs(str(path), format_name="csv", mapping=mapping) as runs:
        run = next(runs)
        rows = [(rank, *row) for rank, batch in run.batches for row in rows_of(batch)]
        assert next(runs, None) is None
    return rows, run.tally


def rows_of(batch: Batch) -> list[tuple[int, dict[str, float]]]:
    return [
        (
            int(step),
            {
                n: float(batch.scalars[t, k])
                for k, n in enumerate(batch.scalar_names)
                if batch.scalars_present[t, k]
            },
        )
        for t, step in enumerate(batch.step)
    ]


def test_validation_rows_of_the_same_step_join_it(tmp_path: Path) -> None:
    text = "epoch,step,train_loss_step,val_loss\r\n0,49,2.5,\r\n0,49,,2.75\r\n1,99,2.25,\r\n1,99,,nan\r\n"
    rows, tally = read(tmp_path / "metrics.csv", text)
    assert rows[0] == (0, 49, {"epoch": 0.0, "loss": 2.5, "eval_loss": 2.75})
    assert rows[1][:2] == (0, 99)
    assert math.isnan(rows[1][2]["eval_loss"])
    assert len(rows) == 2
    assert not tally.notes
    assert tally.mapping == {"train_loss_step": "loss", "val_loss": "eval_loss"}


def test_an_epoch_that_counts_up_stands_for_the_step(tmp_path: Path) -> None:
    rows, tally = read(
        tmp_path / "a.csv", "epoch,acc,loss,val_acc,val_loss\n\n0,.5,2.,.4,2.5\n\n1,.6,1.5,.5,2.\n"
    )
    assert [r[1] for r in rows] == [0, 1]
    assert tally.notes == ["no step column: the epoch is used"]
    rows, tally = read(tmp_path / "b.csv", "epoch,loss\n0,2.0\n0,1.9\n1,1.8\n")
    assert [r[1] for r in rows] == [0, 1, 2]
    assert tally.notes == ["no step column: the row number is used"]


def test_ranks_interleave(tmp_path: Path) -> None:
    lines = ["step,rank,loss"] + [f"{s},{r},{s}.{r}" for s in range(200) for r in range(2)]
    rows, _ = read(tmp_path / "a.csv", "\n".join(lines))
    assert {r[0] for r in rows} == {0, 1}
    assert len(rows) == 400
    first_of_1 = next(k for k, r in enumerate(rows) if r[0] == 1)
    assert first_of_1 < 64


def test_exported_charts_and_columns_of_other_runs(tmp_path: Path) -> None:
    head = (
        '"Step","big-7 - train/loss","big-7 - train/loss__MIN","big-7 - train/loss__MAX","old - train/loss"'
    )
    rows, tally = read(
        tmp_path / "a.csv", head + '\n"0","2.5","2.5","2.5",""\n"10","2.25","2.25","2.25","3"\n'
    )
    assert rows == [(0, 0, {"loss": 2.5}), (0, 10, {"loss": 2.25})]
    assert tally.mapping == {"Step": "step", "big-7 - train/loss": "loss"}
    assert tally.notes == ["columns of 2 runs: only those of big-7 are read (--map for another)"]
    rows, _ = read(
        tmp_path / "b.csv", head + "\n0,2.5,2.5,2.5,\n10,2.2,2.2,2.2,3\n", {"old - train/loss": "loss"}
    )
    assert rows[1][2]["loss"] == 3.0


def test_a_detectors_parts_are_added_up(tmp_path: Path) -> None:
    head = "                  epoch,      train/box_loss,      train/cls_loss,        val/box_loss,  lr/pg0"
    rows, tally = read(
        tmp_path / "results.csv", head + "\n 0, 0.5, 0.25, 0.75, 0.01\n 1, 0.25, 0.25, 0.5, 0.01\n"
    )
    assert rows[0][2]["loss"] == 0.75
    assert "eval_loss" not in rows[0][2]
    assert rows[0][2]["lr"] == 0.01
    assert "loss is the sum of train/box_loss, train/cls_loss" in tally.notes


@pytest.mark.parametrize(
    "head",
    ["total/steps,train/loss_actor,train/loss_critic", "time/total_timesteps,rollout/ep_rew_mean,train/loss"],
)
def test_reinforcement_learning_has_no_loss_that_falls(tmp_path: Path, head: str) -> None:
    rows, tally = read(tmp_path / "progress.csv", head + "\n0,1.0,2.0\n100,,3.0\n")
    assert [r[1] for r in rows] == [0, 100]
    assert all("loss" not in r[2] for r in rows)
    assert any("reinforcement learning" in note for note in tally.notes)


def test_guesses_among_several_say_so_and_can_be_overruled(tmp_path: Path) -> None:
    text = "step,train_loss,total_loss,note\n1,2.0,3.0,a\n2,2.0,3.0,b\n"
    rows, tally = read(tmp_path / "a.csv", text)
    assert rows[0][2] == {"loss": 2.0, "total_loss": 3.0}
    assert tally.notes == ["loss is read from train_loss; total_loss could be it too (--map)"]
    rows, _ = read(tmp_path / "b.csv", text, {"total_loss": "loss"})
    assert rows[0][2] == {"loss": 3.0, "train_loss": 2.0}
    with pytest.raises(UnreadableLog, match="has no column 'nope'; its columns are: step, train_loss"):
        read(tmp_path / "c.csv", text, {"nope": "loss"})


@pytest.mark.parametrize("between", [" ", "\t", ",", "   "])
def test_two_columns_without_a_header(tmp_path: Path, between: str) -> None:
    path = tmp_path / "loss.txt"
    path.write_text("".join(f"{s}{between}{8 / s}\n" for s in range(1, 9)))
    with open_runs(str(path)) as runs:
        run = next(runs)
        rows = [row for _, batch in run.batches for row in rows_of(batch)]
    assert run.format == "csv"
    assert rows[0] == (1, {"loss": 8.0})
    assert run.tally.notes == ["two columns without a header: read as step and loss"]


def test_other_tables_without_a_header_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,2.0,3.0\n2,2.5,3.5\n3,2.5,3.5\n")
    with pytest.raises(UnreadableLog), open_runs(str(path)) as runs:
        list(next(runs).batches)


def test_blanks_between_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("# step   loss    lr\n  1   2.5   1e-3\n  2   nan   1e-3\n  3   2.25   1e-3\n")
    with open_runs(str(path)) as runs:
        run = next(runs)
        rows = [row for _, batch in run.batches for row in rows_of(batch)]
    assert run.format == "csv"
    assert [r[0] for r in rows] == [1, 2, 3]
    assert math.isnan(rows[1][1]["loss"])


def test_blocks_cut_anywhere_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["step,loss,eval_loss"]
    for s in range(300):
        lines.append(f"{s},{3 - s / 200:.3f},")
        if s % 50 == 0:
            lines.append(f"{s},,2.5")
        if s == 120:
            lines.append("broken")
    text = "\r\n".join(lines)
    whole, tally = read(tmp_path / "a.csv", text)
    assert (len(whole), tally.skipped) == (300, 1)
    for size in (7, 64, 1000):
        monkeypatch.setattr("floatscope_diagnostics.readers.csv_table.BLOCK_BYTES", size)
        parts, again = read(tmp_path / "a.csv", text)
        assert parts == whole
        assert (
            again.first_skipped == tally.first_skipped == "line 126 passed over: 1 fields, the header has 3"
        )


def test_without_pandas_a_large_block_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_table, "pandas_or_none", lambda: None)
    table = read_plain(b"1,2.5\n2,nan\n", ",", 2, large=True)
    assert table is not None
    assert table.values[0].tolist() == [1.0, 2.5]


@pytest.mark.parametrize("place", ["step", "epoch"])
def test_a_header_longer_than_a_first_look_is_read_to_its_end(tmp_path: Path, place: str) -> None:
    names = [f"a_column_of_a_wide_table_{k}" for k in range(4_000)]
    rows = "".join(f"{7 + k}," + "1.0," * 4_000 + f"{2.5 - k / 100}\n" for k in range(20))
    found, _ = read(tmp_path / "log.csv", f"{place},{','.join(names)},loss\n{rows}")
    assert [(step, values["loss"], len(values)) for _, step, values in found] == [
        (7 + k, 2.5 - k / 100, 4_001 + (place == "epoch")) for k in range(20)
    ]


@pytest.mark.parametrize(
    ("columns", "width", "words"),
    [(30_000, 10, "30,002 columns; at most 20,000"), (30_000, 300, "longer than 4 MiB")],
)
def test_a_header_that_is_too_long_is_told_so(tmp_path: Path, columns: int, width: int, words: str) -> None:
    text = ",".join(["step", "loss", *(f"c{k:0{width}}" for k in range(columns))])
    with pytest.raises(UnreadableLog, match=words):
        read(tmp_path / "log.csv", text + "\n" + "1," * 20 + "\n")


def test_a_loss_behind_thousands_of_columns_is_kept(tmp_path: Path) -> None:
    names = [f"c{k}" for k in range(5_000)]
    rows = "".join(f"{k}," + "1," * 5_000 + "2.5\n" for k in range(3))
    found, tally = read(tmp_path / "log.csv", f"step,{','.join(names)},loss\n{rows}")
    assert [values["loss"] for _, _, values in found] == [2.5, 2.5, 2.5]
    assert "only the first 4,096 columns are kept" in tally.notes
