"""Long text logs: what is read a column at a time is what the parser reads line by line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from floatscope_diagnostics.readers import (
    alike_lines,
    assemble,
    line_reader,
    number_table,
    plain_series,
    text_blocks,
)
from floatscope_diagnostics.readers.formats import line_formats, open_runs
from floatscope_diagnostics.readers.line_format import SingleLines
from floatscope_diagnostics.readers.opening import open_log
from floatscope_diagnostics.readers.plain_series import Int64
from floatscope_diagnostics.readers.records import Records
from floatscope_diagnostics.readers.rows import Rows

LOGS = Path(__file__).parent / "logs"


def alike_fixtures() -> list[Path]:
    names = {f.name for f in line_formats() if f.alike or isinstance(f.parser(), SingleLines)}
    return [p for p in sorted(LOGS.iterdir()) if p.name.split(".")[0].split("-")[0] in names]


def rows(path: Path, name: str) -> str:
    """Everything that is read, as text: NaN equals NaN."""
    out: list[object] = []
    with open_runs(str(path), format_name=name) as runs:
        for run in runs:
            for rank, batch in run.batches:
                for t, step in enumerate(batch.step.tolist()):
                    named = zip(batch.scalar_names, batch.scalars[t], batch.scalars_present[t], strict=True)
                    out.append((rank, step, sorted((n, float(v)) for n, v, here in named if here)))
            out.append((run.tally.skipped, run.tally.first_skipped, run.tally.notes, run.tally.lines))
            out.append((run.run.status, run.run.reason))
    return "\n".join(map(json.dumps, out))


def quick(patch: pytest.MonkeyPatch, *, pandas: bool = True) -> None:
    patch.setattr(line_reader, "PARSED_LINES", 1)
    patch.setattr(alike_lines, "OFTEN", 1)
    patch.setattr(text_blocks, "BLOCK_BYTES", 1_000)
    if not pandas:
        patch.setattr(alike_lines, "pandas_or_none", lambda: None)


def slow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(line_reader, "PARSED_LINES", 1 << 40)
    patch.setattr(assemble, "plain_series", lambda records: None)


@pytest.mark.parametrize("path", alike_fixtures(), ids=lambda p: p.name)
def test_every_format_reads_the_same_either_way(path: Path) -> None:
    name = path.name.split(".")[0].split("-")[0]
    with pytest.MonkeyPatch.context() as patch:
        slow(patch)
        expected = rows(path, name)
    for pandas in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            quick(patch, pandas=pandas)
            assert rows(path, name) == expected


def megatron(n: int, *, loss: str, skipped: int = 0, note: str = "") -> str:
    return (
        f" [2024-05-0{1 + n // 400} 00:{n // 60 % 60:02d}:{n % 60:02d}] iteration {n:8d}/   10000 | "
        f"consumed samples: {n * 256:12d} | elapsed time per iteration (ms): {500 + n % 7}.5 | "
        f"learning rate: 3.000000E-04 | "
        f"lm loss: {loss} | loss scale: 65536.0 | grad norm: {1 + n / 1000:.3f} | "
        f"number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |{note}"
    )


def test_a_megatron_log_with_everything_in_between(tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = []
    for n in range(1, 1200):
        kind = draw.random()
        loss = "NaN" if kind < 0.02 else f"{3 + draw.random():.6E}"
        lines.append(megatron(n, loss=loss, skipped=draw.choice([1, 2]) if kind > 0.98 else 0))
        if n % 50 == 0:
            lines.append(
                f" validation loss at iteration {n} | lm loss value: 3.1E+00 | lm loss PPL: 2.2E+01 | "
            )
        if kind > 0.99:
            lines += ["", "some words of a warning 12", "\x1b[31mcolours\x1b[0m", "x" * 3000]
        if n == 700:
            lines.append(megatron(701, loss="1.0.0"))
    path = tmp_path / "run.log"
    for end in ("\n", "\r\n"):
        path.write_bytes(end.join(lines).encode())
        with pytest.MonkeyPatch.context() as patch:
            slow(patch)
            expected = rows(path, "megatron")
        with pytest.MonkeyPatch.context() as patch:
            quick(patch)
            assert rows(path, "megatron") == expected
        with pytest.MonkeyPatch.context() as patch:
            quick(patch)
            patch.setattr(number_table, "pandas_or_none", lambda: None)
            assert rows(path, "megatron") == expected


def test_few_lines_reach_the_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(megatron(n, loss=f"{n / 7:.6E}") + "\n" for n in range(1, 1000)))
    quick(monkeypatch)
    read: list[int] = []
    original = line_reader.Reading.line

    def counted(self: line_reader.Reading, number: int, text: str) -> None:
        read.append(number)
        original(self, number, text)

    monkeypatch.setattr(line_reader.Reading, "line", counted)
    assert rows(path, "megatron").count("loss_scale") == 999
    assert len(read) < 20


def test_blocks_hold_whole_lines_and_cut_endless_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    long = "y" * 200_000
    path.write_text("\n".join(["loss 1", "b", long, "d", "e" * 30, "f"]))
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 16)
    with open_log(str(path)) as opened:
        blocks = list(text_blocks.text_blocks(opened))
        assert opened.notes == ["lines longer than 64 KiB were cut: 1"]
    found = {n + k: x for n, data in blocks for k, x in enumerate(data.removesuffix(b"\n").split(b"\n"))}
    assert found[1] == b"loss 1"
    assert found[3] == b"y" * (1 << 16)
    assert found[4] == b"d"
    assert found[6] == b"f"


def test_a_plain_series_needs_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.log"
    lines = [megatron(n, loss="1.0E+00") for n in range(1, 60)]
    lines.insert(20, " validation loss at iteration 20 | lm loss value: 3.1E+00 | lm loss PPL: 2.2E+01 | ")
    path.write_text("\n".join(lines))
    taken: list[bool] = []
    original = plain_series.plain_series

    def seen(records: Records) -> tuple[Rows, Int64] | None:
        found = original(records)
        taken.append(found is not None)
        return found

    monkeypatch.setattr("floatscope_diagnostics.readers.assemble.plain_series", seen)
    plain = rows(path, "megatron")
    assert taken == [True]
    monkeypatch.setattr("floatscope_diagnostics.readers.assemble.plain_series", lambda records: None)
    assert rows(path, "megatron") == plain
