"""Colours of the charts, light and dark: the same tokens as static/app.css (a test compares the two).

The palette is derived from Okabe and Ito (https://jfly.uni-koeln.de/color/), which stays distinct under the
common forms of colour blindness. Figures are built with "@token" in place of a colour, so that one figure
serves both themes; `resolve` puts the colours in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FONT = 'Inter,"Segoe UI",system-ui,-apple-system,"Helvetica Neue",Arial,sans-serif'

LIGHT: Mapping[str, str] = {
    "surface": "#ffffff",
    "sunk": "#f0f2f5",
    "line-2": "#cdd3db",
    "text": "#12161c",
    "text-2": "#4a5361",
    "text-3": "#5f6977",
    "grid": "#e9ecf0",
    "crit": "#b3380a",
    "warn": "#8a5a00",
    "nan": "#8b2f6d",
    "inf": "#12161c",
    "s1": "#0072b2",
    "s2": "#d55e00",
    "s3": "#009e73",
    "s1-raw": "#0072b266",
    "s1-band": "#0072b238",
    "s2-band": "#d55e002a",
    "s3-band": "#009e7330",
    "crit-band": "#b3380a12",
    "nan-band": "#8b2f6d4d",
    "gap-band": "#5f697722",
}

DARK: Mapping[str, str] = {
    "surface": "#15191f",
    "sunk": "#1b2027",
    "line-2": "#39424e",
    "text": "#eef1f5",
    "text-2": "#b3bcc8",
    "text-3": "#919cab",
    "grid": "#222932",
    "crit": "#ff9466",
    "warn": "#f2c057",
    "nan": "#ec9fce",
    "inf": "#eef1f5",
    "s1": "#56b4e9",
    "s2": "#ff8a4c",
    "s3": "#3cc79e",
    "s1-raw": "#56b4e966",
    "s1-band": "#56b4e938",
    "s2-band": "#ff8a4c2a",
    "s3-band": "#3cc79e30",
    "crit-band": "#ff946614",
    "nan-band": "#ec9fce4d",
    "gap-band": "#919cab26",
}

THEMES: Mapping[str, Mapping[str, str]] = {"light": LIGHT, "dark": DARK}

# Worst first. The far end is close to the surface: what is healthy recedes, trouble stands out, in both
# themes.
RAMPS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "light": (
        (0.0, "#a8320a"),
        (0.08, "#d8692b"),
        (0.18, "#f0ab62"),
        (0.32, "#f7e6c8"),
        (0.5, "#dde7f0"),
        (0.75, "#bfd4e6"),
        (1.0, "#98bcd9"),
    ),
    "dark": (
        (0.0, "#ff8f55"),
        (0.08, "#d9662c"),
        (0.18, "#9a4f28"),
        (0.32, "#5b463b"),
        (0.5, "#33404d"),
        (0.75, "#27394b"),
        (1.0, "#1c3046"),
    ),
}

# For statistics whose healthy value is 0, which is most of the map: the pale end is a single quiet tone.
HIGH_RAMPS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "light": ((0.0, "#e4ecf3"), (0.12, "#f7e6c8"), (0.35, "#f0ab62"), (0.7, "#d8692b"), (1.0, "#a8320a")),
    "dark": ((0.0, "#1e2a37"), (0.12, "#4a4038"), (0.35, "#9a4f28"), (0.7, "#d9662c"), (1.0, "#ff8f55")),
}

# For headroom, from 4 binades of clipping over 0, which is fine, to 8 binades of unused range.
BOTH_RAMPS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "light": (
        (0.0, "#a8320a"),
        (0.167, "#d8692b"),
        (0.292, "#f0ab62"),
        (0.325, "#f7e6c8"),
        (0.335, "#eef2f6"),
        (0.5, "#dfe8f0"),
        (0.667, "#b9d2e6"),
        (0.833, "#79add4"),
        (1.0, "#2a72ac"),
    ),
    "dark": (
        (0.0, "#ff8f55"),
        (0.167, "#d9662c"),
        (0.292, "#9a4f28"),
        (0.325, "#54443a"),
        (0.335, "#1e2a37"),
        (0.5, "#22313f"),
        (0.667, "#2b455c"),
        (0.833, "#37719c"),
        (1.0, "#56b4e9"),
    ),
}

# For statistics without a bad end (amax, scale): one hue, low to high.
NEUTRAL_RAMPS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "light": ((0.0, "#f3f6f9"), (0.5, "#9fc3dd"), (1.0, "#0b5c94")),
    "dark": ((0.0, "#1a2129"), (0.5, "#2f5f86"), (1.0, "#8fd0f7")),
}


TOKENS: Mapping[str, Mapping[str, Any]] = {
    theme: {
        **colours,
        "ramp-both": [list(stop) for stop in BOTH_RAMPS[theme]],
        "ramp-low": [list(stop) for stop in RAMPS[theme]],
        "ramp-high": [list(stop) for stop in HIGH_RAMPS[theme]],
        "ramp-none": [list(stop) for stop in NEUTRAL_RAMPS[theme]],
        "ramp-marks": [
            [0.0, colours["nan"]],
            [0.5, colours["nan"]],
            [0.5, colours["inf"]],
            [1.0, colours["inf"]],
        ],
    }
    for theme, colours in THEMES.items()
}
"""All that a figure may name with "@": colours, and colour scales whose bad end is "low", "high" or
nowhere."""


def resolve(value: Any, theme: str) -> Any:
    """A copy of `value` with the theme's colours for its "@token" strings.

    Only keys that end in "color" or are "colorscale" are looked at: a tensor may be called "@nan". Raises
    KeyError for an unknown theme or token.
    """
    if isinstance(value, dict):
        return {key: _resolve_key(key, item, theme) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve(item, theme) for item in value]
    return value


def _resolve_key(key: str, value: Any, theme: str) -> Any:
    if isinstance(value, str) and value.startswith("@") and key.endswith(("color", "colorscale")):
        return TOKENS[theme][value[1:]]
    return resolve(value, theme)
