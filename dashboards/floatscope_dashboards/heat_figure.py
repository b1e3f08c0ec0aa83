"""The layer x step heat map: one row per tensor in three blocks, worst value per cell, non-finite cells on
top."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope_dashboards.chart_parts import Figure, axis, layout, onset_shapes, plain
from floatscope_dashboards.heat_grid import Row, is_numbered, read_grid
from floatscope_dashboards.heat_stats import HeatStat

TICKS_PER_BLOCK = 5
"""Numbers of layers beside a block that has many rows."""
MAX_TICK_TEXT = 20
LEFT_SHARE = 0.2
"""The label of the onset stands before it where this share of the picture is: after it is what to look at."""
BESIDE_PX = -30
"""From the plot to the end of a block's title beside it: room for the number of a layer."""


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
    shapes = onset_shapes(onset, None)[1:]  # without the shade, which would lie over the map
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
    values["zmin"], values["zmax"] = color_range(stat, payload)
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
    settings["shapes"] = [*settings["shapes"], *_gaps(rows)]
    at = _row_of(rows, grid.tensors, origin)
    if at is not None and onset is not None and grid.edges and grid.edges[0] <= onset <= grid.edges[-1]:
        settings["annotations"].append(
            _origin_label(
                onset, at, right=onset > grid.edges[0] + LEFT_SHARE * (grid.edges[-1] - grid.edges[0])
            )
        )
    return figure


def color_range(stat: HeatStat, payload: Mapping[str, Any]) -> tuple[float, float]:
    """The values at the ends of the colours: the statistic's own, else those that there are."""
    if stat.low < stat.high:
        return stat.low, stat.high
    low, high = float(payload.get("lo") or 0.0), float(payload.get("hi") or 0.0)
    return (low, high) if low < high else (low, low + 1.0)


def _ticks(rows: tuple[Row | None, ...]) -> list[tuple[int, str]]:
    named = [(at, row) for at, row in enumerate(rows) if row is not None]
    if not is_numbered(rows):
        return [(at, plain(_short(row.label))) for at, row in named]
    kept: list[tuple[int, str]] = []
    for block in dict.fromkeys(row.block for _, row in named):
        begun: list[tuple[int, str]] = []
        for at, row in named:
            if row.block == block and row.number and (not begun or begun[-1][1] != row.number):
                begun.append((at, row.number))
        last = len(begun) - 1
        picks = {
            (2 * last * n + TICKS_PER_BLOCK - 1) // (2 * (TICKS_PER_BLOCK - 1))
            for n in range(TICKS_PER_BLOCK)
        }
        kept.extend(begun[pick] for pick in sorted(picks) if begun)
    return kept


def _short(text: str) -> str:
    return text if len(text) <= MAX_TICK_TEXT else text[: MAX_TICK_TEXT - 9] + "..." + text[-6:]


def _block_titles(rows: tuple[Row | None, ...]) -> list[dict[str, Any]]:
    places: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        if row is not None:
            places.setdefault(row.block, []).append(at)
    shared = {"xref": "paper", "x": 0, "yref": "y", "showarrow": False}
    font = {"size": 11.5, "color": "@text-2"}
    if is_numbered(rows):
        beside = {"xanchor": "right", "xshift": BESIDE_PX, "yanchor": "middle", "align": "right"}
        return [
            {
                "text": f"<b>{block}</b>",
                **shared,
                **beside,
                "y": (at[0] + at[-1]) / 2,
                "font": font,
                "name": block,
            }
            for block, at in places.items()
        ]
    above = {"xanchor": "left", "yanchor": "bottom"}
    return [
        {"text": f"<b>{block}</b>", **shared, **above, "y": at[0] - 0.5, "font": font, "name": block}
        for block, at in places.items()
    ]


def _gaps(rows: tuple[Row | None, ...]) -> list[dict[str, Any]]:
    """The space between blocks, in the colour of the page: it is no missing data."""
    spacers = [at for at, row in enumerate(rows) if row is None]
    starts = [at for at in spacers if at - 1 not in spacers]
    ends = [at for at in spacers if at + 1 not in spacers]
    shared = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "yref": "y"}
    look = {"fillcolor": "@surface", "line": {"width": 0}, "layer": "above", "name": "gap"}
    return [
        {**shared, "y0": start - 0.5, "y1": end + 0.5, **look}
        for start, end in zip(starts, ends, strict=True)
    ]


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
