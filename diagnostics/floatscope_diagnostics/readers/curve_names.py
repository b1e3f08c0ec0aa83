"""What the curves of a tracker are called here."""

from __future__ import annotations

from collections.abc import Iterable

from floatscope.protocol.json_rows import RESERVED
from floatscope_diagnostics.readers.names import guess, mapping_note
from floatscope_diagnostics.readers.run_log import Tally


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
    if {"time", "eta_seconds", "data_time"} <= set(known):
        mapping["time"] = "step_time_s"
    taken = set(mapping.values())
    for name in known:
        if name not in mapping and (name in RESERVED or name in taken):
            mapping[name] = f"curve/{name}"
    return {theirs: ours for theirs, ours in mapping.items() if theirs != ours}
