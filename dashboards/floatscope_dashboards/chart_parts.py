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
        step_line(onset, "onset", color="@crit", width=1.5, dash="solid"),
    ]
    if resolved is not None:
        shapes.append(step_line(resolved, "resolved", color="@text-3", dash="2px,2px"))
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


def panel_title(text: str, top: float) -> dict[str, Any]:
    """A title over a panel whose upper edge is at ``top``, a share of the height."""
    return {
        "text": text,
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "xshift": 2,
        "yref": "paper",
        "y": top,
        "yanchor": "bottom",
        "yshift": 1,
        "showarrow": False,
        "font": {"size": 12, "color": "@text-2"},
    }


def step_line(
    step: int, name: str, *, color: str, width: float = 1.2, dash: str = "2px,3px"
) -> dict[str, Any]:
    """A line over all panels at a step."""
    line = {"color": color, "width": width, "dash": dash}
    place = {"type": "line", "xref": "x", "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1}
    return {**place, "line": line, "name": name}
