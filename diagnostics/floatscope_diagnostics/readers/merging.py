"""What is done with the finished columns of a run: series that were never logged, and the training loss that
only evaluations print."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from floatscope_diagnostics.readers.rows import Columns, Rows

NOT_LOGGED = ("grad_norm",)  # old Megatron versions print 0.000 for what they do not compute
ESTIMATE = "eval_train_loss"


def settled(rows: dict[int, Rows], note: list[str]) -> dict[int, Rows]:
    """The rows of all ranks with these two corrections; ``note`` takes a remark on each."""
    everything = [c for r in rows.values() for c in r.columns]
    drop: set[str] = set()
    for name in NOT_LOGGED:
        series = [c.values[name] for c in everything if name in c.values]
        if sum(map(len, series)) > 1 and not any(np.any(values) for values in series):
            drop.add(name)
            note.append(f"{name} is 0 on every line: not logged by this version, left out")
    names = {name for c in everything for name in c.values}
    rename = {ESTIMATE: "loss"} if ESTIMATE in names and "loss" not in names else {}
    if rename:
        note.append("the only training loss is the one estimated at evaluations: it is taken as loss")
    if not drop and not rename:
        return rows
    return {
        rank: replace(r, columns=[_changed(c, drop, rename) for c in r.columns]) for rank, r in rows.items()
    }


def _changed(columns: Columns, drop: set[str], rename: dict[str, str]) -> Columns:
    kept = {rename.get(name, name): v for name, v in columns.values.items() if name not in drop}
    return replace(columns, values=kept)
