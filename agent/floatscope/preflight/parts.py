"""What preflight is made of on a real machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.model_shapes.shape import ModelConfigError
from floatscope.preflight.cast_checks import cast_checks
from floatscope.preflight.cast_probe import probe
from floatscope.preflight.check import Check
from floatscope.preflight.checkpoint_checks import checkpoint_checks
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.gathering import gather_facts
from floatscope.preflight.pure_parts import pure_parts
from floatscope.preflight.recipe_matrix import recipe_matrix
from floatscope.preflight.run import Parts
from floatscope.preflight.shape_checks import shape_checks
from floatscope.preflight.shape_layers import layer_rows
from floatscope.preflight.smoke_run import smoke as run_smoke


def all_parts(*, smoke: bool, compiled: bool) -> Parts:
    """Everything there is. smoke: run GEMMs.  compiled: try casts under torch.compile too."""

    def casts(facts: Facts, wanted: Wanted) -> tuple[Mapping[str, Any], Sequence[Check]]:
        measured = probe(compiled=compiled)
        return measured, cast_checks(facts, wanted, measured)

    return Parts(
        gather=gather_facts,
        checks={**pure_parts(), "shapes": shape_checks, "checkpoint": checkpoint_checks},
        recipes=recipe_matrix,
        layers=_layers,
        casts=casts,
        smoke=run_smoke if smoke else None,
    )


def _layers(facts: Facts, wanted: Wanted) -> Sequence[Mapping[str, Any]]:
    try:
        return layer_rows(facts, wanted)
    except ModelConfigError:
        return ()  # the checks of shapes say what does not fit
