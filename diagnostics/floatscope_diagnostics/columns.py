"""The tensors of a run as columns:

what is known about each (format, recipe, call order) as arrays over tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.protocol.formats import FORMATS
from floatscope.protocol.names import BACKWARD_ROLES, split_tensor
from floatscope.protocol.runinfo import RunInfo

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

ROLE_CODES = {"input": 0, "weight": 1, "output": 2, "grad_output": 3, "grad_input": 4, "grad_weight": 5}
UNSCALED_RECIPES = frozenset({"fp16_amp", "bf16", "fp32"})
_ACTIVATIONS = (ROLE_CODES["input"], ROLE_CODES["output"])
_GRADIENTS = (ROLE_CODES["grad_output"], ROLE_CODES["grad_input"])
# Scale rule a tensor's recipe declares; OPEN: not declared, or one the shadow scale has no formula for.
OPEN, DELAYED_MAX, DELAYED_RECENT, CURRENT = 0, 1, 2, 3
CURRENT_RECIPES = frozenset({"fp8_current_scaling", "ao_tensorwise"})
DEFAULT_HISTORY_PASSES = 1024  # Transformer Engine's DelayedScaling default
MOST_HISTORY_PASSES = 1 << 20
MOST_MARGIN_BITS = 64  # either way; FP8 has 18 binades, and 3 bits are a wide margin
_DIGITS = re.compile(r"(\d+)")
_BACKWARD = 1 << 40  # added to backward positions so that every forward tensor of a step comes first


class Columns:
    """Column index of every tensor seen, in order of arrival; columns are only added, never moved.

    Arrays of shape (S,): ``fmax`` largest finite value of the format (NaN unknown), ``role`` code of
    ROLE_CODES (-1 other), ``scaled`` the format carries a scale, ``rule`` one of OPEN.., ``history`` amax
    history length in passes, ``margin_log2``, ``position`` in the causal order of one step (forward
    ascending, then backward descending), ``place`` the same without gaps and with ties broken by name,
    ``backward``, ``activation`` an input or output, ``gradient`` the gradient of one.
    """

    def __init__(self, run: RunInfo) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.run = run
        self.version = (
            0  # grows whenever an array changes, so that detectors can keep what they derive from them
        )
        self._refresh()

    def __len__(self) -> int:
        return len(self.names)

    def add(self, names: Iterable[str]) -> bool:
        """Adds the names not seen before; True if there were any."""
        new = [n for n in names if n not in self.index]
        for name in new:
            self.index[name] = len(self.names)
            self.names.append(name)
        if new:
            self._refresh()
        return bool(new)

    def update_run(self, run: RunInfo) -> None:
        self.run = run
        self._refresh()

    def ordered(self, mask: Bool) -> list[int]:
        """Columns where mask (S,) is set, first cause first; equal positions by name."""
        found = np.flatnonzero(mask)
        order: list[int] = found[np.argsort(self.place[found])].tolist()
        return order

    def first(self, mask: Bool) -> int | None:
        order = self.ordered(mask)
        return order[0] if order else None

    def _refresh(self) -> None:
        self.version += 1
        size = len(self.names)
        table = self.run.tensors
        recipe = self.run.recipe
        self.fmax: Float64 = np.full(size, np.nan)
        self.eps: Float64 = np.full(size, np.nan)
        self.role: Int64 = np.full(size, -1, np.int64)
        self.scaled: Bool = np.zeros(size, bool)
        self.block: Bool = np.zeros(size, bool)
        self.rule: Int64 = np.zeros(size, np.int64)
        self.history: Int64 = np.ones(size, np.int64)
        self.margin_log2: Float64 = np.zeros(size)
        self.call_order: Int64 = np.zeros(size, np.int64)
        self.fmt: list[str | None] = [None] * size
        orders = _call_orders(self.names, table)
        for i, name in enumerate(self.names):
            layer, role = split_tensor(name)
            row = table.get(name, {})
            recipe_name = str(row.get("recipe") or recipe.get("name") or "")
            self.role[i] = ROLE_CODES.get(role, -1)
            self.call_order[i] = orders[layer]
            fmt = row.get("format") or _implied_format(recipe_name, role, recipe)
            if isinstance(fmt, str) and fmt in FORMATS:
                self.fmt[i] = fmt
                self.fmax[i] = FORMATS[fmt].max_finite
                self.eps[i] = FORMATS[fmt].eps
                self.scaled[i] = FORMATS[fmt].is_scaled and recipe_name not in UNSCALED_RECIPES
                self.block[i] = FORMATS[fmt].block_size is not None or "block" in recipe_name
            self._rule(i, recipe_name, recipe)
        self.backward: Bool = self.role >= ROLE_CODES["grad_output"]
        self.activation: Bool = np.isin(self.role, _ACTIVATIONS)
        self.gradient: Bool = np.isin(self.role, _GRADIENTS)
        last = int(self.call_order.max()) if size else 0
        forward = self.call_order * 3 + np.where(self.role >= 0, self.role % 3, 2)
        back = _BACKWARD + (last - self.call_order) * 3 + np.where(self.role >= 0, self.role % 3, 2)
        self.position: Int64 = np.where(self.backward, back, forward)
        by_name = sorted(range(size), key=self.names.__getitem__)
        order = np.array(by_name, np.int64)[np.argsort(self.position[by_name], kind="stable")]
        self.place: Int64 = np.empty(size, np.int64)
        self.place[order] = np.arange(size)

    def _rule(self, i: int, recipe_name: str, recipe: Mapping[str, Any]) -> None:
        if not self.scaled[i] or self.block[i]:
            return
        if recipe_name in CURRENT_RECIPES:
            self.rule[i] = CURRENT
        elif recipe_name == "fp8_delayed_scaling":
            algo = str(recipe.get("amax_compute_algo", "max"))
            length, margin = history_passes(recipe), margin_bits(recipe)
            if length is None or margin is None:
                return  # OPEN: a scale must not be held against numbers that were not understood
            self.margin_log2[i] = margin
            if algo == "max" and length > 1:
                self.rule[i] = DELAYED_MAX
                self.history[i] = length
            elif algo in ("max", "most_recent"):
                self.rule[i] = DELAYED_RECENT


def history_passes(recipe: Mapping[str, Any]) -> int | None:
    """The recipe's amax history, passes; None where it gives something that is none."""
    value = recipe.get("amax_history_len")
    value = DEFAULT_HISTORY_PASSES if value is None else value
    return int(value) if _is_number(value) and 1 <= value <= MOST_HISTORY_PASSES else None


def margin_bits(recipe: Mapping[str, Any]) -> float | None:
    """The recipe's margin, bits; None where it gives something that is none."""
    value = recipe.get("margin")
    value = 0 if value is None else value
    return float(value) if _is_number(value) and -MOST_MARGIN_BITS <= value <= MOST_MARGIN_BITS else None


def not_understood(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Field -> why, of what delayed scaling needs and cannot use: no scale can be recomputed."""
    out: dict[str, str] = {}
    if recipe.get("name") == "fp8_delayed_scaling":
        if history_passes(recipe) is None:
            out["recipe.amax_history_len"] = f"no number from 1 to {MOST_HISTORY_PASSES:,}"
        if margin_bits(recipe) is None:
            out["recipe.margin"] = f"no number from -{MOST_MARGIN_BITS} to {MOST_MARGIN_BITS}"
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _implied_format(recipe_name: str, role: str, recipe: Mapping[str, Any]) -> str | None:
    """The format a recipe gives a role when the table does not say:

    HYBRID is e4m3 forward and e5m2 backward.
    """
    if recipe_name in ("bf16", "fp32"):
        return recipe_name
    if recipe_name == "fp16_amp":
        return "fp16"
    if recipe_name in ("fp8_delayed_scaling", "fp8_current_scaling", "ao_tensorwise", "ao_rowwise"):
        hybrid = str(recipe.get("fp8_format", "HYBRID")).upper() == "HYBRID"
        return "e5m2" if role in BACKWARD_ROLES and hybrid and not recipe_name.startswith("ao_") else "e4m3"
    if recipe_name == "fp8_block_scaling":
        return "e4m3"
    if recipe_name == "mxfp8":
        return "mxfp8_e4m3"
    return None


def _call_orders(names: list[str], table: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Call order by layer:

    as declared, else the natural order of the names (``layers.2`` before ``layers.10``) after them.
    """
    declared: dict[str, int] = {}
    layers = {split_tensor(n)[0] for n in names}
    for name, row in table.items():
        order = row.get("call_order")
        if order is not None:
            layer = split_tensor(name)[0]
            declared[layer] = min(int(order), declared.get(layer, int(order)))
    rest = sorted((layer for layer in layers if layer not in declared), key=natural_key)
    start = max(declared.values(), default=-1) + 1
    return {**declared, **{layer: start + k for k, layer in enumerate(rest)}}


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which numbers inside a name compare as numbers."""
    parts = _DIGITS.split(name)
    return [(1, int(p), "") if p.isdigit() and len(p) < 19 else (0, 0, p) for p in parts]
