"""What the curves of a tracker are called here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from floatscope.protocol.json_rows import RESERVED
from floatscope_diagnostics.readers.names import also_possible, guess, rivals
from floatscope_diagnostics.readers.run_log import Tally, UnreadableLog

_HELD_OUT = re.compile(r"(?<![a-z])(?:val|valid|validation|eval|test|dev)(?![a-z])", re.I)
_LOSS = re.compile(r"loss(?![a-z])", re.I)


def curve_names(names: Iterable[str], tally: Tally, given: Mapping[str, str]) -> dict[str, str]:
    """Our name of each curve that gets another one, also put into ``tally.mapping``. given: the user's.

    A curve called like the place of a row (step, time, rank) is a curve all the same and gets ``curve/`` in
    front, but detectron2's ``time`` is seconds an iteration. Raises UnreadableLog if the user names a curve
    that is not there.
    """
    known = sorted(names)
    missing = [n for n in given if n not in known]
    if missing:
        raise UnreadableLog(f"has no curve {missing[0]!r}; it has {', '.join(known[:40])}")
    taken = set(given.values())
    guessed = guess(known)
    mapping = {n: our for n, our in guessed.items() if our not in RESERVED | taken and n not in given}
    rival = rivals(known)
    if rival is not None and "loss" not in taken:
        tally.note(rival)
        mapping = {n: our for n, our in mapping.items() if our not in ("loss", "eval_loss")}
        mapping |= {n: f"curve/{n}" for n in ("loss", "eval_loss") if n in known}
    mapping |= given
    if rival is None and "loss" not in mapping.values():
        mapping |= _only_loss([n for n in known if n not in mapping], tally)
    for note in also_possible(known, mapping):
        tally.note(note)
    if {"time", "eta_seconds", "data_time"} <= set(known):
        mapping["time"] = "step_time_s"
    taken = set(mapping.values())
    for name in known:
        if name not in mapping and (name in RESERVED or name in taken):
            mapping[name] = f"curve/{name}"
    mapping = {theirs: ours for theirs, ours in mapping.items() if theirs != ours}
    tally.mapping.update(mapping)
    return mapping


def _only_loss(names: list[str], tally: Tally) -> dict[str, str]:
    """The curve that is called a training loss, if there is only one."""
    losses = [n for n in names if _LOSS.search(n) and not _HELD_OUT.search(n)]
    if len(losses) > 1:
        tally.note("several losses and no total: kept by their names, not judged as one that should fall")
    return {losses[0]: "loss"} if len(losses) == 1 else {}
