"""Template values of the run page's pictures: layers over time, range ruler, how a NaN spread, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from floatscope_dashboards.heat_stats import buttons
from floatscope_dashboards.nan_path import nan_path
from floatscope_dashboards.pictures_view import PicturesView, RanksView, RulerView
from floatscope_dashboards.rank_strip import rank_strip
from floatscope_dashboards.ruler import ruler
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView


def pictures(view: RunView, say: Say) -> dict[str, Any]:
    """What `_layers.html`, `_path.html` and `_ranks.html` print."""
    found = view.pictures or PicturesView()
    run = view.row.run_id
    return {
        "ruler": ruler(found.ruler or RulerView(None, None), say, run=run),
        "path": nan_path(found.path, view.verdict, say, run=run),
        "strip": rank_strip(found.ranks or RanksView(), say),
        "stat_choices": buttons(view.heat_stats),
        "segments": _segments(view.verdict),
        "tensors_href": f"/runs/{quote(run, safe='')}/tensors",
    }


def _segments(verdict: Mapping[str, Any]) -> tuple[int, ...]:
    """Numbers of the run's segments: it has several when it was resumed."""
    source = verdict.get("source")
    found = source.get("segments") if isinstance(source, Mapping) else None
    numbers = [item.get("segment") for item in found or () if isinstance(item, Mapping)]
    return tuple(number for number in numbers if isinstance(number, int))
