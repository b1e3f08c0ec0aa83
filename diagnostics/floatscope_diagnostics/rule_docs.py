"""Writes the documentation pages of the rules from their docstrings.

Run: python -m floatscope_diagnostics.rule_docs FOLDER
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from floatscope_diagnostics.consequences import CONSEQUENCES
from floatscope_diagnostics.rule import FAMILY_OF, Remedy, Rule
from floatscope_diagnostics.rule_texts import HEADINGS, in_words, text_of
from floatscope_diagnostics.rules import load_modules
from floatscope_diagnostics.thresholds import Threshold

INDEX = "README.md"
WIDTH = 110
RUNS = {
    "FP8": "In FP8 runs",
    "PLAIN": "In runs without FP8",
    "ATTENTION": "Behind attention",
}  # which runs a remedy of this name is for
GENERATED = "<!-- written by floatscope_diagnostics.rule_docs from the rule's docstring; do not edit -->"


def pages() -> dict[str, str]:
    """File name -> text of every page, and the index."""
    out: dict[str, str] = {}
    rows: list[tuple[str, str, str]] = []
    for module in load_modules():
        rule: Rule = module.RULE
        out[f"{rule.code}.md"] = page(module)
        rows.append((rule.code, text_of(module).title, ", ".join(f"`{c}`" for c in rule.causes)))
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


def page(module: ModuleType) -> str:
    """One rule's page. Raises ValueError when a heading is missing."""
    rule: Rule = module.RULE
    text = text_of(module)
    lines = [GENERATED, f"# {rule.code} {text.title}", ""]
    for heading in HEADINGS:
        lines += [f"## {heading}", "", *_wrapped(text.sections[heading]), ""]
        if heading == "What to do":
            lines += [*_settings(module), *_tests(module)]
    lines += _thresholds(rule.thresholds)
    lines += ["## Signals", ""]
    lines += [f"- `{in_words(n)}`" for n in rule.needs]
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
    wrapped = [w for line in lines for w in (_wrapped(line) if _is_long(line) else [line])]
    return "\n".join(wrapped).rstrip() + "\n"


def _thresholds(known: tuple[Threshold, ...]) -> list[str]:
    """The numbers that may be moved for a project."""
    if not known:
        return ["## Thresholds", "", "None: it may be switched off or given another severity.", ""]
    rows = [
        f"| `{t.name}` | {t.default:,.10g} | {t.lowest:,.10g} to {t.highest:,.10g} | {t.unit} | {t.meaning} |"
        for t in known
    ]
    head = ["| name | default | may be | unit | what it does |", "|---|---|---|---|---|"]
    return [
        "## Thresholds",
        "",
        "What may be moved, for a project or with `floatscope diagnose --rules`:",
        "",
        *head,
        *rows,
        "",
    ]


def _settings(module: ModuleType) -> Iterator[str]:
    """What the rule's remedies set in which framework, each remedy under its text."""
    found = [(name, remedy) for name, remedy in _remedies(module) if remedy.settings]
    if found:
        yield from ("## Settings", "")
    for name, remedy in found:
        lead = f"{RUNS[name]}: " if name in RUNS else f"`{name}`: " if name.islower() else ""
        yield from (*_wrapped(lead + remedy.text), "")
        yield from (f"- {framework}: `{text}`" for framework, text in remedy.settings.items())
        yield ""


def _remedies(module: ModuleType) -> Iterator[tuple[str, Remedy]]:
    """Remedies by the name of their constant, or by kind where a constant holds one for each."""
    for name, value in vars(module).items():
        if isinstance(value, Remedy):
            yield name, value
        elif isinstance(value, dict):
            yield from ((str(k), v) for k, v in value.items() if isinstance(v, Remedy))
        elif inspect.isfunction(value) and _is_shared(value, module):
            yield from _remedies(importlib.import_module(value.__module__))


def _is_shared(function: FunctionType, module: ModuleType) -> bool:
    """Whether it makes the remedy of several rules, in a module of its own."""
    return function.__name__.endswith("_remedy") and function.__module__ != module.__name__


def _tests(module: ModuleType) -> Iterator[str]:
    """The decisive tests that the rule's findings carry, as its source has them."""
    texts: dict[str, None] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.keyword) and node.arg == "decisive_test":
            texts.update(dict.fromkeys(_sentences(node.value)))
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "").endswith("TESTS") for t in node.targets):
            texts.update(dict.fromkeys(_sentences(node.value)))
    if texts:
        yield from ("## Test that decides", "", *(f"- {text}" for text in texts), "")


def _sentences(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("."):
            yield node.value


def _is_long(line: str) -> bool:
    return len(line) > WIDTH and not line.startswith("|")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False)


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
