"""The layer x step heat map: one row per tensor in three blocks, worst value per cell, non-finite cells on
top."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope_dashboards.chart_parts import Figure, axis, layout, onset_shapes, plain
from floatscope_dashboards.heat_grid import Row, read_grid
from floatscope_dashboards.heat_stats import HeatStat

MAX_TICKS = 40
"""Up to so many rows each get a label; above it a few per block."""
TICKS_PER_BLOCK = 5
MAX_TICK_TEXT = 20


def heat_frame(*, onset: int | None) -> Figure:
    """Everything but the data: a heat map of values, one of NaN and Inf above it, the onset line."""
    base = {
        "type": "heatmap",
        "z": [],
        "x": [],
        "showscale": False,
        "hoverongaps": False,
        "hoverinfo": "skip",
    }
    shapes = [shape for shape in onset_shapes(onset, None) if shape.get("name") == "onset"]
    return {
        "data": [
            {**base, "name": "value", "colorscale": "@ramp-low", "zmin": 0.0, "zmax": 1.0},
            {**base, "name": "nonfinite", "colorscale": "@ramp-marks", "zmin": 1, "zmax": 2},
        ],
        "layout": layout(
            margin={"l": 138, "r": 12, "t": 22, "b": 30},
            hovermode="closest",
            plot_bgcolor="@sunk",
            dragmode=False,
            xaxis=axis(tickformat=",d", showgrid=False, nticks=6, fixedrange=True),
            yaxis=axis(showgrid=False, ticks="", tickfont={"size": 11}, fixedrange=True),
            shapes=shapes,
            annotations=[],
        ),
    }


def fill_heat(
    frame: Figure,
    payload: Mapping[str, Any],
    *,
    stat: HeatStat,
    onset: int | None,
    origin: str | None = None,
    order: Mapping[str, int] | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """A copy of `frame` with the payload's cells in the statistic's colours. Raises ValueError as
    `read_grid`.

    `marks` are payloads of the statistics that tell where values are not finite.
    """
    figure = copy.deepcopy(frame)
    grid = read_grid(payload, worst=stat.worst, order=order, marks=marks)
    values, nonfinite = figure["data"]
    values["z"] = [list(row) for row in grid.value]
    values["zmin"], values["zmax"] = stat.low, stat.high
    values["colorscale"] = f"@ramp-{stat.ramp}"
    nonfinite["z"] = [list(row) for row in grid.mark]
    for trace in (values, nonfinite):
        trace["x"] = list(grid.edges)
    settings = figure["layout"]
    rows = grid.rows
    settings["xaxis"]["range"] = [grid.edges[0], grid.edges[-1]] if grid.edges else [0, 1]
    settings["yaxis"]["range"] = [len(rows) - 0.5, -0.5] if rows else [1, 0]
    ticks = _ticks(rows)
    settings["yaxis"]["tickvals"] = [at for at, _ in ticks]
    settings["yaxis"]["ticktext"] = [text for _, text in ticks]
    settings["annotations"] = _block_titles(rows)
    at = _row_of(rows, grid.tensors, origin)
    if at is not None and onset is not None and grid.edges and grid.edges[0] <= onset <= grid.edges[-1]:
        settings["annotations"].append(
            _origin_label(onset, at, right=onset > (grid.edges[0] + grid.edges[-1]) / 2)
        )
    return figure


def _ticks(rows: tuple[Row | None, ...]) -> list[tuple[int, str]]:
    named = [(at, row) for at, row in enumerate(rows) if row is not None]
    if len(named) > MAX_TICKS:
        kept: list[tuple[int, Row]] = []
        for block in dict.fromkeys(row.block for _, row in named):
            inside = [(at, row) for at, row in named if row.block == block]
            last = len(inside) - 1
            picks = sorted(
                {
                    (2 * last * n + TICKS_PER_BLOCK - 1) // (2 * (TICKS_PER_BLOCK - 1))
                    for n in range(TICKS_PER_BLOCK)
                }
            )
            kept.extend(inside[pick] for pick in picks)
        named = kept
    return [(at, plain(_short(row.label))) for at, row in named]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TICK_TEXT else text[: MAX_TICK_TEXT - 9] + "..." + text[-6:]


def _block_titles(rows: tuple[Row | None, ...]) -> list[dict[str, Any]]:
    titles = []
    seen: set[str] = set()
    for at, row in enumerate(rows):
        if row is None or row.block in seen:
            continue
        seen.add(row.block)
        titles.append(
            {
                "text": f"<b>{row.block}</b>",
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "yref": "y",
                "y": at - 0.5,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 11.5, "color": "@text-2"},
            }
        )
    return titles


def _row_of(rows: tuple[Row | None, ...], tensors: tuple[str, ...], name: str | None) -> int | None:
    if name is None or name not in tensors:
        return None
    index = tensors.index(name)
    return next((at for at, row in enumerate(rows) if row is not None and index in row.tensors), None)


def _origin_label(onset: int, at: int, *, right: bool) -> dict[str, Any]:
    return {
        "text": "<b>began here</b>",
        "x": onset,
        "xref": "x",
        "y": at,
        "yref": "y",
        "ax": -34 if right else 34,
        "ay": 0,
        "xanchor": "right" if right else "left",
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 1.5,
        "arrowcolor": "@crit",
        "bgcolor": "@surface",
        "borderpad": 2,
        "font": {"size": 11, "color": "@crit"},
        "name": "origin",
    }
