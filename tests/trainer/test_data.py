"""Text and batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from floatscope_trainer.data import CharText, DataError, load_text
from tests.trainer.small_runs import tiny_text


def test_batches_depend_on_seed_step_and_micro_batch_alone() -> None:
    text = tiny_text()
    first = text.batch(3, seed=1, micro=0, size=2, context=8)
    again = text.batch(3, seed=1, size=2, context=8)
    assert torch.equal(first.ids, again.ids)
    assert first.data_id == again.data_id
    others = [
        text.batch(4, seed=1, size=2, context=8),
        text.batch(3, seed=2, size=2, context=8),
        text.batch(3, seed=1, micro=1, size=2, context=8),
    ]
    assert len({first.data_id, *(other.data_id for other in others)}) == 4


def test_labels_are_one_character_ahead() -> None:
    batch = tiny_text().batch(0, seed=0, size=3, context=16)
    assert batch.ids.shape == batch.labels.shape == (3, 16)
    assert torch.equal(batch.ids[:, 1:], batch.labels[:, :-1])
    assert 0 <= batch.data_id < 2**32


def test_evaluation_batch_is_fixed_and_held_out() -> None:
    text = CharText("a" * 900 + "b" * 100)
    batch = text.eval_batch(size=4, context=10)
    assert set(batch.ids.flatten().tolist()) == {1}
    assert set(text.batch(0, seed=0, size=64, context=10).labels.flatten().tolist()) == {0}
    assert batch.data_id == text.eval_batch(size=4, context=10).data_id


def test_vocabulary_is_sorted_by_code_point() -> None:
    text = CharText("ba\U0001f600" * 100)
    assert text.vocab_size == 3
    batch = text.batch(0, seed=0, size=1, context=6)
    assert set(batch.ids.flatten().tolist()) == {0, 1, 2}


def test_text_of_files_is_joined(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("x" * 300, encoding="utf-8")
    (tmp_path / "two.txt").write_text("y" * 300, encoding="utf-8")
    assert load_text([str(tmp_path / "one.txt"), str(tmp_path / "two.txt")], context=16).vocab_size == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "cannot be read"),
        ("binary.txt", b"\xff\xfe\x00", "not UTF-8 text .byte 0"),
        ("short.txt", b"too short", "too few"),
        ("rich.txt", "".join(map(chr, range(0x4E00, 0x9E00))).encode(), "distinct characters"),
    ],
)
def test_bad_texts_are_named(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load_text([str(path)], context=16)
    assert str(path) in str(error.value)


def test_a_directory_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_text([str(tmp_path)], context=16)
