"""Writes the page of the facts from their docstrings and from measuring them here.

Run: python -m floatscope_trainer.facts.page docs/fp8/what-is-true.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from floatscope_trainer.facts.document import machine
from floatscope_trainer.facts.fact import Measured, contradictions
from floatscope_trainer.facts.report import WORDS, measured_lines
from floatscope_trainer.facts.table import MODULES, fact_of
from floatscope_trainer.facts.text import text_of

GENERATED = "<!-- written by floatscope_trainer.facts.page from the facts' docstrings; do not edit -->"
ABOUT = """# FP8, what is true

Much that is said about training in FP8 is wrong, or was true of a version long gone. Here are {count}
claims, what is true instead, and for each one command that measures it on your machine: no GPU needed, most
take under 3 seconds.

```console
$ floatscope facts                  # the claims
$ floatscope facts scale-direction  # measure one; --json for one document
$ floatscope facts --all            # measure all
```

The verdict is computed from the figures just measured: *true* if all parts of the claim hold, *false* if none
does, else *only partly true*. Where the figures of your machine contradict this page, the command says so and
exits with 1. Below are the figures and verdicts of torch {torch} on {processor}, one thread; the command
prints the texts too. The casts are torch's own float8 casts and the runs are those of the small bundled
trainer: what a GPU's kernels do is for [`floatscope preflight`](../preflight.md) to try. The recipes have
[pages of their own](README.md).
"""


def page(measure: Callable[[ModuleType], Measured]) -> str:
    """The page. Raises ValueError where a measurement contradicts what it would say."""
    here = machine()
    parts = [GENERATED, ABOUT.format(count=len(MODULES), torch=here["torch"], processor=here["processor"])]
    parts.append("| claim | verdict |\n|---|---|")
    for module in MODULES:
        name = fact_of(module).name
        parts[-1] += f"\n| [{text_of(module).title}](#{name}) | {WORDS[fact_of(module).says]} |"
    for module in MODULES:
        fact, found = fact_of(module), measure(module)
        against = contradictions(fact, found)
        if against:
            raise ValueError(f"{fact.name}: {'; '.join(against)}")
        parts.append(section(module, found))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def section(module: ModuleType, found: Measured) -> str:
    """One claim."""
    fact, text = fact_of(module), text_of(module)
    shown = "\n".join(measured_lines(found))
    paragraphs = [
        f"## {fact.name}",
        f"*People say:* {text.claim}",
        f"*True is:* {text.truth}",
        f"*Measured:* {text.method}",
        f"```console\n$ floatscope facts {fact.name}\n{shown}\n```",
        f"*Do:* {text.do}",
        f"*Source:* {text.source}",
    ]
    return "\n\n".join(paragraphs)


def main(argv: list[str]) -> int:
    """Measures everything and writes the file named."""
    if len(argv) != 1:
        print("usage: python -m floatscope_trainer.facts.page FILE", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    Path(argv[0]).write_text(page(lambda module: fact_of(module).measure()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
