"""What is said where a run has no tensor of the name asked for."""

from __future__ import annotations

from collections.abc import Sequence

from floatscope_dashboards.page import Page
from floatscope_dashboards.say import Say
from floatscope_dashboards.tensor_links import tensor_href, tensors_href


def no_tensor_page(run_id: str, name: str, near: Sequence[str], total: int, say: Say) -> Page:
    """The name, names that look like it, and the way to all of them."""
    title = say("No such tensor")
    return Page(
        "no_tensor.html",
        say("{what} \u2013 floatscope", what=title),
        section="runs",
        styles=("tensor.css",),
        values={
            "name": name,
            "near": [(other, tensor_href(run_id, other)) for other in near],
            "total": total,
            "all_href": tensors_href(run_id),
            "run_href": f"/runs/{run_id}",
        },
    )
