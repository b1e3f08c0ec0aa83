"""The rules, one file each, found by ``load_rules``; a file ends in one ``RULE``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from floatscope_diagnostics.rule import Rule


def load_modules() -> Iterator[ModuleType]:
    """Imports every file of this folder."""
    for info in pkgutil.iter_modules(__path__):
        yield importlib.import_module(f"{__name__}.{info.name}")


def load_rules() -> tuple[Rule, ...]:
    """The RULE of every file of this folder, ordered by code.

    Raises ValueError for a reused code.
    """
    rules: dict[str, Rule] = {}
    for module in load_modules():
        rule: Rule = module.RULE
        if rule.code in rules:
            raise ValueError(f"two rules share the code {rule.code}: {rules[rule.code].name} and {rule.name}")
        rules[rule.code] = rule
    return tuple(rules[code] for code in sorted(rules))
