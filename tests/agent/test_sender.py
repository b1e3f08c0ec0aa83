"""The queue between the training loop and the sender's thread: bounded, and what is left out is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from floatscope import sender as sending
from floatscope.guard import Guard
from floatscope.probes.lanes import Lanes
from floatscope.probes.readout import Readout
from floatscope.rows import Row
from floatscope.sender import Sender


class Hanging:
    """An outlet whose disk does not answer until ``comes_back``."""

    def __init__(self) -> None:
        self.is_done = False
        self.hangs = threading.Event()
        self.comes_back = threading.Event()
        self.rows: list[Row] = []

    def accept(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)
        self.hangs.set()
        self.comes_back.wait(30)

    def work(self) -> float | None:
        return None

    def finish(self, status: str, reason: str | None) -> None:
        self.is_done = True

    def abort(self) -> None:
        self.comes_back.set()


def measured(step: int, values: int) -> Row:
    """A row with a reading of so many numbers that is still to be worked on."""
    readout, row = Readout(), Row(step, 0.0)
    readout.add(torch.full((values,), 2.0), lambda found, to: to.scalars.update(mean=float(np.mean(found))))
    readout.seal(Lanes()).deliver(row)
    return row


@pytest.mark.parametrize("by", ["rows", "bytes"])
def test_a_thread_that_hangs_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Neither many small rows nor few large ones; when it is free again the steps go on."""
    monkeypatch.setattr(
        sending, "INBOX_ROWS" if by == "rows" else "INBOX_BYTES", 50 if by == "rows" else 2**20
    )
    outlet = Hanging()
    sender = Sender([outlet], name="test", guard=Guard(strict=True))
    sender.start()
    sender.put(measured(0, 1))
    assert outlet.hangs.wait(30)
    for step in range(1, 201):
        sender.put(measured(step, 1 if by == "rows" else 8192))  # 64 kB each
    held = sum(row.nbytes for row in sender._inbox)
    assert 10 <= len(sender._inbox) <= 50
    assert held <= 2**20 + 2**17
    assert sender.dropped == 200 - len(sender._inbox)
    outlet.comes_back.set()
    while len(outlet.rows) <= 200 - sender.dropped:
        threading.Event().wait(0.01)
    sender.put(measured(201, 1))
    assert sender.close("finished", None, timeout_s=30)
    assert outlet.rows[-1].step == 201
    assert outlet.rows[-1].scalars == {"mean": 2.0, "agent_dropped_steps": float(sender.dropped)}
    assert all(row.scalars["mean"] == 2.0 and not row.late for row in outlet.rows)
