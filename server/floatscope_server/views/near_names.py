"""Names that look like one that is not there, for who mistyped it. Cheap enough for every such request: the
letters of two names are never matched one by one, three neighbours in both are counted.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection

from floatscope.protocol.names import split_tensor

NEAR = 5
MOST_COMPARED = 4_000  # names whose letters are looked at: those that begin alike
MOST_LETTERS = 200
LEAST_ALIKE = 0.25  # share of the groups of letters of either name that are in both


def near_names(name: str, names: Collection[str]) -> tuple[str, ...]:
    """The nearest names, best first: those that hold it or are in it, then those of like letters."""
    wanted = name.lower()
    holds = sorted(n for n in names if wanted and (wanted in n.lower() or n.lower() in wanted))
    if len(holds) >= NEAR:
        return tuple(holds[:NEAR])
    layer = split_tensor(name)[0]
    some = sorted(n for n in names if split_tensor(n)[0] == layer) or sorted(names)
    groups = _groups(wanted)
    at = max(0, bisect(some, name) - MOST_COMPARED // 2)
    alike = ((_shared(groups, _groups(n.lower())), n) for n in some[at : at + MOST_COMPARED])
    close = sorted((one for one in alike if one[0] >= LEAST_ALIKE), key=lambda one: (-one[0], one[1]))
    return tuple(dict.fromkeys([*holds, *(n for _share, n in close)]))[:NEAR]


def _groups(text: str) -> frozenset[str]:
    """Three neighbouring letters each, with the ends of the text as letters."""
    framed = f" {text[:MOST_LETTERS]} "
    return frozenset(framed[at : at + 3] for at in range(len(framed) - 2))


def _shared(own: frozenset[str], other: frozenset[str]) -> float:
    return len(own & other) / max(1, len(own | other))
