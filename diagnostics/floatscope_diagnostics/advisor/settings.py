"""The advice as text to paste, for each framework."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.advisor import settings_megatron, settings_te, settings_torchao, settings_trainer
from floatscope_diagnostics.advisor.advice import Framework, LayerAdvice, Settings


def settings_of(
    layers: Sequence[LayerAdvice], *, info: RunInfo, all_layers: Sequence[str], recipe: str
) -> Settings:
    """Settings that change these layers. all_layers: every layer of the run in FP8.  recipe: of the run.

    Each framework gets what it can give the layer (``LayerAdvice.targets``). Where it lacks a target, its
    text says so and takes BF16.
    """

    def pairs(framework: Framework) -> list[tuple[str, str]]:
        return [(one.layer, one.to_in(framework)) for one in layers]

    return Settings(
        transformer_engine=settings_te.transformer_engine(_without_rows(pairs("te"))),
        torchao=settings_torchao.torchao(pairs("torchao"), recipe),
        megatron=settings_megatron.megatron(_without_rows(pairs("megatron")), all_layers, recipe),
        floatscope_train=settings_trainer.floatscope_train(pairs("floatscope"), info),
    )


def _without_rows(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(layer, "bf16" if to == "rowwise" else to) for layer, to in pairs]


def whole_run(recipe: str) -> Settings:
    """Settings that give the whole run another recipe; a comment for a framework that has not got it."""
    return Settings(
        transformer_engine=settings_te.whole_recipe(recipe),
        torchao=settings_torchao.whole_recipe(recipe),
        megatron=settings_megatron.whole_recipe(recipe),
        floatscope_train=settings_trainer.whole_recipe(recipe),
    )
