"""What is known about the run so far, shared by the training loop, the probes and the sender's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floatscope.protocol.runinfo import RunInfo


class Catalog:
    """Holds the newest RunInfo. A change makes a new object, so readers need no lock and see whole states."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._lock = threading.Lock()  # between writers only, and they write a few times in a run

    def info(self) -> RunInfo:
        """The newest description of the run."""
        return self._info

    def describe(
        self,
        *,
        recipe: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        vocab_size: int | None = None,
        preflight: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds to recipe and config what is not there yet, and the vocabulary's size if it is not known.

        preflight: replaces the one before.
        """
        with self._lock:
            info = self._info
            changed = replace(
                info,
                recipe={**(recipe or {}), **info.recipe},
                config={**(config or {}), **info.config},
                vocab_size=info.vocab_size if info.vocab_size is not None else vocab_size,
                preflight=info.preflight if preflight is None else preflight,
            )
            if changed != info:
                self._info = changed

    def describe_tensors(self, tensors: Mapping[str, Mapping[str, Any]], *, override: bool = False) -> None:
        """Adds tensors and what is known of them; ``override`` lets the new facts win over earlier ones."""
        with self._lock:
            merged = dict(self._info.tensors)
            for name, facts in tensors.items():
                known = merged.get(name, {})
                merged[name] = {**known, **facts} if override else {**facts, **known}
            if merged != self._info.tensors:
                self._info = replace(self._info, tensors=merged)
