"""What a rule's file says of it, for pages and for the API: title, sections, and how grave it can be."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from floatscope_diagnostics.rule import FAMILY_OF, SEVERITIES, Need, Rule
from floatscope_diagnostics.rules import load_modules

HEADINGS = (
    "What it checks", "Why it matters", "How it decides", "What excludes it", "Known false positives",
    "What to do", "Source",
)  # fmt: skip
DOCS = "docs/rules"


@dataclass(frozen=True)
class RuleText:
    """title: without the code.  sections: by HEADINGS, each one paragraph.  severities: those its findings
    can have, the mildest first.
    """

    rule: Rule
    title: str
    sections: Mapping[str, str]
    severities: tuple[str, ...]

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(FAMILY_OF[cause] for cause in self.rule.causes))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it looks at, in words."""
        found = [in_words(need) for need in self.rule.needs]
        if self.rule.needs_baseline:
            found.append("a baseline run, or the scalar ref_loss")
        if self.rule.needs_ranks:
            found.append("two ranks or more")
        return tuple(found)

    @property
    def docs_path(self) -> str:
        return f"{DOCS}/{self.rule.code}.md"


@cache
def texts() -> tuple[RuleText, ...]:
    """All rules, by code; their files are read once in a process.

    Raises ValueError when a docstring lacks a heading.
    """
    return tuple(sorted((text_of(module) for module in load_modules()), key=lambda t: t.rule.code))


def text_of(module: ModuleType) -> RuleText:
    """What one rule's file says. Raises ValueError when its docstring lacks a heading."""
    rule: Rule = module.RULE
    title, _, body = (module.__doc__ or "").partition("\n")
    sections = _sections(body)
    missing = [h for h in HEADINGS if h not in sections]
    if missing:
        raise ValueError(f"{rule.name}: the docstring lacks {', '.join(missing)}")
    return RuleText(rule, title.removeprefix(f"{rule.code} ").rstrip("."), sections, _severities(module))


def in_words(need: Need) -> str:
    """A signal as people write it: ``*/input|weight amax``, or a scalar's name."""
    return f"*/{'|'.join(need.roles)} {need.signal}" if need.roles else need.signal


def _sections(body: str) -> dict[str, str]:
    found: dict[str, str] = {}
    parts = re.split(r"(?m)^(\S.*)$", body)
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        found[heading.strip()] = " ".join(text.split())
    return found


def _severities(module: ModuleType) -> tuple[str, ...]:
    """Whatever a ``severity`` in its source can be."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.keyword) and node.arg == "severity":
            found.update(_texts(node.value))
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            if any(getattr(t, "id", "") == "severity" for t in targets) and node.value is not None:
                found.update(_texts(node.value))
    return tuple(s for s in SEVERITIES if s in found)


def _texts(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
