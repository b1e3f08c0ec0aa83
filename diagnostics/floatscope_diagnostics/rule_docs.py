"""Writes the documentation pages of the rules from their docstrings.

Run: python -m floatscope_diagnostics.rule_docs FOLDER
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import textwrap
from pathlib import Path

from floatscope_diagnostics import rules as rule_package
from floatscope_diagnostics.consequences import CONSEQUENCES
from floatscope_diagnostics.rule import FAMILY_OF, Need, Rule

HEADINGS = (
    "What it checks", "Why it matters", "How it decides", "What excludes it", "Known false positives",
    "What to do", "Source",
)  # fmt: skip
INDEX = "README.md"
WIDTH = 110
GENERATED = "<!-- written by floatscope_diagnostics.rule_docs from the rule's docstring; do not edit -->"


def pages() -> dict[str, str]:
    """File name -> text of every page, and the index."""
    out: dict[str, str] = {}
    rows: list[tuple[str, str, str]] = []
    for info in pkgutil.iter_modules(rule_package.__path__):
        module = importlib.import_module(f"{rule_package.__name__}.{info.name}")
        rule: Rule = module.RULE
        out[f"{rule.code}.md"] = page(rule, module.__doc__ or "")
        title = (module.__doc__ or "").partition("\n")[0].removeprefix(f"{rule.code} ").rstrip(".")
        rows.append((rule.code, title, ", ".join(f"`{c}`" for c in rule.causes)))
    lines = [
        GENERATED,
        "# Rules",
        "",
        "Confidence is calibrated on emulated FP8 runs, not on GPUs; see the decisions folder.",
        "",
        "| code | rule | cause |",
        "|---|---|---|",
        *(f"| [{code}]({code}.md) | {title} | {causes} |" for code, title, causes in sorted(rows)),
    ]
    out[INDEX] = "\n".join(lines) + "\n"
    return out


def page(rule: Rule, doc: str) -> str:
    """One rule's page. Raises ValueError when a heading is missing."""
    title, _, body = doc.partition("\n")
    sections = _sections(body)
    missing = [h for h in HEADINGS if h not in sections]
    if missing:
        raise ValueError(f"{rule.name}: the docstring lacks {', '.join(missing)}")
    lines = [GENERATED, f"# {title.rstrip('.')}", ""]
    for heading in HEADINGS:
        lines += [f"## {heading}", "", *_wrapped(sections[heading]), ""]
    lines += ["## Signals", ""]
    lines += [f"- `{_need(n)}`" for n in rule.needs]
    if rule.needs_baseline:
        lines.append("- a baseline run, or the scalar `ref_loss`")
    if rule.needs_ranks:
        lines.append("- two ranks or more")
    lines += [
        "",
        "Without one of them the verdict says so in `not_checked`; the rule works with what is there.",
        "",
    ]
    for cause in rule.causes:
        lines += [f"## Cause `{cause}`, family `{FAMILY_OF[cause]}`", ""]
        later = sorted(CONSEQUENCES.get(cause, frozenset()) - {"undetermined", cause})
        before = sorted(c for c, effects in CONSEQUENCES.items() if cause in effects and c != cause)
        lines += [
            "Explains, when it came first: " + (", ".join(later) if later else "nothing") + ".",
            "",
            "Is explained by, when they came first: " + (", ".join(before) if before else "nothing") + ".",
            "",
        ]
    wrapped = [w for line in lines for w in (_wrapped(line) if len(line) > WIDTH else [line])]
    return "\n".join(wrapped).rstrip() + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _sections(body: str) -> dict[str, str]:
    found: dict[str, str] = {}
    parts = re.split(r"(?m)^(\S.*)$", body)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        found[heading.strip()] = " ".join(text.split())
    return found


def _need(need: Need) -> str:
    return f"*/{'|'.join(need.roles)} {need.signal}" if need.roles else need.signal


def main(argv: list[str]) -> int:
    """Writes the pages into the folder and removes pages of rules that are gone."""
    if len(argv) != 1:
        print("usage: python -m floatscope_diagnostics.rule_docs FOLDER", file=sys.stderr)  # noqa: T201
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
