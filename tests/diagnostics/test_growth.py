"""Growth that began in the warm-up stays the warm-up's, also where rows without the tensor cut it in two."""

from __future__ import annotations

import numpy as np

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.columns import Columns
from floatscope_diagnostics.episodes import EpisodeLog, Symptom
from floatscope_diagnostics.growth import of_warm_up
from floatscope_diagnostics.rule import RunFacts, Symptoms, Window
from floatscope_diagnostics.rules.activation_outlier_growth import check

NAMES = ["a.fc2/input", "b.fc2/input"]


def jumps(*stretches: tuple[int, int, int, str, bool]) -> Symptoms:
    """first and last row, onset, tensor, in the warm-up."""
    columns = Columns(RunInfo())
    columns.add(NAMES)
    log = EpisodeLog()
    for first, last, onset, name, warming in stretches:
        for row in range(first, last + 1):
            log.hit(
                "amax_jump", step=row, row=row, segment=0, mask=np.array([n == name for n in NAMES]),
                values=np.full(2, 1.8 + 0.1 * (row - onset)), onset=onset,
                extra={"warming": 1.0} if warming else None,
            )  # fmt: skip
    return Symptoms(tuple(log.symptoms(columns, rank=0, row=100)))


def last(symptoms: Symptoms) -> Symptom:
    return symptoms.of("amax_jump")[-1]


def found(symptoms: Symptoms) -> int:
    facts = RunFacts(
        recipe={"name": "mxfp8"}, formats={}, tensors=2, stats=frozenset(), scalars=frozenset(), ranks=1,
        world_size=1, first_step=0, last_step=99, vocab_size=None, status=None, reason=None,
        has_baseline=False, forward_order=tuple(NAMES), call_order={},
    )  # fmt: skip
    return len(list(check(symptoms, Window(last_step=99, last_scalars={}), facts)))


def test_the_rest_of_a_warm_up_is_the_warm_ups() -> None:
    cut = jumps((43, 53, 43, NAMES[0], True), (57, 70, 43, NAMES[0], False))
    assert of_warm_up(last(cut), cut)
    assert found(cut) == 0


def test_another_tensor_or_a_later_growth_is_not() -> None:
    other = jumps((43, 53, 43, NAMES[0], True), (57, 70, 50, NAMES[1], False))
    later = jumps((43, 53, 43, NAMES[0], True), (80, 95, 80, NAMES[0], False))
    for symptoms in (other, later):
        assert not of_warm_up(last(symptoms), symptoms)
        assert found(symptoms) == 1
