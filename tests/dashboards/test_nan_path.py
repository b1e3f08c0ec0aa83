"""How NaN spread: the order of the cards, what starts them, and what they count."""

from __future__ import annotations

from typing import Any

from floatscope_dashboards.nan_path import Path, in_order, nan_path
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.pictures_view import BadGroup, FirstBad, PathView

SAY = Pages().say("en")


def path(view: PathView | None, *findings: dict[str, Any]) -> Path | None:
    return nan_path(view, {"findings": list(findings)}, SAY, run="r1")


def layers(role: str, step: int, *, first: int = 0, count: int = 4, nan: float = 5.0) -> list[FirstBad]:
    return [
        FirstBad(step, f"blocks.{at}.fc/{role}", "values", nan=nan, order=at)
        for at in range(first, first + count)
    ]


def groups(tensors: list[FirstBad]) -> tuple[BadGroup, ...]:
    found: dict[tuple[int, str, str], int] = {}
    for one in tensors:
        key = (one.step, one.tensor.rpartition("/")[2], one.stat)
        found[key] = found.get(key, 0) + 1
    return tuple(BadGroup(*key, n) for key, n in found.items())


def view(tensors: list[FirstBad], **more: Any) -> PathView:
    counts = (("grad_output", 4), ("input", 4), ("weight", 4))
    first = min([one.step for one in tensors], default=more.pop("first", 0))
    return PathView(first, tuple(tensors), groups(tensors), counts=counts, **more)


def test_while_all_is_finite_there_is_no_path() -> None:
    assert path(None) is None


def test_within_a_step_the_order_is_that_of_the_network() -> None:
    bad = [*layers("grad_output", 9), *layers("input", 9), *layers("weight", 10)]
    found = path(view(bad, scalars=(("loss", 9, "NaN"),)))
    assert found is not None
    assert [(node.when, node.name) for node in found.nodes] == [
        ("Step 9", "blocks.0.fc/input"),
        ("Step 9", "activations: 1.fc \u2026 3.fc"),
        ("Step 9", "loss"),
        ("Step 9", "gradients: 3.fc \u2026 0.fc"),
        ("Step 10", "weights: 0.fc \u2026 3.fc"),
    ]
    assert [node.is_root for node in found.nodes] == [True, False, False, False, False]
    assert found.nodes[0].text == "5 values are NaN."
    assert found.nodes[1].text == "NaN or Inf in 3 more of 4 activations."
    assert found.nodes[3].text == "NaN or Inf in 4 of 4 gradients of activations."


def test_backward_goes_from_the_last_layer_to_the_first() -> None:
    ordered = in_order(layers("grad_output", 3))
    assert [one.order for one in ordered] == [3, 2, 1, 0]


def test_steps_come_before_the_order_in_the_network() -> None:
    ordered = in_order([*layers("input", 5, count=1), *layers("grad_output", 4, count=1)])
    assert [one.step for one in ordered] == [4, 5]


def test_an_input_that_is_not_valid_starts_with_the_batch() -> None:
    finding = {"cause": "invalid_input", "onset_step": 9, "summary": "NaN comes in with the batch.",
               "tensor": "blocks.0.fc/input"}  # fmt: skip
    found = path(view(layers("input", 9)), finding)
    assert found is not None
    assert (found.nodes[0].name, found.nodes[0].text) == ("the batch", "NaN comes in with the batch.")
    assert [node.is_root for node in found.nodes] == [True, False, False]


def test_a_loss_without_any_tensor_is_a_path_too() -> None:
    finding = {
        "cause": "invalid_input",
        "onset_step": 223,
        "summary": "A batch without a label.",
        "tensor": None,
    }
    found = path(view([], first=223, scalars=(("loss", 223, "NaN"),)), finding)
    assert found is not None
    assert [node.name for node in found.nodes] == ["the batch", "loss"]
    assert found.notes == ("No tensor was seen to hold NaN or Inf.",)


def test_an_earlier_finding_is_the_root_and_its_tensor_leads_there() -> None:
    finding = {"cause": "stale_scale_saturation", "onset_step": 5, "summary": "Values clip.",
               "tensor": "blocks.2.fc/input"}  # fmt: skip
    found = path(view(layers("input", 9)), finding)
    assert found is not None
    root = found.nodes[0]
    assert (root.when, root.is_root, root.is_bad) == ("Step 5", True, False)
    assert root.href == "/runs/r1/tensors/blocks.2.fc%2Finput?at=5"


def test_a_finding_of_the_first_tensor_itself_is_not_said_twice() -> None:
    finding = {
        "cause": "scale_state_fault",
        "onset_step": 221,
        "summary": "Infinite.",
        "tensor": "blocks.0.fc/input",
    }
    bad = FirstBad(221, "blocks.0.fc/input", "scale", order=0)
    found = path(view([bad]), finding)
    assert found is not None
    assert len(found.nodes) == 1
    assert found.nodes[0].is_root
    assert found.nodes[0].text == "Infinite."
    assert found.notes == ("Nothing else was seen to be NaN or Inf soon after.",)


def test_what_came_after_or_was_over_before_is_no_root() -> None:
    later = {"cause": "lr_divergence", "onset_step": 50, "summary": "Too fast.", "tensor": None}
    over = {
        "cause": "bad_batch",
        "onset_step": 2,
        "resolved_step": 4,
        "summary": "One batch.",
        "tensor": None,
    }
    found = path(view(layers("input", 9)), later, over)
    assert found is not None
    assert found.nodes[0].name == "blocks.0.fc/input"


def test_the_rank_is_said_where_there_are_several() -> None:
    one = path(view(layers("input", 9), rank=12, ranks=16, looked_at=16))
    some = path(view(layers("input", 9), rank=12, ranks=64, looked_at=8))
    shared = path(view(layers("input", 9), rank=0, ranks=8, looked_at=8, others=(1, 2)))
    alone = path(view(layers("input", 9)))
    assert [found.sub.partition(", ")[2] for found in (one, some, shared, alone) if found] == [
        "on rank 12",
        "on rank 12, the first of 8 ranks looked at",
        "on rank 0 and 2 others of 8 looked at",
        "",
    ]


def test_tensors_that_are_not_listed_are_counted() -> None:
    bad = layers("grad_output", 9)
    seen = PathView(9, tuple(bad[:2]), (BadGroup(9, "grad_output", "values", 100_000),), rank=0)
    found = nan_path(seen, {}, SAY, run="r1")
    assert found is not None
    assert "100,000 of 100,000" in found.nodes[0].text
