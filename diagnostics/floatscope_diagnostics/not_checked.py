"""What could not be checked and why: a rule that could not look is not a rule that saw nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.columns import ROLE_CODES, Columns, not_understood
from floatscope_diagnostics.logged import Coverage
from floatscope_diagnostics.rule import Need, Rule, RunFacts

NOT_LOGGED = "not logged"
CAST_STATS = frozenset({"scale", "overflow_pct", "underflow_pct", "sqnr_db", "sat"})
UNCAST_FORMATS = ("bf16", "fp32")  # tensors that have none of CAST_STATS
RARE_BY_NATURE = ("eval_loss",)  # logged at the end of a stretch of steps
STANDS_FOR = {"output": "input"}  # what leaves a layer is seen where it enters the next


@dataclass(frozen=True)
class Gap:
    """A part of what a rule needs that is not there. roles: empty for a scalar.  every: only every so many-th
    step has it; 1 for one that is missing.
    """

    need: Need
    roles: tuple[str, ...]
    why: str
    every: int = 1

    @property
    def text(self) -> str:
        return f"*/{'|'.join(self.roles)} {self.need.signal}" if self.roles else self.need.signal


@dataclass(frozen=True)
class LogGaps:
    """Finds gaps. coverages: what each rank has logged, by rank."""

    coverages: Mapping[int, Coverage]
    columns: Columns

    @cached_property
    def _cast(self) -> NDArray[np.bool_]:
        """bool (S,), the tensors that are cast to a narrow format, or whose format is not known."""
        return np.array([fmt not in UNCAST_FORMATS for fmt in self.columns.fmt], bool)

    def of(self, need: Need) -> Iterator[Gap]:
        """What is missing of a need, on how many tensors and ranks, and what is there too seldom."""
        if not self.coverages:
            yield Gap(need, need.roles, NOT_LOGGED)
        elif need.roles:
            yield from self._stat(need)
        else:
            yield from self._scalar(need)

    def _scalar(self, need: Need) -> Iterator[Gap]:
        have = [r for r, c in self.coverages.items() if need.signal in c.scalars]
        if not have:
            yield Gap(need, (), NOT_LOGGED)
            return
        first = self.coverages[min(have)]
        yield from self._ranks(need, (), have)
        every = first.every(first.scalars[need.signal])
        if every > 1 and need.signal not in RARE_BY_NATURE:
            yield Gap(need, (), _seldom(every), every)

    def _stat(self, need: Need) -> Iterator[Gap]:
        columns, size = self.columns, len(self.columns)
        have = np.zeros(size, bool)
        for coverage in self.coverages.values():
            have |= coverage.has(need.signal, size)
        absent: list[str] = []
        present: list[str] = []
        for role in need.roles:
            of_role = columns.role == ROLE_CODES[role]
            (present if (have & of_role).any() else absent).append(role)
        absent = [role for role in absent if STANDS_FOR.get(role) not in present]
        if absent:
            yield Gap(need, tuple(absent), NOT_LOGGED)
        if not present:
            return
        asked = np.isin(columns.role, [ROLE_CODES[role] for role in present])
        if need.signal in CAST_STATS:
            asked &= self._cast
        total, missing = int(asked.sum()), int((asked & ~have).sum())
        if missing:
            yield Gap(need, tuple(present), f"missing on {missing:,} of {total:,} tensors")
        holders = [r for r, c in self.coverages.items() if c.has(need.signal, size).any()]
        yield from self._ranks(need, tuple(present), holders)
        first = self.coverages[min(holders)]
        every = first.every(first.stats[need.signal])
        if every > 1:
            yield Gap(need, tuple(present), _seldom(every), every)

    def _ranks(self, need: Need, roles: tuple[str, ...], have: list[int]) -> Iterator[Gap]:
        lacking = sorted(set(self.coverages) - set(have))
        if lacking:
            shown = ", ".join(str(r) for r in lacking[:4]) + (", ..." if len(lacking) > 4 else "")
            ranks = "rank" if len(lacking) == 1 else f"{len(lacking):,} ranks:"
            yield Gap(need, roles, f"not logged on {ranks} {shown}")


def unchecked(rules: tuple[Rule, ...], facts: RunFacts, gaps: LogGaps) -> tuple[dict[str, Any], ...]:
    """One entry per rule and reason: ``{"rule", "needs", "why"}``."""
    out: list[dict[str, Any]] = []
    found: dict[Need, tuple[Gap, ...]] = {}
    for rule in rules:
        by_reason: dict[str, list[str]] = {}
        for need in rule.needs:
            if need not in found:
                found[need] = tuple(gaps.of(need))
            for gap in found[need]:
                by_reason.setdefault(gap.why, []).append(gap.text)
        out += [{"rule": rule.code, "needs": needs, "why": why} for why, needs in by_reason.items()]
        if "scale_state_fault" in rule.causes:
            odd = not_understood(facts.recipe)
            out += [{"rule": rule.code, "needs": [field], "why": why} for field, why in odd.items()]
        if rule.needs_baseline and not facts.has_baseline:
            out.append(
                {
                    "rule": rule.code,
                    "needs": ["a baseline run, or scalar ref_loss"],
                    "why": "no baseline is set and ref_loss is not logged",
                }
            )
        if rule.needs_ranks and facts.ranks < 2:
            why = (
                f"only {facts.ranks} of {facts.world_size} ranks is logged"
                if facts.world_size > 1
                else "one rank only"
            )
            out.append({"rule": rule.code, "needs": ["the same scalars from two ranks or more"], "why": why})
    return tuple(out)


def _seldom(every: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(every % 10, "th") if every % 100 not in (11, 12, 13) else "th"
    return f"only every {every:,}{ending} step"
