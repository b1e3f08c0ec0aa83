"""Between the feature that Transformer Engine's debug API calls and the monitors of the process."""

from __future__ import annotations

import sys
from typing import Any, Protocol

FEATURE = "FloatscopeStats"
"""Name of the feature in a configuration of nvdlfw-inspect."""

TENSORS = ("activation", "weight", "gradient")
"""What the feature is asked about, in the package's words: what is cast."""


class Watcher(Protocol):
    """A monitor's interest in tensors."""

    def wants(self, name: str) -> bool:
        """Whether a layer, by its name in the debug API, is looked at in the step under way."""

    def see(self, name: str, kind: str, tensor: Any, quantised: Any, quantizer: Any) -> None:
        """One tensor before its cast, and after. kind: one of TENSORS."""


class Watchers:
    """The monitors that look; one object per registered feature."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def add(self, watcher: Watcher) -> None:
        """A monitor begins to watch."""
        self._watchers.append(watcher)

    def discard(self, watcher: Watcher) -> None:
        """It ends; a second call does nothing."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def answer(self, name: str) -> bool | tuple[bool, int | None]:
        """Whether the layer is inspected now.

        The second part, None, lets the layer run fused until a monitor has it asked again; versions before
        2.7 ask every time and take only a truth value.
        """
        wanted = any(watcher.wants(name) for watcher in tuple(self._watchers))
        return (wanted, None) if can_be_left_alone() else wanted

    def show(self, name: str, kind: str, tensor: Any, quantised: Any, quantizer: Any) -> None:
        """Passes a tensor on."""
        for watcher in tuple(self._watchers):
            watcher.see(name, kind, tensor, quantised, quantizer)


def can_be_left_alone() -> bool:
    """Whether this version asks a layer again only when its feature said it should."""
    utils = sys.modules.get("transformer_engine.debug.pytorch.utils")
    return hasattr(utils, "next_iter_when_debug_should_be_run")


def feature_watchers() -> Watchers | None:
    """The watchers of the registered feature; None if nvdlfw-inspect has not loaded it."""
    registry = getattr(sys.modules.get("nvdlfw_inspect.registry"), "Registry", None)
    space = getattr(registry, "data", {}).get("transformer_engine")
    feature = getattr(space, "features", {}).get(FEATURE)
    found = getattr(feature, "watchers", None)
    return found if isinstance(found, Watchers) else None


def debug_manager() -> Any:
    """nvdlfw-inspect's manager, None if the process has not initialised it."""
    return getattr(sys.modules.get("nvdlfw_inspect.api"), "DEBUG_MANAGER", None)


def is_debug_on() -> bool:
    """Whether Transformer Engine's modules ask the debug API; decided when the first of them is built."""
    state = getattr(sys.modules.get("transformer_engine.debug.pytorch.debug_state"), "TEDebugState", None)
    return bool(getattr(state, "debug_enabled", None))
