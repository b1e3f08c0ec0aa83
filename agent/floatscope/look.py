"""How closely one step is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Look:
    """What is measured of a step beside what is always on.

    is_sampled: statistics of all whole tensors.  suspects: layers that are measured in full, whether or not
    the step is sampled; a name is a layer as it stands in tensor names.  is_extra: sampled only because
    something is wrong, beside every n-th step; what is dear and the same a step later is left out.
    """

    is_sampled: bool = False
    suspects: frozenset[str] = field(default_factory=frozenset)
    is_extra: bool = field(default=False, compare=False)

    @property
    def is_idle(self) -> bool:
        """Whether no tensor has to be measured."""
        return not self.is_sampled and not self.suspects

    def wants(self, layer: str) -> bool:
        """Whether this layer's tensors are measured."""
        return self.is_sampled or layer in self.suspects


GLANCE = Look()
"""A step on which only what is always on is read."""

SAMPLE = Look(is_sampled=True)
"""A step on which all tensors are measured."""

EXTRA = Look(is_sampled=True, is_extra=True)
"""The same, beside the usual ones."""
