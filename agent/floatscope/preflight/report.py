"""Preflight's answer as text for a terminal of 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.jsonable import printable
from floatscope.preflight.check import Check
from floatscope.preflight.document import Preflight
from floatscope.preflight.recipe_names import words_of
from floatscope.preflight.summary import SEVERITY, layers_words, sentence, worst_first

WIDTH = 100
MOST_LAYERS = 40
"""Rows of layers shown; a model has a few kinds of them, whatever a configuration claims."""
_LEAD = 9
_AREAS = {
    "gpu": "GPU",
    "software": "Software",
    "recipe": "Recipe",
    "framework": "Framework",
    "environment": "Environment",
    "shape": "Shapes",
    "casts": "Casts",
    "checkpoint": "Checkpoint",
    "distribution": "Distribution",
    "gemm": "GEMM",
    "against": "Against the other preflight",
    "preflight": "Preflight itself",
}
_WORDS = {"not_applicable": "n/a"}


def report(found: Preflight, *, verbose: bool = False) -> str:
    """The whole text. verbose: with the checks that pass or do not apply."""
    lines = [*_wrapped(sentence(found), ""), ""]
    quiet: list[str] = []
    for area, checks in _by_area(found.checks):
        shown = checks if verbose else [one for one in checks if _speaks(one)]
        if not shown:
            quiet.append(f"{_AREAS.get(area, area)} {len(checks)}")
            continue
        rest = len(checks) - len(shown)
        lines.append(_AREAS.get(area, area) + (f"  ({rest} more without anything to say)" if rest else ""))
        for one, after in zip(shown, [*shown[1:], None], strict=True):
            same = after is not None and (after.status, after.do) == (one.status, one.do)
            lines += _check(one, "as the next one" if same else one.do)
        lines.append("")
    lines += [*_recipes(found), *_layers(found.layers), *_gemm(found.gemm)]
    if quiet:
        lines += [*_wrapped(f"Nothing to say about: {', '.join(quiet)} (--verbose shows them).", ""), ""]
    took = sum(found.seconds.values())
    lines.append(f"Looked at in {took:.1f} s." if took else "")
    return "\n".join(lines).rstrip() + "\n"


def _speaks(one: Check) -> bool:
    return one.status not in ("pass", "not_applicable")


def _by_area(checks: Sequence[Check]) -> list[tuple[str, list[Check]]]:
    areas: dict[str, list[Check]] = {}
    for one in worst_first(checks):
        areas.setdefault(one.area, []).append(one)
    return sorted(areas.items(), key=lambda item: SEVERITY.index(item[1][0].status))


def _check(one: Check, do: str) -> list[str]:
    """do: in place of the check's own, which may be long and the same as the next one's."""
    word = _WORDS.get(one.status, one.status)
    lines = _wrapped(f"{one.name}: {one.read}", f"  {word:<{_LEAD}}")
    if _speaks(one):
        lines += _wrapped(one.why, " " * (2 + _LEAD) + "why  ") if one.why else []
        lines += _wrapped(do, " " * (2 + _LEAD) + "do   ") if one.do else []
    return lines


def _recipes(found: Preflight) -> list[str]:
    if not found.recipes:
        return []
    lines = ["Recipes on this machine (choose one with --recipe)"]
    alike: dict[tuple[str, str], list[str]] = {}
    for name, answer in found.recipes.items():
        alike.setdefault(answer, []).append(words_of(name))
    for (status, why), names in alike.items():
        word = _WORDS.get(status, status)
        lines += _wrapped(", ".join(names), f"  {word:<{_LEAD}}")
        lines += _wrapped(why, " " * (2 + _LEAD) + "why  ") if why else []
    return [*lines, ""]


def _layers(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    if not layers:
        return []
    rows = [
        (
            str(row.get("name", "")),
            _whole(row.get("count")),
            _whole(row.get("k")),
            _whole(row.get("n")),
            _whole(row.get("tokens")),
            f"{float(row.get('flops_share_pct') or 0.0):.1f} %",
            _in_fp8(row),
        )
        for row in layers[:MOST_LAYERS]
    ]
    head = ("linear layer", "count", "K", "N", "tokens", "FLOPs", "in FP8")
    wide = [max(len(row[i]) for row in [head, *rows]) for i in range(6)]
    lines = [layers_words(layers)]
    whys = ["", *(str(row.get("why_not") or "") for row in layers[:MOST_LAYERS])]
    for row, why in zip([head, *rows], whys, strict=True):
        cells = [row[0].ljust(wide[0]), *(row[i].rjust(wide[i]) for i in range(1, 6))]
        lines += _wrapped(row[6], "  " + "  ".join(cells) + "  ")
        lines += _wrapped(why, " " * 6) if why else []
    if len(layers) > MOST_LAYERS:
        lines.append(f"  ... {len(layers) - MOST_LAYERS:,} more kinds: --json has them all")
    return [*lines, ""]


def _in_fp8(row: Mapping[str, Any]) -> str:
    if row.get("in_fp8") is True:
        return "yes"
    return "no" if row.get("in_fp8") is False else "not known"


def _gemm(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["Smoke GEMM against FP32: relative error"]
    names = [" ".join(str(row[key]) for key in ("format", "distribution") if row.get(key)) for row in rows]
    wide = max(map(len, names))
    for row, name in zip(rows, names, strict=True):
        status = str(row.get("status", ""))
        text = f"{_figure(row.get('relative_error'))}, expected {_figure(row.get('expected'))}"
        if row.get("tflops") is not None:
            text += f", {float(row['tflops']):.0f} TFLOP/s"
        if row.get("share_of_peak_pct") is not None:
            text += f", {float(row['share_of_peak_pct']):.0f} % of dense peak"
        if row.get("emulated"):
            text += " (emulated: says nothing of a kernel)"
        lead = f"  {_WORDS.get(status, status):<{_LEAD}}{name:<{wide}}  "
        lines += _wrapped(text, lead)
    return [*lines, ""]


def _figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "not known"


def _whole(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def _wrapped(text: str, lead: str) -> list[str]:
    """The text on lines of WIDTH behind ``lead``; what comes from outside cannot act on a terminal."""
    flat = printable(" ".join(text.split()))
    lead = printable(lead)
    width = max(WIDTH - len(lead), 30)
    rows = textwrap.wrap(flat, width, break_on_hyphens=False) or [""]
    return [(lead if i == 0 else " " * len(lead)) + row for i, row in enumerate(rows)]
