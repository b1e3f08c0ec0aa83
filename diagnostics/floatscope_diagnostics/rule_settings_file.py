"""Reads settings of rules from a TOML or JSON file, for ``floatscope diagnose --rules FILE``.

For example:

    [FS411]
    severity = "critical"
    thresholds = {spike_nats = 1.5}

    [FS427]
    enabled = false
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from floatscope_diagnostics.rule_settings import RuleSettings, SettingsError, parse_settings
from floatscope_diagnostics.rules import load_rules

_toml: ModuleType | None
try:
    import tomllib as _toml
except ModuleNotFoundError:  # Python 3.10
    _toml = None

MAX_BYTES = 1 << 20


class RulesFileError(ValueError):
    """The file cannot be read, or sets what no rule has; the message says which."""


def read_settings(path: str) -> RuleSettings:
    """The settings in a file; its name ends in .toml or .json. Raises RulesFileError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RulesFileError(f"{path}: cannot be read: {why}") from error
    if len(content) > MAX_BYTES:
        raise RulesFileError(f"{path}: larger than 1 MiB; settings of rules are a few lines")
    try:
        return parse_settings(_tree(path, content), load_rules())
    except SettingsError as error:
        raise RulesFileError(f"{path}: {error}") from error


def _tree(path: str, content: bytes) -> Any:
    kind = Path(path).suffix.lower()
    if kind not in (".toml", ".json"):
        raise RulesFileError(f"{path}: expected a name that ends in .toml or .json")
    try:
        text = content.decode("utf-8")
        if kind == ".json":
            return json.loads(text)
        if _toml is None:
            raise RulesFileError(f"{path}: TOML needs Python 3.11; write the same as JSON")
        return _toml.loads(text)
    except RulesFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise RulesFileError(f"{path}: not {kind[1:].upper()}: {error}") from error
