"""Probes read numbers out of the training process.

Each is found by itself, costs nothing where it does not apply, and can be removed without trace. torch is
imported only inside these modules, and only if the process has it loaded already.
"""

from __future__ import annotations

from typing import Any, Protocol

from floatscope.rows import Row


class Pending(Protocol):
    """Readings of one step that a device may still be working on."""

    def is_ready(self) -> bool:
        """Whether ``deliver`` would not wait."""

    def deliver(self, row: Row) -> None:
        """Puts the readings into the row; those that have not arrived stay missing."""


class Nothing:
    """No readings."""

    def is_ready(self) -> bool:
        """Always."""
        return True

    def deliver(self, row: Row) -> None:
        """Nothing to add."""


class ProbeSet:
    """All probes of a monitor as one."""

    def begin(self, *, is_sampled: bool) -> None:
        """A step begins; on a sampled one whole tensors are measured."""

    def batch(self, batch: Any) -> None:
        """A batch is about to go into the model."""

    def read_later(self, name: str, tensor: Any) -> None:
        """Reads a one-element tensor of a device into the row's scalars, some steps later."""

    def has_readings(self) -> bool:
        """Whether the step under way has been measured in part."""
        return False

    def collect(self, row: Row) -> Pending:
        """Ends the step for all probes."""
        return Nothing()

    def remove(self) -> None:
        """Takes all probes out of the process."""
