"""Configurations whose usual fields do not describe the model: refused, for they would be read wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from floatscope.model_shapes.design import families
from floatscope.model_shapes.fields import Fields, shown
from floatscope.model_shapes.shape import ModelConfigError

INSTEAD = "give Megatron's arguments of a model like it, or the configuration of a known architecture"
MOST_LAYER_TYPES = 10_000


def refuse_unlike(fields: Fields, *, known: bool) -> None:
    """Call after the fields were read. known: whether the model_type is in the table of families.

    Raises:
        ModelConfigError: layers are not attention and MLP; or of an unknown model_type, there are experts
            that no field read describes, or the MLP may have two matrices or three.
    """
    table = families()["unlike"]
    kind = fields.values.get("model_type")
    if isinstance(kind, str) and kind in table["types"]:
        raise _refused(fields, "model_type", table["types"][kind])
    signs = [*table["any"], *([] if known else table["unknown_type"])]
    for name in _unread(fields):
        for sign in signs:
            if re.match(sign["field"], name):
                raise _refused(fields, name, sign["what"])
    _refuse_layer_types(fields)
    if not known:
        _refuse_activation(fields, table["gated_activations"])


def _unread(fields: Fields) -> Iterator[str]:
    """Fields that were not read and say that something is there: numbers above 1 and lists."""
    for name, value in fields.values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 1
        if name not in fields.used and (number or (isinstance(value, list) and value)):
            yield name


def _refuse_layer_types(fields: Fields) -> None:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or len(kinds) > MOST_LAYER_TYPES:
        raise fields.error("layer_types", "a list of names", shown(kinds))
    for kind in kinds:
        if not isinstance(kind, str) or not kind.endswith("attention") or kind.startswith("linear"):
            raise _refused(fields, "layer_types", f"layers of the kind {str(kind)[:40]!r}")


def _refuse_activation(fields: Fields, gated: list[str]) -> None:
    for name in ("hidden_act", "activation_function", "hidden_activation", "mlp_hidden_act"):
        act = fields.values.get(name)
        if isinstance(act, str) and act.lower() not in gated:
            what = f"activation {act[:40]!r}: whether the MLP has two matrices or three is not known"
            raise _refused(fields, name, what)


def _refused(fields: Fields, name: str, what: str) -> ModelConfigError:
    return ModelConfigError(
        f"{fields.source}: field {fields.prefix}{name}: such a model cannot be read ({what}); {INSTEAD}"
    )
