"""Compressed blocks give back every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from floatscope_server.codec import expand, pack, squeeze, unpack


def test_every_bit_comes_back_also_of_strange_nans() -> None:
    payloads = np.array([0x7FC00000, 0x7FC01234, 0xFFC00001, 0x7F800000, 0x80000000], np.uint32).view(
        np.float32
    )
    arrays: list[NDArray[Any]] = [
        np.tile(payloads, (300, 1)),
        np.linspace(-1, 1, 999),
        np.arange(-5, 5, dtype=np.int64),
        np.zeros((0, 7, 64), np.uint32),
        np.zeros((4, 0), np.float32),
        np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8),
    ]
    found = unpack(pack(arrays))
    for array, again in zip(arrays, found, strict=True):
        assert again.dtype == array.dtype
        assert again.shape == array.shape
        assert again.tobytes() == array.tobytes()


def test_repetitive_numbers_become_small() -> None:
    constant = np.full((64, 675), 128.0, np.float32)
    assert len(pack([constant])) < constant.nbytes / 50


def test_a_block_of_a_later_version_is_refused_and_not_guessed() -> None:
    data = bytearray(pack([np.zeros(3, np.float32)]))
    data[1] = 77
    with pytest.raises(ValueError, match="codec 77"):
        unpack(bytes(data))


def test_a_damaged_block_is_refused() -> None:
    data = pack([np.zeros(3, np.float32)])
    with pytest.raises(ValueError, match="shorter or longer"):
        unpack(data[:-1])


def test_squeeze_and_expand() -> None:
    assert expand(squeeze(b"state" * 1000)) == b"state" * 1000
