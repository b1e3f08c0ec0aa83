"""Takes whatever a training loop hands in as numbers, and refuses the rest once, with a sentence."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from floatscope.guard import Guard
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.json_rows import RESERVED
from floatscope.protocol.names import MAX_SCALARS, check_name

MOST_NAMES = MAX_SCALARS // 2  # leaves room for the agent's own and for other ranks' names
MOST_DEPTH = 8  # of dicts in dicts

ReadLater = Callable[[str, Any], None]
"""Takes the name and the one-element tensor of a scalar that lives on a device."""


class ScalarIntake:
    """Turns name -> value into name -> float. A refused name or value is reported once and left out.

    None is missing; NaN and Inf stay what they are; booleans are 1 and 0; dicts inside are ``outer/inner``.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._taking = guard.area("recording a scalar", loses="this scalar")
        self._accepted: set[str] = set()
        self._refused: set[object] = set()

    def take(
        self,
        values: Mapping[Any, Any],
        into: dict[str, float],
        read_later: ReadLater,
        *,
        outer: str = "",
        depth: int = MOST_DEPTH,
    ) -> None:
        """Adds the values to ``into``; a tensor on a device goes to ``read_later``, nothing waits for it."""
        for name, value in values.items():
            if outer and isinstance(name, str):
                name = outer + name
            if type(value) is float and name in self._accepted:
                into[name] = value
            elif ("failed", name) not in self._refused:
                is_taken = False
                with self._taking:  # what one value raises does not cost the others
                    self._take_one(name, value, into, read_later, depth)
                    is_taken = True
                if not is_taken:
                    self._refused.add(("failed", name))

    def _take_one(
        self, name: Any, value: Any, into: dict[str, float], read_later: ReadLater, depth: int
    ) -> None:
        if isinstance(value, Mapping) and isinstance(name, str) and depth > 0:
            self.take(value, into, read_later, outer=f"{name}/", depth=depth - 1)
            return
        if value is None or (name not in self._accepted and not self._accepts(name)):
            return
        number = _number(value)
        if number is not None:
            into[name] = number
        elif _is_tensor(value):
            self._take_tensor(name, value, into, read_later)
        else:
            kind = type(value).__name__
            self._refuse(("value", name), f"{name} is a {kind}, not a number; it is not recorded.")

    def _take_tensor(self, name: str, value: Any, into: dict[str, float], read_later: ReadLater) -> None:
        torch = sys.modules["torch"]
        with torch._C.DisableTorchFunctionSubclass():
            self._take_plain(name, value.detach(), into, read_later)

    def _take_plain(self, name: str, tensor: Any, into: dict[str, float], read_later: ReadLater) -> None:
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if tensor.numel() != 1 or tensor.is_complex() or tensor.device.type == "meta":
            self._refuse(
                ("value", name),
                f"{name} is a tensor of shape {tuple(tensor.shape)} ({tensor.dtype}, {tensor.device.type}), "
                "not one real number; it is not recorded.",
            )
        elif tensor.device.type == "cpu":
            into[name] = float(tensor)
        else:
            read_later(name, tensor)

    def _accepts(self, name: object) -> bool:
        if name in self._refused:
            return False
        try:
            checked = check_name(name, field="scalar")
        except ProtocolError as error:
            return self._refuse(name, f"{error}; it is not recorded.")
        if checked in RESERVED:
            return self._refuse(name, f"{checked!r} cannot be the name of a scalar; it is not recorded.")
        if len(self._accepted) >= MOST_NAMES:
            self._guard.say_once(
                "scalar names", f"more than {MOST_NAMES:,} different scalars; further ones are not recorded."
            )
            return False
        self._accepted.add(checked)
        return True

    def _refuse(self, key: object, text: str) -> bool:
        if key not in self._refused and len(self._refused) < MOST_NAMES:
            self._refused.add(key)
            self._guard.say(text)
        return False


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0] if value.size == 1 else None
    if isinstance(value, bool | np.bool_ | numbers.Real):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return None
    return None


def whole_number(value: object) -> int:
    """A step's number given as a number or as a one-element tensor on the host; -1 for anything else."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if not _is_tensor(value):
        return -1
    tensor: Any = value
    is_whole = tensor.numel() == 1 and not tensor.is_floating_point() and not tensor.is_complex()
    return int(tensor) if is_whole and tensor.device.type == "cpu" else -1


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
