"""Saving and reading detector state."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

from floatscope_diagnostics.state_codec import StateError, pack, unpack


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3),
        "b": [1, 2.5, None, "x", {"c": np.array([True, False])}],
        "empty": np.zeros((0, 4)),
        "floats": [math.inf, -math.inf, 0.1],
    }
    back = unpack(pack(tree))
    assert (back["a"] == tree["a"]).all()
    assert back["a"].dtype == np.int32
    assert back["b"][:4] == [1, 2.5, None, "x"]
    assert back["b"][4]["c"].tolist() == [True, False]
    assert back["empty"].shape == (0, 4)
    assert back["floats"] == [math.inf, -math.inf, 0.1]
    back["a"][0, 0] = 9  # writable


def test_nan_survives() -> None:
    assert math.isnan(unpack(pack({"x": math.nan}))["x"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FSD1",
        b"nonsense",
        b"FSD1" + b"\x00" * 20,
        pack({"a": np.zeros(100)})[:-5],
        b"FSD1" + zlib.compress(b"\x05\x00\x00\x00[1,2]"),
        b"FSD1" + zlib.compress(b'\x2a\x00\x00\x00{"a":{"__array__":["float64",[9],0,72000]}}'),
        b"FSD1" + zlib.compress(b'\x26\x00\x00\x00{"a":{"__array__":["object",[1],0,8]}}'),
    ],
)
def test_damaged_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(StateError, match=r"state"):
        unpack(data)


def test_an_object_is_not_saved() -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        pack({"a": np.array([object()])})
