"""Small SVG curves without axes: the loss in a table row, a card or a key number.

A gap stays a gap, NaN is a tick at the foot of its place, a single point between gaps is a dot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

EDGE_PX = 2.0
WARM_UP_SHARE = 0.1
"""Share of the curve left out of the vertical scale: the first fall of a loss would make every curve an L."""
MIN_POINTS_FOR_WARM_UP = 20


def svg(
    values: Sequence[float | None],
    *,
    width: int,
    height: int,
    onset_share: float | None = None,
    kind: str = "spark",
) -> Markup:
    """`values` (oldest first, None = gap, NaN or Inf = not a number) as one inline SVG of width x height px.

    `onset_share` (0 to 1 along the curve) shades what came after it. Without values the picture is empty.
    The text holds numbers only, so nothing in it can carry markup from outside.
    """
    parts = [
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" preserveAspectRatio="none" width="{width}" '
        f'height="{height}" aria-hidden="true" focusable="false">'
    ]
    if onset_share is not None and values:
        x = _x(min(max(onset_share, 0.0), 1.0), width)
        parts.append(
            f'<rect class="sp-after" x="{x:.1f}" y="0" width="{width - EDGE_PX - x:.1f}" height="{height}"/>'
        )
        parts.append(f'<path class="sp-onset" d="M{x:.1f} 0V{height}"/>')
    parts.extend(_curve(values, width=width, height=height))
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704 - numbers only, see docstring


def _x(share: float, width: int) -> float:
    return EDGE_PX + share * (width - 2 * EDGE_PX)


def _curve(values: Sequence[float | None], *, width: int, height: int) -> list[str]:
    low, high = _scale(values)
    span = (high - low) or 1.0
    last = max(len(values) - 1, 1)
    line: list[str] = []
    dots: list[str] = []
    ticks: list[str] = []
    run: list[str] = []
    for index, value in enumerate([*values, None]):
        if value is not None and math.isfinite(value):
            share = (
                (value - low) / span if high > low else 0.5
            )  # what lies outside the scale is cut off by the picture's edge
            run.append(f"{_x(index / last, width):.1f} {height - 3 - share * (height - 6):.1f}")
            continue
        if len(run) == 1:
            dots.append(f"M{run[0]}h0")
        elif run:
            line.append("M" + "L".join(run))
        run = []
        if value is not None:
            ticks.append(f"M{_x(index / last, width):.1f} {height - 5}v4")
    paths = []
    if line:
        paths.append(f'<path class="sp-line" d="{"".join(line)}"/>')
    if dots:
        paths.append(f'<path class="sp-dot" d="{"".join(dots)}"/>')
    if ticks:
        paths.append(f'<path class="sp-nan" d="{"".join(ticks)}"/>')
    return paths


def _scale(values: Sequence[float | None]) -> tuple[float, float]:
    """Vertical range: of the curve without its first tenth, when there is enough of it."""
    skip = int(len(values) * WARM_UP_SHARE) if len(values) >= MIN_POINTS_FOR_WARM_UP else 0
    finite = [value for value in values[skip:] if value is not None and math.isfinite(value)]
    if not finite:
        finite = [value for value in values if value is not None and math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def onset_share(*, first_step: int | None, last_step: int | None, onset_step: int | None) -> float | None:
    """Where `onset_step` lies between the first and last step, 0 to 1; None when any of them is missing."""
    if first_step is None or last_step is None or onset_step is None or last_step <= first_step:
        return None
    return min(max((onset_step - first_step) / (last_step - first_step), 0.0), 1.0)
