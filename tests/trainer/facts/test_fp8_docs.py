"""The pages about FP8: each recipe has one, commands parse, snippets compile, facts are the command's."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from floatscope.preflight.cli import parser as preflight_parser
from floatscope.protocol.names import RECIPES
from floatscope_diagnostics.advisor.cli import parser as advise_parser
from floatscope_diagnostics.compare.cli import parser as compare_parser
from floatscope_diagnostics.plan.arguments import parser as plan_parser
from floatscope_diagnostics.whatif.cli import parser as what_if_parser
from floatscope_trainer.facts.cli import parser as facts_parser
from floatscope_trainer.facts.report import WORDS
from floatscope_trainer.facts.table import MODULES, fact_of, find
from floatscope_trainer.facts.text import HEADINGS, text_of
from floatscope_trainer.faults.injection import parse_injection
from floatscope_trainer.options import make_parser as train_parser

ROOT = Path(__file__).parents[3] / "docs/fp8"
PAGES = sorted(ROOT.rglob("*.md"))
FACTS = ROOT / "what-is-true.md"
HIGH_PRECISION = {"fp16_amp", "fp32", "custom"}  # no FP8 in them; bf16 has its page as the way back
SECTIONS = ("## When to use it", "## Settings", "## How it fails, and what floatscope shows", "## Try it")
PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "preflight": preflight_parser,
    "plan": plan_parser,
    "what-if": what_if_parser,
    "advise": advise_parser,
    "compare": compare_parser,
    "train": train_parser,
    "facts": facts_parser,
}


def commands(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^\$ floatscope (.+)$", text, re.M)
    found += [c for c in re.findall(r"`floatscope ([^`]+)`", text) if " " in c]
    if page == FACTS:  # the facts' own texts may name a command in words
        found = [c for c in found if c.startswith("facts")]
    return found


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - HIGH_PRECISION))
def test_every_recipe_has_its_page(recipe: str) -> None:
    text = (ROOT / "recipes" / f"{recipe}.md").read_text(encoding="utf-8")
    assert [section for section in SECTIONS if section not in text] == []
    assert f"recipes/{recipe}.md" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_parses(page: Path) -> None:
    shown = commands(page)
    assert shown
    for command in shown:
        name, *argv = shlex.split(command, comments=True)
        parsed = PARSERS[name]().parse_args(argv)
        for fault in getattr(parsed, "inject", []):
            assert parse_injection(fault)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_snippet_compiles(page: Path) -> None:
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        compile(snippet, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_page_repeats_what_is_false(page: Path) -> None:
    snippets = "".join(re.findall(r"```(?:python|bash)\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    wrong = ("interval=", "fp8-interval", "FusedAdamW", "Format.E5M2", 'torch_dtype="fp8"', "fp8_autocast")
    assert [word for word in wrong if word in snippets] == []


def test_the_facts_of_the_page_are_those_of_the_command() -> None:
    page = FACTS.read_text(encoding="utf-8")
    names = [fact_of(module).name for module in MODULES]
    assert re.findall(r"^## (.+)$", page, re.M) == names
    assert re.findall(r"^\$ floatscope facts ([a-z0-9-]+)$", page, re.M) == names
    for module in MODULES:
        text = text_of(module)
        section = page.split(f"\n## {fact_of(module).name}\n")[1].split("\n## ")[0]
        assert all(part in section for part in (text.claim, text.truth, text.method, text.do, text.source))
        assert f"Verdict   {WORDS[fact_of(module).says]}" in section


def test_facts_named_elsewhere_exist() -> None:
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`floatscope facts ([a-z0-9-]+)`", page.read_text(encoding="utf-8"))
    }
    assert named
    assert [name for name in named if find(name) is None] == []


def test_headings_of_facts_are_those_the_page_needs() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) == 5
