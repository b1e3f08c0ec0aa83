"""The loss chart: loss, gradient norm and the proving statistic on one step axis."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards import bins as binning
from floatscope_dashboards.bins import Bins, Span
from floatscope_dashboards.chart_parts import Figure, axis, onset_shapes, panel_title, plain, rect, step_line
from floatscope_dashboards.chart_parts import layout as base_layout
from floatscope_dashboards.findings import IN_ENGLISH
from floatscope_dashboards.say import Say
from floatscope_dashboards.wording import number_text

FEW_STEPS = 6
RIGHT_SPACE_SHARE = 0.02
"""Free room right of the last step, so that the newest points and their marks are not cut."""

MAX_LABELS = 3
"""Newest resumes that are named; all are marked."""

# Vertical room of the panels from top to bottom, with and without the third one.
_DOMAINS = {3: ((0.43, 1.0), (0.215, 0.355), (0.0, 0.14)), 2: ((0.32, 1.0), (0.0, 0.2))}


@dataclass(frozen=True)
class Panel:
    """The third panel under the loss: the tensor statistic that proves the finding."""

    tensor: str
    label: str
    unit: str


def loss_frame(
    say: Say = IN_ENGLISH,
    *,
    onset: int | None,
    resolved: int | None = None,
    resumed: Sequence[int] = (),
    diverged: int | None = None,
    panel: Panel | None = None,
) -> Figure:
    """Loss, gradient norm and (with `panel`) the proving statistic on one step axis, without data.

    Traces carry `meta` = [series, part], which says what to fill in. `onset` and `resolved` are marked
    through all panels; `resumed`: first steps after a resume; `diverged`: where the loss is known to be off.
    """
    series = [("loss", "y", "s1", say("Loss")), ("grad_norm", "y2", "s3", say("Grad norm"))]
    if panel is not None:
        series.append(("proof", "y3", "s2", plain(panel.label)))
    data: list[dict[str, Any]] = []
    for name, anchor, colour, label in series:
        data.extend(_series_traces(name, anchor, colour, label, say))
    data.insert(
        1, _line_trace("baseline", say("Baseline"), {"color": "@text-3", "width": 1.4, "dash": "4px,3px"})
    )
    data.insert(
        2, _line_trace("old", say("Before the resume"), {"color": "@text-3", "width": 1.2, "dash": "2px,2px"})
    )
    data.insert(4, _smooth_trace(say))
    domains = _DOMAINS[len(series)]
    layout = base_layout(margin={"l": 52, "r": 14, "t": 26, "b": 38})
    bottom = "y" if len(series) == 1 else f"y{len(series)}"
    layout["xaxis"] = axis(
        tickformat=",d",
        hoverformat=",d",
        anchor=bottom,
        title={"text": say("Step"), "standoff": 4, "font": {"size": 12}},
        unifiedhovertitle={"text": plain(say("Step {step}", step="%{x:,d}"))},
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
    layout["shapes"] = [
        *onset_shapes(onset, resolved),
        *(step_line(step, "resumed", color="@text-3") for step in resumed),
        *(() if diverged is None or diverged == onset else (step_line(diverged, "diverged", color="@warn"),)),
    ]
    layout["annotations"] = [panel_title(say("Grad norm"), domains[1][1])]
    layout["annotations"].extend(_mark_label(step, say("Resumed"), 0) for step in resumed[-MAX_LABELS:])
    if diverged is not None and diverged != onset:
        words = say("Loss off its level {step}", step=say.step(diverged))
        layout["annotations"].append(_mark_label(diverged, words, 1))
    if panel is not None:
        layout["annotations"].append(
            panel_title(
                plain(say("{signal}, {tensor}", signal=panel.label, tensor=panel.tensor)), domains[2][1]
            )
        )
    return {"data": data, "layout": layout}


def _mark_label(step: int, text: str, y: int) -> dict[str, Any]:
    return {
        "text": text,
        "x": step,
        "xref": "x",
        "xanchor": "left",
        "xshift": 2,
        "y": y,
        "yref": "paper",
        "yanchor": "top" if y else "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": "@text-2"},
    }


def _series_traces(name: str, anchor: str, colour: str, label: str, say: Say) -> list[dict[str, Any]]:
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
            "name": say("{signal}, min to max", signal=label),
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
            "name": say("{signal}, single value", signal=label),
            "marker": {"color": f"@{colour}", "size": 5},
            "meta": [name, "single"],
            **hover,
        },
        {
            **marks,
            "name": say("{signal} NaN", signal=label),
            "marker": {"color": "@nan", "symbol": "x", "size": 7},
            "hovertemplate": "%{fullData.name} \u00d7%{customdata}<extra></extra>",
            "meta": [name, "nan"],
        },
        {
            **marks,
            "name": say("{signal} Inf", signal=label),
            "marker": {"color": "@nan", "symbol": "triangle-up-open", "size": 9, "line": {"width": 2}},
            "hovertemplate": "%{fullData.name} \u00d7%{customdata}<extra></extra>",
            "meta": [name, "inf"],
        },
    ]


def _smooth_trace(say: Say) -> dict[str, Any]:
    return {
        **_line_trace("loss", say("Smoothed"), {"color": "@s1", "width": 2.2}),
        "meta": ["loss", "smooth"],
    }


def _line_trace(name: str, word: str, line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "yaxis": "y",
        "name": word,
        "line": line,
        "connectgaps": False,
        "hovertemplate": "%{fullData.name} %{y:.5~g}<extra></extra>",
        "meta": [name, "line"],
    }


def fill_loss(
    frame: Figure,
    series: Mapping[str, Any],
    say: Say = IN_ENGLISH,
    *,
    onset: int | None,
    log: bool = False,
    half: int | None = None,
    full: bool = False,
    x_range: tuple[float, float] | None = None,
) -> Figure:
    """A copy of `frame` with data: `series` maps loss, grad_norm, proof and baseline to column arrays, and
    old to a list of those of abandoned segments.

    `half` is the half-life in steps of the smoothed loss and baseline, with the loss itself faintly behind
    it; None: what suits, 0: not smoothed. `log` draws the loss on a logarithmic axis; values that are not
    positive are then left out of its range. `full`: the vertical range leaves no value out. `x_range` (steps)
    is the reader's zoom; without it everything is shown.
    """
    figure = copy.deepcopy(frame)
    layout = figure["layout"]
    read = {name: binning.read_bins(series.get(name)) for name in ("loss", "grad_norm", "proof", "baseline")}
    old = [binning.read_bins(columns) for columns in series.get("old") or ()]
    if half is None:
        half = binning.half_life_steps(read["loss"])
    for trace in figure["data"]:
        name, part = trace["meta"]
        if name == "old":
            lines = [binning.line(each) for each in old]
            trace["x"] = [x for xs, _ys in lines for x in xs]
            trace["y"] = [y for _xs, ys in lines for y in ys]
            continue
        _fill_trace(trace, read[name], part)
        if not half:
            continue
        if part == "smooth" or name == "baseline":
            trace["x"], trace["y"] = binning.smooth(read[name], half)
        elif (name, part) == ("loss", "line"):
            trace["line"] = {"color": "@s1-raw", "width": 1}
    steps = [step for name in ("loss", "grad_norm", "proof") for step in read[name].step]
    first, last = (min(steps), max(steps)) if steps else (0, 1)
    whole = (float(first), last + max((last - first) * RIGHT_SPACE_SHARE, 1.0))
    shown = x_range or whole
    layout["xaxis"]["range"] = list(shown)
    if shown[1] - shown[0] < FEW_STEPS:
        layout["xaxis"]["dtick"] = 1  # else the same whole number stands at two ticks
    seen = {name: binning.within(each, x_range) for name, each in read.items()}
    ranged = [seen["loss"], seen["baseline"]]
    _set_range(layout, "yaxis", binning.span(ranged, positive=log, robust=not full), log=log)
    _set_range(layout, "yaxis2", binning.span([seen["grad_norm"]]), log=False)
    if "yaxis3" in layout:
        _set_range(layout, "yaxis3", binning.whole_span([seen["proof"]]), log=False)
    for shape in layout["shapes"]:
        if shape.get("name") == "after-onset":
            shape["x1"] = max(whole[1], shape["x0"])
    layout["shapes"].extend(_stretches(read))
    if onset is not None and shown[0] <= onset <= shown[1]:
        layout["annotations"].append(_onset_label(onset, shown, say))
    outside = None if full else binning.span([seen["loss"]], positive=log)
    if outside is not None and (outside.above or outside.below):
        layout["annotations"].append(_outside_label(outside, say))
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


def _onset_label(onset: int, shown: tuple[float, float], say: Say) -> dict[str, Any]:
    right_half = onset > (shown[0] + shown[1]) / 2
    return {
        "text": f"<b>{plain(say('Onset {step}', step=say.step(onset)))}</b>",
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


def _outside_label(found: Span, say: Say) -> dict[str, Any]:
    return {
        "text": plain(outside_words(found, say)),
        "x": 1,
        "xref": "paper",
        "xanchor": "right",
        "y": 1 if found.above else 0,
        "yref": "y domain",
        "yanchor": "top" if found.above else "bottom",
        "showarrow": False,
        "captureevents": True,
        "font": {"size": 11, "color": "@text-2"},
        "name": "outside",
    }


def outside_words(found: Span, say: Say) -> str:
    """How many points are not shown, and how far they go."""
    highest, lowest = number_text(found.largest), number_text(found.smallest)
    above = say.plural(
        "{n} point above, max {value}", "{n} points above, max {value}", found.above, value=highest
    )
    below = say.plural(
        "{n} point below, min {value}", "{n} points below, min {value}", found.below, value=lowest
    )
    if found.above and found.below:
        return say("{above}; {below}", above=above, below=below)
    return above if found.above else below
