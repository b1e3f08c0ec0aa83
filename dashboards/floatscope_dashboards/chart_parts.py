"""What all charts share: axes, layout, safe text, the marks of an onset, and the Plotly configuration."""

from __future__ import annotations

from typing import Any

from floatscope_dashboards.theme import FONT

Figure = dict[str, Any]

MAX_TEXT = 60
"""Longest name drawn into a figure; the full one is beside it as ordinary text."""

# plotly.js 4 shows a "Share chart..." button that uploads the figure to Plotly's cloud: off, no address to
# send to, and the only button there is saves a picture. Zoom is by dragging, reset by double click, Esc or a
# button beside.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage"]],
    "responsive": True,
    "scrollZoom": False,
    "doubleClick": False,
    "toImageButtonOptions": {"format": "png", "scale": 2},
}


def plain(text: str) -> str:
    """`text` as Plotly shows it literally: its labels understand some HTML, so a name must not."""
    short = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2 - 1]}...{text[-MAX_TEXT // 2 + 2 :]}"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis(**more: Any) -> dict[str, Any]:
    return {
        "gridcolor": "@grid",
        "zeroline": False,
        "linecolor": "@line-2",
        "tickcolor": "@line-2",
        "ticks": "outside",
        "ticklen": 4,
        "automargin": False,
        **more,
    }


def layout(**more: Any) -> dict[str, Any]:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": "@text-2"},
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": "@surface",
            "bordercolor": "@line-2",
            "font": {"color": "@text", "size": 12},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@text-3", "activecolor": "@text"},
        "dragmode": "zoom",
        "uirevision": "keep",
        **more,
    }


def onset_shapes(onset: int | None, resolved: int | None) -> list[dict[str, Any]]:
    if onset is None:
        return []
    vertical = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    shapes = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": onset,
            "x1": onset if resolved is None else resolved,
            "y0": 0,
            "y1": 1,
            "fillcolor": "@crit-band",
            "line": {"width": 0},
            "layer": "below",
            "name": "after-onset" if resolved is None else "while-open",
        },
        {**vertical, "x0": onset, "x1": onset, "line": {"color": "@crit", "width": 1.5}, "name": "onset"},
    ]
    if resolved is not None:
        line = {"color": "@text-3", "width": 1.2, "dash": "2px,2px"}
        shapes.append({**vertical, "x0": resolved, "x1": resolved, "line": line, "name": "resolved"})
    return shapes


def rect(start: float, end: float, yref: str, fill: str, name: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "x",
        "yref": yref,
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "fillcolor": fill,
        "line": {"width": 0},
        "layer": "below",
        "name": name,
    }
