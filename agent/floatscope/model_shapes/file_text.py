"""The text of a configuration file and what it holds, with every way it can be unusable named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floatscope.model_shapes.shape import ModelConfigError

MOST_BYTES = 4 * 2**20
"""Of a configuration file; published ones are below 100 KiB."""
GIVE = "give a model's config.json, Megatron's arguments as YAML, JSON or a shell script, or a known name"


def text_of(path: Path) -> str:
    """The file's text.

    Raises:
        ModelConfigError: it cannot be read, is too large, or is no text.
    """
    if path.suffix in (".safetensors", ".pt", ".pth", ".bin", ".distcp", ".gguf"):
        raise ModelConfigError(f"{path}: these are weights, not a configuration; {GIVE}")
    try:
        if not path.is_file():
            raise ModelConfigError(f"{path}: not a regular file; {GIVE}")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be read: {error.strerror or error}; {GIVE}") from error
    if len(raw) > MOST_BYTES:
        raise ModelConfigError(f"{path}: larger than {MOST_BYTES:,} bytes, no configuration is; {GIVE}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelConfigError(f"{path}: not a text in UTF-8 (byte {error.start:,}); {GIVE}") from error
    if "\x00" in text:
        raise ModelConfigError(f"{path}: not a text: it has zero bytes; {GIVE}")
    if not text.strip():
        raise ModelConfigError(f"{path}: empty; {GIVE}")
    return text


def from_json(text: str, source: str) -> Mapping[str, Any]:
    """The object a JSON text holds.

    Raises:
        ModelConfigError: it is no JSON, or no object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelConfigError(f"{source}: line {error.lineno}: not JSON: {error.msg}; {GIVE}") from error
    except (ValueError, RecursionError) as error:
        why = "a number is too long" if isinstance(error, ValueError) else "it is nested too deeply"
        raise ModelConfigError(f"{source}: not JSON that can be read: {why}; {GIVE}") from error
    if not isinstance(value, Mapping):
        raise ModelConfigError(f"{source}: expected an object of fields at the top; {GIVE}")
    return value


def from_yaml(text: str, source: str) -> Mapping[str, Any]:
    """The mapping a YAML text holds. PyYAML is used if it is installed; the agent does not require it.

    Raises:
        ModelConfigError: it is no YAML, or no mapping, has merge keys, or PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ModelConfigError(
            f"{source}: reading YAML needs the package PyYAML, which is not installed here: install it, or "
            "give the same fields as JSON or as a command line"
        ) from error
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<":
                raise ModelConfigError(f"{source}: merge keys (<<) are not read; write the fields out")
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f"line {line + 1}: "
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise ModelConfigError(f"{source}: {where}not YAML: {problem}; {GIVE}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelConfigError(f"{source}: not YAML that can be read: {error}; {GIVE}") from error
    if not isinstance(value, Mapping):
        raise ModelConfigError(f"{source}: expected fields with values at the top; {GIVE}")
    return value
