"""The panels of one tensor over steps: largest value after scaling, scale, what clips, what becomes 0.

Like the other figures this is a frame without data, with "@token" in place of colours;
static/js/tensor_fill.js fills it. Panels whose statistic the tensor does not have are left out, and others
take their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.chart_parts import Figure, axis, onset_shapes, panel_title, step_line
from floatscope_dashboards.chart_parts import layout as base_layout
from floatscope_dashboards.say import Say, later

MOST_PANELS = 6
GAP = 0.055
"""Between panels, share of the height: room for the title of the one below."""


@dataclass(frozen=True)
class TensorPanel:
    """One panel. stat: of the series. title: in words. scale: of its axis: "log2", "log10" (0 is a row of its
    own) or "linear". pick: which number of a bin is the line: "max", "min" or "last". weight: share of the
    height.
    """

    stat: str
    title: str
    unit: str
    scale: str
    pick: str
    colour: str
    weight: float = 1.0


PANELS: tuple[TensorPanel, ...] = (
    TensorPanel("sat", later("Largest value after scaling"), "", "log2", "max", "s1", 1.9),
    TensorPanel("amax", later("Largest value (amax)"), "", "log2", "max", "s1", 1.9),
    TensorPanel("scale", later("Scale"), "", "log2", "last", "s2", 1.6),
    TensorPanel("overflow_pct", later("Overflow, values that clip"), "%", "linear", "max", "s2"),
    TensorPanel("underflow_pct", later("Underflow, values that become 0"), "%", "log10", "max", "s1"),
    TensorPanel("sqnr_db", later("Signal to quantisation noise"), "dB", "linear", "min", "s3"),
    TensorPanel("grad_norm", later("Gradient norm"), "", "log10", "max", "s1"),
    TensorPanel("update_ratio", later("Update / weight ratio"), "", "log10", "max", "s3"),
    TensorPanel("unchanged_pct", later("Weights unchanged by the step"), "%", "linear", "max", "s2"),
    TensorPanel("rms", later("RMS"), "", "log2", "last", "s1"),
    TensorPanel("nan_count", later("NaN values"), "", "log10", "max", "s1"),
    TensorPanel("inf_count", later("Inf values"), "", "log10", "max", "s1"),
)
FIRST_FOUR = ("sat", "scale", "overflow_pct", "underflow_pct")
OF_WEIGHTS = ("update_ratio", "unchanged_pct")


def chosen_panels(stats: Sequence[str]) -> tuple[TensorPanel, ...]:
    """The panels of a tensor that has these statistics: the four, then what weights have, then others."""
    known = {panel.stat: panel for panel in PANELS if panel.stat in stats}
    if "sat" in known:
        known.pop("amax", None)
    wanted = [stat for stat in FIRST_FOUR if stat in known]
    wanted += [stat for stat in OF_WEIGHTS if stat in known]
    if len(wanted) < len(FIRST_FOUR):
        rest = [stat for stat in known if stat not in wanted]
        wanted += rest[: len(FIRST_FOUR) - len(wanted)]
    order = [panel.stat for panel in PANELS]
    return tuple(known[stat] for stat in sorted(wanted[:MOST_PANELS], key=order.index))


def tensor_frame(
    panels: Sequence[TensorPanel],
    say: Say,
    *,
    onset: int | None,
    resolved: int | None,
    segments: Sequence[int] = (),
) -> Figure:
    """The panels without data. Traces carry `meta` = [statistic, part].

    segments: first steps of resumed ones.
    """
    layout = base_layout(margin={"l": 58, "r": 14, "t": 40, "b": 38}, hovermode="x")
    data: list[dict[str, Any]] = []
    annotations = []
    for number, (panel, domain) in enumerate(zip(panels, _domains(panels), strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        layout[f"yaxis{suffix}"] = axis(domain=list(domain), fixedrange=True)
        data += _traces(panel, f"y{suffix}", say)
        title = say(panel.title)
        text = say("{title}, {unit}", title=title, unit=panel.unit) if panel.unit else title
        annotations.append(panel_title(text, domain[1]))
    bottom = f"y{len(panels)}" if len(panels) > 1 else "y"
    layout["xaxis"] = axis(
        tickformat=",d",
        hoverformat=",d",
        anchor=bottom,
        title={"text": say("Step"), "standoff": 4, "font": {"size": 12}},
    )
    layout["shapes"] = onset_shapes(onset, resolved)
    layout["shapes"] += [
        {**step_line(step, "segment", color="@line-2"), "layer": "below"} for step in segments
    ]
    layout["annotations"] = annotations
    return {"data": data, "layout": layout}


def panels_json(panels: Sequence[TensorPanel], say: Say) -> list[Mapping[str, Any]]:
    """What the script must know of each panel."""
    return [
        {
            "stat": panel.stat,
            "title": say(panel.title),
            "unit": panel.unit,
            "scale": panel.scale,
            "pick": panel.pick,
        }
        for panel in panels
    ]


def _domains(panels: Sequence[TensorPanel]) -> list[tuple[float, float]]:
    """Vertical room from top to bottom."""
    room = 1.0 - GAP * (len(panels) - 1)
    whole = sum(panel.weight for panel in panels)
    found, top = [], 1.0
    for panel in panels:
        low = max(0.0, top - room * panel.weight / whole)
        found.append((round(low, 4), round(top, 4)))
        top = low - GAP
    return found


def _traces(panel: TensorPanel, anchor: str, say: Say) -> list[dict[str, Any]]:
    name = say(panel.title)
    base: dict[str, Any] = {"type": "scatter", "x": [], "y": [], "yaxis": anchor}
    unit = f"\u202f{panel.unit}" if panel.unit else ""
    hover = {"hovertemplate": f"{name} %{{customdata}}{unit}<extra></extra>", "customdata": []}
    colour = f"@{panel.colour}"
    band = {
        **base,
        "mode": "lines",
        "fill": "toself",
        "fillcolor": f"@{panel.colour}-band",
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "meta": [panel.stat, "band"],
    }
    line = {
        **base,
        "mode": "lines",
        "line": {"color": colour, "width": 1.7},
        "connectgaps": False,
        "meta": [panel.stat, "line"],
        **hover,
    }
    single = {
        **base,
        "mode": "markers",
        "marker": {"color": colour, "size": 5},
        "meta": [panel.stat, "single"],
        **hover,
    }
    if panel.scale == "linear" and panel.stat == "overflow_pct":
        line |= {"fill": "tozeroy", "fillcolor": f"@{panel.colour}-band"}
        band["visible"] = False
    found = [band, line, single]
    if panel.stat == "scale":
        shadow = say("Shadow scale")
        for mode, part in (("lines", "line"), ("markers", "single")):
            found.append(
                {
                    **base,
                    "mode": mode,
                    "line": {"color": "@s3", "width": 1.7, "dash": "5px,4px"},
                    "marker": {"color": "@s3", "size": 5},
                    "connectgaps": False,
                    "meta": ["shadow_scale", part],
                    "hovertemplate": f"{shadow} %{{customdata}}<extra></extra>",
                    "customdata": [],
                }
            )
    return found
