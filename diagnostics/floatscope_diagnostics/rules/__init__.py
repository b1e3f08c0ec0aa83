"""The rules, one file each, found by ``load_rules``; a file ends in one ``RULE``."""

from __future__ import annotations

import importlib
import pkgutil

from floatscope_diagnostics.rule import Rule


def load_rules() -> tuple[Rule, ...]:
    """Imports every file of this folder and returns its RULE, ordered by code.

    Raises ValueError for a reused code.
    """
    rules: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        rule: Rule = module.RULE
        if rule.code in rules:
            raise ValueError(f"two rules share the code {rule.code}: {rules[rule.code].name} and {rule.name}")
        rules[rule.code] = rule
    return tuple(rules[code] for code in sorted(rules))
