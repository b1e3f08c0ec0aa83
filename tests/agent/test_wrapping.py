"""Functions of other people's objects: what is wrapped is put back, and copies of an object are their own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from floatscope.guard import Guard
from floatscope.integrations.wrapping import wrap


class Counter:
    """Somebody else's object."""

    def __init__(self) -> None:
        self.count = 0

    def step(self, by: int = 1) -> int:
        """Counts."""
        self.count += by
        return self.count


def through_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("made_by", [copy.deepcopy, through_pickle], ids=["copied", "pickled"])
def test_a_copy_of_a_wrapped_object_is_not_watched_and_works_on_itself(made_by: Any) -> None:
    seen: list[int] = []
    first = Counter()
    undo = wrap(first, "step", area=Guard(strict=True).area("x", loses="y"), after=lambda n: seen.append(n))
    assert first.step() == 1
    second = made_by(first)
    assert second.step() == 2
    assert (first.count, second.count, seen) == (1, 2, [1])
    undo()
    assert second.step() == 3
    assert first.step() == 2
    assert vars(first) == {"count": 2}
    assert seen == [1]


def test_a_gradient_scaler_can_be_copied_and_saved_while_it_is_watched() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wrap(scaler, "update", area=Guard(strict=True).area("x", loses="y"))
    scaler.scale(torch.ones(()))
    for other in (copy.deepcopy(scaler), through_pickle(scaler)):
        other.scale(torch.ones(()))
        other.update(4.0)
        assert (scaler.get_scale(), other.get_scale()) == (8.0, 4.0)


def test_what_is_wrapped_keeps_its_name_and_passes_errors_on() -> None:
    counter = Counter()
    wrap(counter, "step", area=Guard(strict=True).area("x", loses="y"))
    assert (counter.step.__name__, counter.step.__doc__) == ("step", "Counts.")
    with pytest.raises(TypeError):
        counter.step("much")  # type: ignore[arg-type]
