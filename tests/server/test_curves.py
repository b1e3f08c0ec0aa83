"""The short curve of the loss: every step of a short run, bins of a long one; gaps and NaN are kept."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import update

from floatscope.protocol.runinfo import RunInfo
from floatscope_server import curves, tables
from floatscope_server.app import create_app
from floatscope_server.database import Database
from floatscope_server.errors import Damaged
from floatscope_server.services import Services
from floatscope_server.settings import Settings
from floatscope_server.store import runs
from tests.server.samples import Scripted, body, ingest


def curve(
    settings: Settings, losses: list[tuple[int, Any]], *, points: int
) -> list[tuple[int, float | None]]:
    services: Services = create_app(settings, engines=Scripted(lambda _last: [])).state.services
    services.lifecycle.open("r", RunInfo())
    for seq, at in enumerate(range(0, len(losses), 4)):
        part = [
            {"step": step} | ({} if loss is None else {"loss": loss}) for step, loss in losses[at : at + 4]
        ]
        ingest(services, "r", seq, body(part))
    with services.database.read() as c:
        return curves.loss_curve(c, runs.get(c, "r").id, 0, points=points)


def test_a_short_run_shows_every_step(settings: Settings) -> None:
    assert curve(settings, [(0, 3.0), (1, None), (2, 1.0)], points=60) == [(0, 3.0), (2, 1.0)]


def test_stretches_with_a_gap_or_a_nan_show_it(settings: Settings) -> None:
    losses = [(step, float(step)) for step in range(40) if not 8 <= step < 16]
    losses[25] = (33, math.nan)
    losses[9] = (17, -math.inf)
    found = curve(settings, losses, points=12)
    assert [step for step, _ in found] == [0, 4, 8, 12, 16, 20, 24, 28, 32, 36]
    assert [value for _, value in found[:8]] == [3, 7, None, None, math.inf, 23, 27, 31]
    assert math.isnan(found[8][1] or 0.0)


def test_at_most_so_many_points_of_a_long_run(settings: Settings) -> None:
    found = curve(settings, [(step, float(step)) for step in range(80)], points=5)
    assert found == [(0, 15.0), (16, 31.0), (32, 47.0), (48, 63.0), (64, 79.0)]


def test_nothing_yet(settings: Settings) -> None:
    assert curve(settings, [], points=5) == []


def test_a_message_does_without_a_curve_that_cannot_be_read(settings: Settings) -> None:
    curve(settings, [(step, 1.0) for step in range(8)], points=5)
    database = Database(settings.database)
    with database.write() as c:
        c.execute(update(tables.block).values(data=b"\x07"))
    with database.read() as c:
        run = runs.get(c, "r").id
        assert curves.loss_curve_if_readable(c, run, 0, points=5) == []
        with pytest.raises(Damaged, match="scalars of rank 0 in batch 0"):
            curves.loss_curve(c, run, 0, points=5)
    database.close()
