"""What the keys of foreign JSON lines mean: names guessed key by key as they come, told once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatscope.protocol.names import MAX_SCALARS
from floatscope_diagnostics.readers.field_names import FieldNames
from floatscope_diagnostics.readers.names import ALIASES, guess, rivals
from floatscope_diagnostics.readers.numbers import to_float
from floatscope_diagnostics.readers.run_log import Tally
from floatscope_diagnostics.readers.table_rows import UNIX_SECONDS

MAX_DEPTH = 3
MAX_KEY_SETS = 256
MAX_NAMES = MAX_SCALARS  # of one input; a batch takes no more
_COUNTED = {"loss", "eval_loss", "grad_norm", "lr"}  # a row with one of them is one of a run


class KeyPlan:
    """Our names of the keys of one input. given: key -> our name, as the user asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)
        self._known: dict[tuple[str, ...], dict[str, str]] = {}
        self._decided: dict[str, str] = {}  # key -> our name, of every key that is kept
        self._names = FieldNames()
        self._taken: dict[str, str] = {ours: theirs for theirs, ours in given.items()}
        self._rivals = False
        self.counted = 0  # rows without a step so far
        self.told = Tally()  # takes what is noted while lines are tried out

    def row(self, value: dict[str, Any], tally: Tally) -> dict[str, Any]:
        """The object under our names, flat; one with ``tensors`` as it is. Fields whose names cannot be kept
        are left out."""
        if "tensors" in value:
            return self._with_tensors(value, tally)
        own = "step" in value
        if any(isinstance(v, dict) for v in value.values()):
            value = _flat(value)
        mapping = self._mapping(tuple(value), tally)
        row: dict[str, Any] = {}
        for key, v in value.items():
            ours = mapping.get(key)
            if ours is None:
                continue
            if not (own or ours == "rank") and isinstance(v, str) and not _spelled(v):
                continue
            if ours == "time" and not _is_clock(v):
                if v is None or isinstance(v, str):
                    continue
                ours = "curve/time"
            row.setdefault(ours, v)
        if "step" not in row and _COUNTED & set(row):
            tally.note("no step in the log: rows are counted")
            row["step"] = self.counted
            self.counted += 1
        return row

    def _with_tensors(self, value: dict[str, Any], tally: Tally) -> dict[str, Any]:
        usable, tensors = self._names.usable, value["tensors"]
        bad = [k for k in value if not usable(k)]
        bad_tensors = [t for t in tensors if not usable(t)] if isinstance(tensors, dict) else []
        if not bad and not bad_tensors:
            return value
        self._names.tell(tally)
        row = {k: v for k, v in value.items() if k not in bad}
        if bad_tensors:
            row["tensors"] = {t: v for t, v in tensors.items() if usable(t)}
        return row

    def _mapping(self, keys: tuple[str, ...], tally: Tally) -> dict[str, str]:
        """Our names of the keys that are kept, beside which there may be others."""
        known = self._known.get(keys)
        if known is not None:
            return known
        kept, new = self._kept(keys, tally)
        if not new and len(self._known) >= MAX_KEY_SETS:
            return self._decided  # each of our names belongs to one key, so this one serves any set of them
        self._rivals = self._rivals or self._has_rivals(kept, tally)
        mapping = {k: self._given.get(k, k) for k in kept}
        for theirs, ours in guess(k for k in kept if k not in self._given).items():
            if self._rivals and ours in ("loss", "eval_loss") and theirs != ours:
                continue
            if self._taken.setdefault(ours, theirs) == theirs:
                mapping[theirs] = ours
        for key in kept:  # another series may not slip under a name that is given away
            if key in ALIASES and mapping[key] == key and self._taken.get(key, key) != key:
                mapping[key] = f"curve/{key}"
        self._decided.update(mapping)
        if len(self._known) < MAX_KEY_SETS:
            self._known[keys] = mapping
        tally.mapping.update({k: v for k, v in mapping.items() if k != v})
        return mapping

    def _kept(self, keys: tuple[str, ...], tally: Tally) -> tuple[tuple[str, ...], bool]:
        """Those of the keys that can be kept, and whether one of them is new."""
        unknown = [k for k in keys if k not in self._decided]
        usable = [k for k in unknown if self._names.usable(k)]
        new = usable[: MAX_NAMES - len(self._decided)]
        if len(new) < len(unknown):
            self._names.tell(tally)
            if len(new) < len(usable):
                tally.note(f"more than {MAX_NAMES:,} names: the rest are left out")
            left = set(unknown).difference(new)
            keys = tuple(k for k in keys if k not in left)
        return keys, bool(new)

    def _has_rivals(self, keys: tuple[str, ...], tally: Tally) -> bool:
        why = rivals(keys)
        if why is None or "loss" in keys or "loss" in self._given.values():
            return False
        tally.note(why)
        return True


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Objects inside as ``outer/inner``."""
    out: dict[str, Any] = {}

    def walk(inside: Mapping[str, Any], path: str, depth: int) -> None:
        for key, v in inside.items():
            name = f"{path}{key}"
            if isinstance(v, dict):
                if depth < MAX_DEPTH:
                    walk(v, f"{name}/", depth + 1)
            elif name not in out:
                out[name] = v

    walk(value, "", 0)
    return out


def _spelled(text: str) -> bool:
    """Whether a text spells NaN or Inf."""
    number = to_float(text) if len(text) < 16 else None
    return number is not None and not math.isfinite(number)


def _is_clock(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and UNIX_SECONDS <= value < math.inf
