"""The loss chart: loss, gradient norm and the proving statistic on one step axis."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards import bins as binning
from floatscope_dashboards.bins import Bins, Span
from floatscope_dashboards.chart_parts import Figure, axis, onset_shapes, plain, rect
from floatscope_dashboards.chart_parts import layout as base_layout
from floatscope_dashboards.wording import number_text, step_text

RIGHT_SPACE_SHARE = 0.02
"""Free room right of the last step, so that the newest points and their marks are not cut."""

# Vertical room of the panels from top to bottom, with and without the third one.
_DOMAINS = {3: ((0.43, 1.0), (0.215, 0.355), (0.0, 0.14)), 2: ((0.32, 1.0), (0.0, 0.2))}


@dataclass(frozen=True)
class Panel:
    """The third panel under the loss: the tensor statistic that proves the finding."""

    tensor: str
    label: str
    unit: str


def loss_frame(*, onset: int | None, resolved: int | None = None, panel: Panel | None = None) -> Figure:
    """Loss, gradient norm and (with `panel`) the proving statistic on one step axis, without data.

    Traces carry `meta` = [series, part], which says what to fill in. `onset` and `resolved` are marked
    through all panels.
    """
    series = [("loss", "y", "s1", "Loss"), ("grad_norm", "y2", "s3", "Grad norm")]
    if panel is not None:
        series.append(("proof", "y3", "s2", plain(panel.label)))
    data: list[dict[str, Any]] = []
    for name, anchor, colour, label in series:
        data.extend(_series_traces(name, anchor, colour, label))
    data.insert(1, _baseline_trace())
    data.insert(3, _smooth_trace())
    domains = _DOMAINS[len(series)]
    layout = base_layout(margin={"l": 52, "r": 14, "t": 26, "b": 38})
    bottom = "y" if len(series) == 1 else f"y{len(series)}"
    layout["xaxis"] = axis(
        tickformat=",d",
        hoverformat=",d",
        anchor=bottom,
        title={"text": "Step", "standoff": 4, "font": {"size": 12}},
    )
    for index, domain in enumerate(domains):
        number = "" if index == 0 else str(index + 1)
        layout[f"yaxis{number}"] = axis(domain=list(domain), nticks=6 if index == 0 else 3, fixedrange=True)
        # An invisible axis over each panel, 0 to 1: marks of non-finite values have no value to stand at.
        layout[f"yaxis{index + 11}"] = {
            "domain": list(domain),
            "range": [0, 1],
            "visible": False,
            "fixedrange": True,
            "overlaying": f"y{number}",
        }
    if panel is not None and panel.unit == "%":
        layout["yaxis3"]["ticksuffix"] = "\u202f%"
    layout["shapes"] = onset_shapes(onset, resolved)
    layout["annotations"] = [_panel_title("Grad norm", domains[1][1])]
    if panel is not None:
        layout["annotations"].append(_panel_title(plain(f"{panel.label}, {panel.tensor}"), domains[2][1]))
    return {"data": data, "layout": layout}


def _series_traces(name: str, anchor: str, colour: str, label: str) -> list[dict[str, Any]]:
    number = anchor[1:] or "1"
    over = f"y{int(number) + 10}"
    hover = {"hovertemplate": "%{fullData.name} %{y:.5~g}<extra></extra>", "yaxis": anchor}
    marks = {"mode": "markers", "yaxis": over, "type": "scatter", "x": [], "y": [], "customdata": []}
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [],
            "y": [],
            "yaxis": anchor,
            "name": f"{label}, min to max",
            "fill": "toself",
            "fillcolor": f"@{colour}-band",
            "line": {"width": 0, "color": f"@{colour}"},
            "hoverinfo": "skip",
            "meta": [name, "band"],
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": [],
            "y": [],
            "name": label,
            "line": {"color": f"@{colour}", "width": 2 if name == "loss" else 1.5},
            "connectgaps": False,
            "meta": [name, "line"],
            **hover,
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [],
            "y": [],
            "name": f"{label}, single value",
            "marker": {"color": f"@{colour}", "size": 5},
            "meta": [name, "single"],
            **hover,
        },
        {
            **marks,
            "name": f"{label} NaN",
            "marker": {"color": "@nan", "symbol": "x", "size": 7},
            "hovertemplate": "%{fullData.name}, %{customdata} values<extra></extra>",
            "meta": [name, "nan"],
        },
        {
            **marks,
            "name": f"{label} Inf",
            "marker": {"color": "@nan", "symbol": "triangle-up-open", "size": 9, "line": {"width": 2}},
            "hovertemplate": "%{fullData.name}, %{customdata} values<extra></extra>",
            "meta": [name, "inf"],
        },
    ]


def _smooth_trace() -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "yaxis": "y",
        "name": "Smoothed",
        "line": {"color": "@s1", "width": 2.2},
        "connectgaps": False,
        "hovertemplate": "%{fullData.name} %{y:.5~g}<extra></extra>",
        "meta": ["loss", "smooth"],
    }


def _baseline_trace() -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "yaxis": "y",
        "name": "Baseline",
        "line": {"color": "@text-3", "width": 1.4, "dash": "4px,3px"},
        "connectgaps": False,
        "hovertemplate": "%{fullData.name} %{y:.5~g}<extra></extra>",
        "meta": ["baseline", "line"],
    }


def _panel_title(text: str, top: float) -> dict[str, Any]:
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


def fill_loss(
    frame: Figure,
    series: Mapping[str, Any],
    *,
    onset: int | None,
    log: bool = False,
    smooth: bool = True,
    x_range: tuple[float, float] | None = None,
) -> Figure:
    """A copy of `frame` with data: `series` maps loss, grad_norm, proof and baseline to column arrays.

    `smooth` draws an average of loss and baseline, and the loss itself faintly behind it.
    `log` draws the loss on a logarithmic axis; values that are not positive are then left out of its range.
    `x_range` (steps) is the reader's zoom; without it everything is shown.
    """
    figure = copy.deepcopy(frame)
    layout = figure["layout"]
    read = {name: binning.read_bins(series.get(name)) for name in ("loss", "grad_norm", "proof", "baseline")}
    half_life = binning.half_life_bins(read["loss"]) if smooth else None
    for trace in figure["data"]:
        name, part = trace["meta"]
        _fill_trace(trace, read[name], part)
        if half_life is None:
            continue
        if part == "smooth":
            trace["x"], trace["y"] = binning.smooth(read["loss"], half_life)
        elif name == "baseline":
            steps_each = half_life * read["loss"].distance
            trace["x"], trace["y"] = binning.smooth(read["baseline"], steps_each / read["baseline"].distance)
        elif (name, part) == ("loss", "line"):
            trace["line"] = {"color": "@s1-raw", "width": 1}
    steps = [step for name in ("loss", "grad_norm", "proof") for step in read[name].step]
    first, last = (min(steps), max(steps)) if steps else (0, 1)
    whole = (float(first), last + max((last - first) * RIGHT_SPACE_SHARE, 1.0))
    shown = x_range or whole
    layout["xaxis"]["range"] = list(shown)
    _set_range(layout, "yaxis", binning.span([read["loss"], read["baseline"]], positive=log), log=log)
    _set_range(layout, "yaxis2", binning.span([read["grad_norm"]]), log=False)
    if "yaxis3" in layout:
        _set_range(layout, "yaxis3", binning.whole_span([read["proof"]]), log=False)
    for shape in layout["shapes"]:
        if shape.get("name") == "after-onset":
            shape["x1"] = max(whole[1], shape["x0"])
    layout["shapes"].extend(_stretches(read))
    if onset is not None and shown[0] <= onset <= shown[1]:
        layout["annotations"].append(_onset_label(onset, shown))
    outside = binning.span([read["loss"]], positive=log)
    if outside is not None and (outside.above or outside.below):
        layout["annotations"].append(_outside_label(outside))
    return figure


def _fill_trace(trace: dict[str, Any], bins: Bins, part: str) -> None:
    if part == "smooth":
        trace["x"], trace["y"] = [], []
    elif part == "line":
        trace["x"], trace["y"] = binning.line(bins)
    elif part == "band":
        trace["x"], trace["y"] = binning.band(bins)
    elif part == "single":
        trace["x"], trace["y"] = binning.isolated(bins)
    else:
        nan_steps, nan_counts, inf_steps, inf_counts = binning.nonfinite(bins)
        trace["x"], trace["customdata"] = (
            (nan_steps, nan_counts) if part == "nan" else (inf_steps, inf_counts)
        )
        trace["y"] = [0.04 if part == "nan" else 0.96] * len(trace["x"])


def _set_range(layout: dict[str, Any], axis: str, found: Span | None, *, log: bool) -> None:
    layout[axis]["type"] = "log" if log else "linear"
    if found is None:
        layout[axis]["range"] = [0.0, 1.0]
    elif log:
        low = max(found.low, found.smallest / 1.1)
        layout[axis]["range"] = [math.log10(low), math.log10(found.high)]
    else:
        layout[axis]["range"] = [found.low, found.high]


def _stretches(read: Mapping[str, Bins]) -> list[dict[str, Any]]:
    shapes = []
    for name, anchor in (("loss", "y"), ("grad_norm", "y2")):
        for start, end in binning.nonfinite_stretches(read[name]):
            shapes.append(rect(start, end, f"{anchor} domain", "@nan-band", "nonfinite"))
    for start, end in binning.missing_stretches(read["loss"]):
        shapes.append(rect(start, end, "paper", "@gap-band", "missing"))
    return shapes


def _onset_label(onset: int, shown: tuple[float, float]) -> dict[str, Any]:
    right_half = onset > (shown[0] + shown[1]) / 2
    return {
        "text": f"<b>Onset {step_text(onset)}</b>",
        "x": onset,
        "xref": "x",
        "xanchor": "right" if right_half else "left",
        "xshift": 4 if right_half else -4,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": "@crit"},
    }


def _outside_label(found: Span) -> dict[str, Any]:
    parts = []
    if found.above:
        parts.append(f"{found.above} above, max {number_text(found.largest)}")
    if found.below:
        parts.append(f"{found.below} below, min {number_text(found.smallest)}")
    return {
        "text": "Not shown: " + "; ".join(parts),
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": 11, "color": "@text-3"},
        "name": "outside",
    }
