"""Which of the model's layers a name of Transformer Engine's debug API means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, eq=False)
class Owner:
    """One GEMM of one module. layer: its name in tensor names."""

    module: Any
    layer: str


class DebugNames:
    """Names in the debug API (``module.name``, and what the package adds per GEMM) to layers.

    Names may be given late: modules without one get ``Layer_<n>`` in their first forward pass, and
    ``infer_and_assign_layer_names`` changes them at any time. So they are looked up again.
    """

    def __init__(self, layers: Mapping[nn.Module, str], *, expert_rank: int = 0) -> None:
        self._layers = layers
        self._expert_rank = expert_rank
        self._owners: dict[str, list[Owner]] = {}
        self._is_complete = False
        self._is_again = False

    @property
    def owners(self) -> Iterator[Owner]:
        """Every GEMM of every named module."""
        for found in self._owners.values():
            yield from found

    def look_up(self) -> None:
        """Reads the names anew."""
        self._owners = {}
        self._is_complete, self._is_again = True, False
        for module, layer in self._layers.items():
            name = getattr(module, "name", None)
            if not isinstance(name, str):
                self._is_complete = False
                continue
            for added, part in _parts(module, expert_rank=self._expert_rank):
                self._owners.setdefault(name + added, []).append(Owner(module, layer + part))

    def find(self, name: str) -> list[Owner]:
        """GEMMs of that name; more than one only where names are not unique.

        An unknown name has them read anew, once after each ``look_up`` from outside, and every time while a
        module has none yet.
        """
        found = self._owners.get(name)
        if found is None and not (self._is_complete and self._is_again):
            self.look_up()
            self._is_again = True
            found = self._owners.get(name)
        return found or []

    def owner(self, name: str, quantizer: Any) -> Owner | None:
        """The GEMM that casts with ``quantizer``; None if the name is not the model's, or not unique."""
        found = self.find(name)
        if len(found) == 1 and (quantizer is None or not _has_quantizers(found[0].module)):
            return found[0]
        for owner in found:
            if _casts_with(owner.module, quantizer):
                return owner
        return None


def _parts(module: Any, *, expert_rank: int) -> list[tuple[str, str]]:
    """What the package adds to the module's name per GEMM, and what tensor names add."""
    kind = type(module).__name__
    if kind == "GroupedLinear":
        count = int(getattr(module, "num_gemms", 1))
        return [(f".gemm_{i}", f".experts.{expert_rank * count + i}") for i in range(count)]
    if kind == "LayerNormMLP":
        return [(".fc1", ".fc1"), (".fc2", ".fc2")]
    return [("", "")]


def _has_quantizers(module: Any) -> bool:
    kept = getattr(module, "quantizers", None)
    return isinstance(kept, dict) and any(kept.values())


def _casts_with(module: Any, quantizer: Any) -> bool:
    kept = getattr(module, "quantizers", None)
    lists = kept.values() if isinstance(kept, dict) else ()
    return any(quantizer is known for known_list in lists if known_list for known in known_list)
