"""Names offered in place of a tensor that is not there."""

from __future__ import annotations

import time

from floatscope_server.views.near_names import NEAR, near_names

NAMES = {
    f"layers.{layer}.attention.{part}/{role}"
    for layer in range(400)
    for part in ("qkv", "proj", "fc1", "fc2")
    for role in ("input", "weight", "grad_output", "output")
}


def test_a_name_that_is_part_of_others_finds_them_first() -> None:
    assert (
        near_names("LAYERS.7.attention.qkv", NAMES)
        == tuple(f"layers.7.attention.qkv/{role}" for role in ("grad_output", "input", "output", "weight"))
        + near_names("LAYERS.7.attention.qkv", NAMES)[4:]
    )
    assert near_names("layers.7.attention.qkv/weight.old", NAMES)[0] == "layers.7.attention.qkv/weight"


def test_a_slip_of_the_keyboard_finds_what_was_meant() -> None:
    assert "layers.99.attention.qkv/input" in near_names("layers.99.atention.qkv/inptu", NAMES)
    assert len(near_names("layers.99.atention.qkv/inptu", NAMES)) == NEAR
    assert near_names("zzzz", NAMES) == near_names("", NAMES) == near_names("x", set()) == ()


def test_names_made_to_take_long_do_not() -> None:
    hard = {("ab" * 200)[n % 7 :] + f"{n:05d}" + "ab" * 150 for n in range(5_000)}
    begun = time.process_time()
    near_names("ba" * 70 + "x" + "ab" * 29, hard)
    assert time.process_time() - begun < 2, "letter by letter this takes minutes"
