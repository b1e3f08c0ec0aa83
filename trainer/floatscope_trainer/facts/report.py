"""What the command prints for a person."""

from __future__ import annotations

import math
import textwrap
from types import ModuleType

from floatscope_trainer.facts.document import machine
from floatscope_trainer.facts.fact import Figure, Measured, contradictions
from floatscope_trainer.facts.table import MODULES, fact_of
from floatscope_trainer.facts.text import text_of

WIDTH = 98
WORDS = {"true": "true", "partly": "only partly true", "false": "false"}


def list_text() -> str:
    """The claims, one line each."""
    width = max(len(fact_of(module).name) for module in MODULES)
    lines = ["Claims about FP8 that floatscope measures, and what its page says of each:", ""]
    for module in MODULES:
        fact = fact_of(module)
        head = f"  {fact.name:<{width}}  {fact.says:<6}  "
        lines.append(head + textwrap.shorten(text_of(module).title, WIDTH - len(head)))
    return "\n".join(
        [*lines, "", "floatscope facts NAME measures one of them here (docs/fp8/what-is-true.md)."]
    )


def measured_lines(found: Measured) -> list[str]:
    """The figures, and the verdict with the sentences it follows from."""
    width = max(len(figure.name) for figure in found.figures)
    lines = [
        f"  {figure.name:<{width}}  {number(figure):>10} {figure.unit}".rstrip() for figure in found.figures
    ]
    lines += ["", f"Verdict   {WORDS[found.verdict]}"]
    lines += _marks("claim", [(part.sentence, part.holds) for part in found.claimed])
    return lines + _marks("truth", [(part.sentence, part.holds) for part in found.true])


def fact_text(module: ModuleType, found: Measured, seconds: float) -> str:
    """One measurement: the claim, the figures, the verdict they give, what to do."""
    fact, text = fact_of(module), text_of(module)
    against = contradictions(fact, found)
    lines = [*_wrapped("Claim", text.claim), *_wrapped("Measured", text.method), "", *measured_lines(found)]
    lines += [
        "",
        *_wrapped("True is", text.truth),
        *_wrapped("Do", text.do),
        *_wrapped("Source", text.source),
    ]
    if found.note:
        lines += _wrapped("Note", found.note)
    if against:
        lines += ["", "This machine contradicts the page:"]
        for sentence in against:
            lines += textwrap.wrap(sentence, WIDTH, initial_indent="  ! ", subsequent_indent="    ")
    here = machine()
    lines += ["", f"torch {here['torch']}, Python {here['python']}, {here['processor']}; {seconds:.1f} s"]
    return "\n".join(lines)


def number(figure: Figure) -> str:
    """Three or four significant digits; whole numbers whole."""
    value = figure.value
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def _marks(kind: str, parts: list[tuple[str, bool]]) -> list[str]:
    out = []
    for sentence, holds in parts:
        head = f"  {kind}  {'holds' if holds else 'fails'}  "
        out += textwrap.wrap(sentence, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    return out


def _wrapped(label: str, body: str) -> list[str]:
    return textwrap.wrap(body, WIDTH, initial_indent=f"{label:<10}", subsequent_indent=" " * 10)
