"""torchao's recipe as the agent names it."""

from __future__ import annotations

from floatscope.probes.torchao_recipe import describe


def test_no_layers_have_no_recipe() -> None:
    assert describe([], version="0.18") == {}
