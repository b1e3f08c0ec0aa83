"""Recipes that a GPU cannot run are not advised; the table is the plan's."""

from __future__ import annotations

import pytest

from floatscope.hardware.gpu_lookup import find_gpu
from floatscope_diagnostics.advisor.advise import RECIPES
from floatscope_diagnostics.advisor.hardware import allowed_on, hardware_note


@pytest.mark.parametrize(
    ("gpu", "left"),
    [
        ("L40S", ("current", "rowwise", "bf16")),
        ("H100", ("current", "rowwise", "block", "bf16")),
        ("B200", ("current", "rowwise", "block", "mxfp8", "bf16")),
        ("RTX 5090", ("current", "rowwise", "block", "bf16")),
        ("MI300X", ("current", "rowwise", "bf16")),
        ("MI355X", ("current", "rowwise", "mxfp8", "bf16")),
        ("A100", ("bf16",)),
    ],
)
def test_what_is_left_on_a_gpu(gpu: str, left: tuple[str, ...]) -> None:
    assert allowed_on(find_gpu(gpu), RECIPES) == left


def test_without_a_gpu_it_is_said_what_the_targets_need() -> None:
    note = hardware_note(["mxfp8", "block", "bf16", "mxfp8"])
    assert note is not None
    assert "block needs compute capability 9.0 or higher" in note.sentence
    assert "mxfp8 needs compute capability 10.x or 11.0" in note.sentence
    assert hardware_note(["current", "rowwise", "bf16"]) is None
