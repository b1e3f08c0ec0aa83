"""The frame of the comparison's chart: the paired difference with its band, zero line and limit above, both
losses below on the same steps. The page's script fills it (static/js/difference.js).
"""

from __future__ import annotations

from typing import Any

from floatscope_dashboards.chart_parts import Figure, axis, layout, panel_title, plain
from floatscope_dashboards.say import Say

LOSS_SHARE = 0.3
"""Of the height; the difference has the rest, less the space between."""
GAP = 0.09


def difference_frame(run: str, baseline: str, say: Say) -> Figure:
    """Everything but the data, with "@token" in place of colours. A trace's ``meta`` says what fills it."""
    hover = "%{fullData.name} %{y:+.4~f}<extra></extra>"
    level = "%{fullData.name} %{y:.5~g}<extra></extra>"
    own, other = plain(run), plain(baseline)
    return {
        "data": [
            _polygon("band", "y", "@s1-band"),
            _line("raw", "y", say("Single bins"), "@s1-raw", 1, hover),
            _line("mean", "y", say("Difference"), "@s1", 2.2, hover),
            _dots("single", "y", say("Difference"), "@s1", hover),
            _line("baseline", "y2", other, "@text-3", 1.4, level, dash="4px,3px"),
            _line("run", "y2", own, "@s1", 1.6, level),
            _dots("run-single", "y2", own, "@s1", level),
            _dots("baseline-single", "y2", other, "@text-3", level),
        ],
        "layout": layout(
            margin={"l": 64, "r": 14, "t": 22, "b": 40},
            xaxis=axis(tickformat=",d", anchor="y2", title={"text": say("Step"), "standoff": 6}),
            yaxis=axis(domain=[LOSS_SHARE + GAP, 1], tickformat="+.3~f", nticks=7),
            yaxis2=axis(domain=[0, LOSS_SHARE], nticks=4),
            shapes=[],
            annotations=[
                panel_title(say("Loss of {run} minus {baseline}, nats", run=own, baseline=other), 1.0),
                panel_title(say("Loss of both, nats; {baseline} dashed", baseline=other), LOSS_SHARE),
            ],
        ),
    }


def _line(
    meta: str, yaxis: str, name: str, color: str, width: float, hover: str, *, dash: str | None = None
) -> dict[str, Any]:
    line: dict[str, Any] = {"color": color, "width": width}
    if dash is not None:
        line["dash"] = dash
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "yaxis": yaxis,
        "name": name,
        "line": line,
        "connectgaps": False,
        "hovertemplate": hover,
        "meta": meta,
    }


def _dots(meta: str, yaxis: str, name: str, color: str, hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [],
        "y": [],
        "yaxis": yaxis,
        "name": name,
        "marker": {"color": color, "size": 5},
        "hovertemplate": hover,
        "meta": meta,
    }


def _polygon(meta: str, yaxis: str, color: str) -> dict[str, Any]:
    """One closed polygon: fill to the next trace draws a wrong one across a gap."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "yaxis": yaxis,
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": color,
        "hoverinfo": "skip",
        "meta": meta,
    }
