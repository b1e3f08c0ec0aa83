"""Figures as plain dicts in Plotly's schema: no graph_objects at run time (they cost a thousand times more),
checked with `go.Figure` in tests.

A figure is made in two steps. `loss_frame` and `heat_frame` give everything but the data, with "@token" in
place of colours; the run page carries these frames, and its script fills them from the REST interface on
every tick (static/js/loss.js, heat.js). `loss` and `heatmap` fill them here, for pictures made without a
browser. A browser test holds the two ways equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatscope_dashboards.chart_parts import CONFIG, Figure, plain
from floatscope_dashboards.heat_figure import fill_heat, heat_frame
from floatscope_dashboards.heat_stats import HeatStat
from floatscope_dashboards.loss_figure import Panel, fill_loss, loss_frame
from floatscope_dashboards.theme import resolve

__all__ = [
    "CONFIG",
    "Figure",
    "Panel",
    "fill_heat",
    "fill_loss",
    "heat_frame",
    "heatmap",
    "loss",
    "loss_frame",
    "plain",
]


def loss(
    series: Mapping[str, Any],
    *,
    theme: str,
    onset: int | None = None,
    resolved: int | None = None,
    panel: Panel | None = None,
    log: bool = False,
) -> Figure:
    """The loss chart, ready to draw. `series` maps loss, grad_norm, baseline and proof (the panel's) to
    column arrays of the REST interface; what is absent stays empty. `theme` is light or dark, else
    KeyError."""
    frame = loss_frame(onset=onset, resolved=resolved, panel=panel)
    figure: Figure = resolve(fill_loss(frame, series, onset=onset, log=log), theme)
    return figure


def heatmap(
    payload: Mapping[str, Any],
    *,
    stat: HeatStat,
    theme: str,
    onset: int | None = None,
    origin: str | None = None,
    order: Mapping[str, int] | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """The layer x step heat map of one statistic, ready to draw, from the REST payload with its u1 cells.

    `marks` are payloads of statistics that tell where values are not finite (`heat_stats.mark_stats`).
    `origin` is the tensor where a finding began, `order` maps a layer to its first forward call. Raises
    ValueError naming the field when the payload's sizes do not agree.
    """
    frame = heat_frame(onset=onset)
    filled = fill_heat(frame, payload, stat=stat, onset=onset, origin=origin, order=order, marks=marks)
    figure: Figure = resolve(filled, theme)
    return figure
