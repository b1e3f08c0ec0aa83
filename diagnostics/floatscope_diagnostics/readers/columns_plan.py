"""What the columns of a table mean: where each row stands, which scalars it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floatscope.protocol.names import MAX_SCALARS
from floatscope_diagnostics.readers.field_names import FieldNames
from floatscope_diagnostics.readers.names import (
    also_possible,
    exported,
    guess,
    normal,
    parts_of_loss,
    rivals,
)
from floatscope_diagnostics.readers.run_log import Tally, UnreadableLog

_RESERVED = ("step", "time", "rank", "segment", "tensors")
_NAMED = 30  # columns named in an error


@dataclass(frozen=True)
class Plan:
    """Places of columns.

    step, time, rank: the column, or None.  epoch: stands for the step where there is none.  scalars: our name
    -> columns, the first that has a value counts.  sums: our name -> columns that are added up.
    """

    step: int | None
    time: int | None
    rank: int | None
    epoch: int | None
    scalars: Mapping[str, Sequence[int]]
    sums: Mapping[str, Sequence[int]]


def plan_of(names: Sequence[str], given: Mapping[str, str], tally: Tally) -> Plan:
    """The plan for a header. given: column -> our name, as asked for by the user.

    What was guessed goes into the tally. Raises UnreadableLog if a given column does not exist.
    """
    unknown = [c for c in given if c not in names]
    if unknown:
        known = ", ".join(n[:60] for n in names[:_NAMED])
        raise UnreadableLog(f"has no column {unknown[0]!r}; its columns are: {known}")
    free = [n for n in names if n and n not in given]
    taken = set(given.values())
    charts, runs = exported(free)
    if len(runs) > 1:
        tally.note(f"columns of {len(runs):,} runs: only those of {runs[0]} are read (--map for another)")
    seen_as = {charts.get(n, n): n for n in free if n in charts or not _other_run(n, runs)}
    mapping = {seen_as[n]: ours for n, ours in guess(seen_as).items() if ours not in taken}
    why = rivals(seen_as)
    sums: dict[str, list[str]] = {}
    if why is not None and "loss" not in taken:
        tally.note(why)
        mapping = {c: ours for c, ours in mapping.items() if ours not in ("loss", "eval_loss")}
    else:
        taken |= set(mapping.values())
        sums = {ours: parts for ours, parts in parts_of_loss(seen_as).items() if ours not in taken}
        for ours, parts in sums.items():
            tally.note(f"{ours} is the sum of {', '.join(parts)}")
    for note in also_possible(seen_as, {n: mapping[c] for n, c in seen_as.items() if c in mapping}):
        tally.note(note)
    mapping = {**given, **mapping}
    tally.mapping.update({theirs: ours for theirs, ours in mapping.items() if theirs != ours})
    own = {c: n for n, c in seen_as.items()}
    return _plan(names, {**own, **mapping}, mapping, sums, tally)


def _other_run(name: str, runs: Sequence[str]) -> bool:
    return any(name.startswith(f"{run} - ") for run in runs)


def _plan(
    names: Sequence[str],
    called: Mapping[str, str],
    mapping: Mapping[str, str],
    sums: Mapping[str, Sequence[str]],
    tally: Tally,
) -> Plan:
    places: dict[str, int | None] = dict.fromkeys(("step", "time", "rank"))
    scalars: dict[str, list[int]] = {}
    epoch = None
    usable = FieldNames()
    for k, name in enumerate(names):
        ours = called.get(name)
        if ours is None:
            continue
        if ours in places and name in mapping:
            places[ours] = k if places[ours] is None else places[ours]
            continue
        if epoch is None and normal(name) in ("epoch", "epochs", "current_epoch"):
            epoch = k
        key = f"curve/{ours}" if ours in _RESERVED else ours
        if name not in mapping and key not in scalars and len(scalars) >= MAX_SCALARS - len(mapping):
            tally.note(f"only the first {MAX_SCALARS:,} columns are kept")
            continue
        if usable.usable(key):
            scalars.setdefault(key, []).append(k)
    usable.tell(tally)
    where = {name: k for k, name in enumerate(names)}
    added = {ours: [where[p] for p in parts] for ours, parts in sums.items()}
    return Plan(places["step"], places["time"], places["rank"], epoch, scalars, added)
