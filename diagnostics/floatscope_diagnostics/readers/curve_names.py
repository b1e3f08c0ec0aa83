"""What the curves of a tracker are called here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope.protocol.json_rows import RESERVED
from floatscope_diagnostics.readers.names import guess, mapping_note
from floatscope_diagnostics.readers.run_log import Tally

_ADVERSARIES = re.compile(
    r"discriminator|generator|critic|(?<![a-z])actor|(?<![a-z])[dg]_?loss|loss_?[dg](?![a-z])", re.I
)
_HELD_OUT = re.compile(r"(?<![a-z])(?:val|valid|validation|eval|test|dev)(?![a-z])", re.I)
_LOSS = re.compile(r"loss(?![a-z])", re.I)


def curve_names(names: Iterable[str], tally: Tally) -> dict[str, str]:
    """Our name of each curve that gets another one; what was guessed is noted.

    A curve called like the place of a row (step, time, rank) is a curve all the same and gets ``curve/`` in
    front, but detectron2's ``time`` is seconds an iteration.
    """
    known = sorted(names)
    mapping = {theirs: ours for theirs, ours in guess(known).items() if ours not in RESERVED}
    note = mapping_note(mapping)
    if note:
        tally.note(note)
    if "loss" not in mapping.values():
        mapping |= _only_loss([n for n in known if n not in mapping], tally)
    if {"time", "eta_seconds", "data_time"} <= set(known):
        mapping["time"] = "step_time_s"
    taken = set(mapping.values())
    for name in known:
        if name not in mapping and (name in RESERVED or name in taken):
            mapping[name] = f"curve/{name}"
    return {theirs: ours for theirs, ours in mapping.items() if theirs != ours}


def _only_loss(names: list[str], tally: Tally) -> dict[str, str]:
    """The one curve that is called a training loss, if it is not one of two that play against each other."""
    losses = [n for n in names if _LOSS.search(n) and not _HELD_OUT.search(n)]
    if any(_ADVERSARIES.search(n) for n in losses):
        tally.note(
            "losses that play against each other (a GAN, actor and critic): not judged as a falling loss"
        )
        return {}
    if len(losses) > 1:
        tally.note("several losses and no total: kept by their names, not judged as one that should fall")
    if len(losses) != 1:
        return {}
    tally.note(f"read as loss: {losses[0][:80]}")
    return {losses[0]: "loss"}
