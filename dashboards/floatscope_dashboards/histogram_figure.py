"""All values of one tensor over time: share per power of two, with the limits of its format.

A frame without data; static/js/histogram_fill.js fills it.
"""

from __future__ import annotations

from typing import Any

from floatscope_dashboards.chart_parts import Figure, axis, onset_shapes
from floatscope_dashboards.chart_parts import layout as base_layout
from floatscope_dashboards.say import Say

LEAST_SHARE, MOST_SHARE = -5.0, -0.8
"""Ends of the colours, log10 of the share of values: 0.001 % and 16 %."""


def histogram_frame(say: Say, *, onset: int | None) -> Figure:
    """The heat map and its lines. Traces carry `meta` = what to fill in."""
    layout = base_layout(margin={"l": 46, "r": 14, "t": 14, "b": 38}, hovermode="closest")
    layout["xaxis"] = axis(
        tickformat=",d",
        showgrid=False,
        title={"text": say("Step"), "standoff": 4, "font": {"size": 12}},
    )
    layout["yaxis"] = axis(fixedrange=True, showgrid=False)
    layout["shapes"] = onset_shapes(onset, None)[1:]  # without the shade, which would lie over the map
    layout["annotations"] = []
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": [],
            "y": [],
            "z": [],
            "text": [],
            "zmin": LEAST_SHARE,
            "zmax": MOST_SHARE,
            "colorscale": "@ramp-none",
            "showscale": False,
            "hoverongaps": False,
            "hovertemplate": "%{text}<extra></extra>",
            "meta": "cells",
        },
        _line("amax", "text", say("amax"), 1.6),
        _line("max", "crit", say("largest value of the format"), 1.6),
        _line("min_normal", "text-2", say("smallest normal value"), 1.2, dash="4px,3px"),
        _line("min_subnormal", "text-2", say("smallest subnormal value"), 1.2),
    ]
    return {"data": data, "layout": layout}


def _line(name: str, colour: str, label: str, width: float, dash: str = "solid") -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "name": label,
        "line": {"color": f"@{colour}", "width": width, "dash": dash, "shape": "linear"},
        "connectgaps": False,
        "customdata": [],
        "hovertemplate": "%{fullData.name} %{customdata}<extra></extra>",
        "meta": name,
    }
