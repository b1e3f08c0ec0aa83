"""Where each piece of a log stands: the step it prints, or a number made from epochs, batches or a count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from floatscope_diagnostics.readers.piece import EVAL, EVENT, TRAIN
from floatscope_diagnostics.readers.records import MAX_STEP
from floatscope_diagnostics.readers.table import NONE, Bool, Float64, Int64, Table

MAX_EPOCH = 2**31
ENOUGH = 0.2  # share of the pieces that must give a position for it to be the log's axis


@dataclass(frozen=True)
class Positions:
    """at: int64 [N], NONE where a piece gives no position.  lead: bool [N], pieces that carry the axis.

    axis: float64 [N], what restarts are seen in, NaN where unknown: the position, or the epoch where records
    are counted.  counted: positions are a count over the whole log, to begin anew with each run.
    how: how positions were made if they are not printed steps.
    """

    at: Int64
    lead: Bool
    axis: Float64
    counted: bool
    how: str | None


def positions(table: Table) -> Positions:
    """The axis of the log."""
    train, evals, events = table.of(TRAIN), table.of(EVAL), table.of(EVENT)
    leading = _leading(table)
    if _mostly(table.step, leading):
        assert table.step is not None
        at = np.where(train | evals | events, table.step, NONE)
        return _axis(at, leading & (at != NONE), None)
    if _mostly(table.batch, leading):
        at, how = _from_batches(table, leading)
        return _axis(at, leading & (at != NONE), how)
    found = _from_epochs(table, leading)
    crowded = found is not None and not leading[train].any() and events.sum() > found[1].sum()
    if found is not None and not crowded:
        at, lead = found
        return _axis(at, lead, "epochs are taken as steps: the log prints nothing finer")
    return _counted(table, leading)


def counted(table: Table, how: str) -> Positions:
    """A count of records, whatever they print. how: why."""
    return replace(_counted(table, _leading(table)), how=how)


def _leading(table: Table) -> Bool:
    """The pieces that may carry the axis: bool [N]."""
    train, evals, events = table.of(TRAIN), table.of(EVAL), table.of(EVENT)
    if train.any() and not (train & table.has("loss")).any():
        return train | evals  # a log of evaluations, with a learning rate or a speed now and then
    return train if train.any() else evals if evals.any() else events


def _mostly(column: Int64 | None, leading: Bool) -> bool:
    if column is None:
        return False
    return bool(((column != NONE) & leading).sum() >= max(1.0, ENOUGH * leading.sum()))


def _axis(at: Int64, lead: Bool, how: str | None) -> Positions:
    return Positions(at, lead, np.where(at == NONE, np.nan, at.astype(np.float64)), counted=False, how=how)


def _from_batches(table: Table, leading: Bool) -> tuple[Int64, str | None]:
    """epoch * batches + batch; the epochs' number of batches is learnt where it is not printed."""
    assert table.batch is not None
    given = table.batch != NONE
    at = np.where(given, table.batch, NONE)
    if table.epoch is None:
        return at, None
    has_epoch = given & ~np.isnan(table.epoch)
    lead = has_epoch & leading
    if not lead.any():
        return at, None
    epoch = _whole(table.epoch)
    first = min(1, int(epoch[lead].min()))
    size, learnt = _batches_an_epoch(table, lead, epoch)
    most = MAX_STEP // (int(epoch.max()) + 2)  # so that the product stays exact
    fits = has_epoch & (size < most)
    size = min(size, most)
    if _counts_through(table, lead, epoch):
        return at, None
    at = np.where(fits, (epoch - first) * size + table.batch, at)
    ends = table.of(EVAL) & ~given & ~np.isnan(table.epoch)  # an evaluation of an epoch comes at its end
    at = np.where(ends, (_whole(table.epoch) - first + 1) * size, at)
    if (epoch[lead] == first).all():
        return at, None
    how = f"steps are epochs of {size:,} batches" + (", as learnt from where they end" if learnt else "")
    return at, how


def _counts_through(table: Table, lead: Bool, epoch: Int64) -> bool:
    """Whether the batch number goes on rising where the epoch changes: it is a step then."""
    assert table.batch is not None
    batch, number = table.batch[lead], epoch[lead]
    change = np.flatnonzero(np.diff(number) == 1)
    return bool(len(change) and np.mean(batch[change + 1] > batch[change]) > 0.5)


def _batches_an_epoch(table: Table, lead: Bool, epoch: Int64) -> tuple[int, bool]:
    assert table.batch is not None
    batch = table.batch[lead]
    if table.batches is not None and (printed := table.batches[lead & (table.batches > 0)]).size:
        sizes, counts = np.unique(printed, return_counts=True)
        return max(int(sizes[counts.argmax()]), int(batch.max())), False
    size = int(batch.max())
    if batch.min() == 0:  # counted from zero: the last one printed is one interval before the end
        rising = np.diff(batch)
        rising = rising[rising > 0]
        size += int(np.median(rising)) if rising.size else 1
    return max(size, 1), True


def _from_epochs(table: Table, leading: Bool) -> tuple[Int64, Bool] | None:
    """Whole epochs as steps, if each has one record."""
    if table.epoch is None:
        return None
    lead = leading & (np.abs(table.epoch) < MAX_EPOCH)
    if lead.sum() < max(1.0, 0.5 * leading.sum()):
        return None
    epoch = table.epoch[lead]
    if (epoch != np.floor(epoch)).any():
        return None
    schema = table.schema[lead]
    common = np.bincount(schema).argmax()  # the record of an epoch; others may add to it
    mine = epoch[schema == common]
    repeated = np.count_nonzero(np.diff(mine) == 0)
    if repeated > len(mine) // 4:
        return None
    at = np.where(np.isnan(table.epoch), NONE, _whole(table.epoch))
    return np.where(lead | table.of(EVAL), at, NONE), lead


def _whole(epoch: Float64) -> Int64:
    return np.clip(np.nan_to_num(epoch), 0, MAX_EPOCH).astype(np.int64)


def _counted(table: Table, leading: Bool) -> Positions:
    """A count of records from 1. A record ends where one of its names comes again; events that do not fit
    on the next record get a number of their own."""
    number = np.zeros(len(table), np.int64)
    lead = np.zeros(len(table), bool)
    events = table.of(EVENT)
    used = np.flatnonzero(leading | events)
    schemas = table.schema[used].tolist()
    is_event = (events & ~leading)[used].tolist()
    names = [frozenset(s.names) for s in table.schemas]
    count = 0
    held: frozenset[str] | None = None
    out: list[int] = []
    starts: list[bool] = []
    for schema, event in zip(schemas, is_event, strict=True):
        if event:
            count += 1
            held = frozenset()  # the record that follows is of this event's step
        elif held is None or held & names[schema]:
            count += 1
            held = names[schema]
        else:
            held = held | names[schema]
        out.append(count)
        starts.append(not event)
    number[used] = out
    lead[used] = starts
    axis = np.full(len(table), np.nan) if table.epoch is None else np.where(lead, table.epoch, np.nan)
    what = "records" if not leading[events].any() else "loss scale and other events"
    return Positions(
        np.where(number > 0, number, NONE),
        lead,
        axis,
        counted=True,
        how=f"the log prints no step: {what} are counted",
    )
