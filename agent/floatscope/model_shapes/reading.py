"""The shape of a model, from the file that describes it or from its published name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from floatscope.model_shapes import hugging_face, megatron
from floatscope.model_shapes.building import build
from floatscope.model_shapes.command_line import arguments_of
from floatscope.model_shapes.file_text import GIVE, from_json, from_yaml, text_of
from floatscope.model_shapes.shape import ModelConfigError, ModelShape

IN_A_FOLDER = ("config.json", "run_config.yaml", "model_config.yaml")
YAML = (".yaml", ".yml")


def read_model(path_or_name: str | Path) -> ModelShape:
    """The shape of the model that a file, a folder or a published name describes.

    Reads Hugging Face's ``config.json`` or a folder with one, Megatron's arguments as JSON, YAML, shell
    script or command line, Megatron-Bridge's ``run_config.yaml``, and the names of `published_names`. A file
    goes before a name.

    Raises:
        ModelConfigError: nothing there describes a model, or a field is missing or absurd.
    """
    given = str(path_or_name).strip()
    try:
        path = Path(given).expanduser()
        exists = bool(given) and path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a zero byte, no home
        raise ModelConfigError(f"{given[:80]!r}: not a path: {error}; {GIVE}") from error
    if exists:
        return _from_file(_in_folder(path) if path.is_dir() else path)
    if "--num-layers" in given:
        return from_arguments(arguments_of(given), source="the command line", name="model")
    return _published(given)


def published_names() -> tuple[str, ...]:
    """The names of models whose shapes are known without a file."""
    return tuple(_table()["models"])


def published_parameters(name: str) -> int:
    """Parameters of a published model as its publication counts them."""
    count: int = _table()["models"][name]["parameters"]
    return count


def from_fields(values: Mapping[str, Any], *, source: str, name: str) -> ModelShape:
    """The shape that fields of a file describe, Hugging Face's or Megatron's words.

    Raises:
        ModelConfigError: a field is missing or absurd.
    """
    for section in megatron.SECTIONS:
        inner = values.get(section)
        if isinstance(inner, Mapping) and "hidden_size" in (plain := _as_fields(inner)):
            return _named(plain, source=source, name=name, prefix=f"{section}.")
    return _named(_as_fields(values), source=source, name=name, prefix="")


def _as_fields(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options written as keys (``--num-layers: 32``, Megatron's model_config.yaml) as fields."""
    if not any(isinstance(key, str) and key.startswith("--") for key in values):
        return values
    return {str(key).removeprefix("--").replace("-", "_"): value for key, value in values.items()}


def from_arguments(values: Mapping[str, Any], *, source: str, name: str) -> ModelShape:
    """The shape that Megatron's arguments describe.

    Raises:
        ModelConfigError: one is missing or absurd.
    """
    return build(megatron.design_of(values, source=source, name=name))


def _named(values: Mapping[str, Any], *, source: str, name: str, prefix: str) -> ModelShape:
    if megatron.is_megatron(values):
        return build(megatron.design_of(values, source=source, name=name, prefix=prefix))
    return build(hugging_face.design_of(values, source=source, name=name))


def _from_file(path: Path) -> ModelShape:
    text, source = text_of(path), str(path)
    name = path.parent.name if path.name in IN_A_FOLDER else path.stem
    name = name or "model"
    if path.suffix in YAML:
        return from_fields(from_yaml(text, source), source=source, name=name)
    if path.suffix == ".json" or text.lstrip().startswith(("{", "[")):
        return from_fields(from_json(text, source), source=source, name=name)
    found = arguments_of(text)
    if not found:
        raise ModelConfigError(f"{source}: neither JSON nor options such as --num-layers 32; {GIVE}")
    return from_arguments(found, source=source, name=name)


def _in_folder(folder: Path) -> Path:
    for name in IN_A_FOLDER:
        if (folder / name).is_file():
            return folder / name
    raise ModelConfigError(f"{folder}: this folder has no {', '.join(IN_A_FOLDER)}; {GIVE}")


def _published(name: str) -> ModelShape:
    models = _table()["models"]
    entry = models.get(name.lower())
    if entry is None:
        near = difflib.get_close_matches(name.lower()[:80], models, n=3, cutoff=0.5)
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        known = ", ".join(models)
        raise ModelConfigError(f"{name[:80]!r}: no such file, and no known model.{meant} Known: {known}")
    source = f"{name.lower()}: {entry['source']}"
    return from_fields(entry["config"], source=source, name=name.lower())


@cache
def _table() -> Mapping[str, Any]:
    text = resources.files("floatscope.model_shapes").joinpath("tables/published.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table
