"""How long a server is waited for: a run whose server never answers is not held up at its end, one whose
server is there gets the time that was asked for; what is said on the way, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatscope.client import Answer
from floatscope.courier import Outcome, Request
from floatscope.delivery import GIVE_UP_S
from floatscope.outbox import TRY_AGAIN_S
from floatscope.patience import AWAY_S, SILENT_S
from floatscope.spool import Spool
from tests.agent.test_delivery import Bench, row


class Silent:
    """A courier whose requests are under way for ever."""

    def __init__(self) -> None:
        self.is_aborted = False

    def send(self, request: Request) -> None:
        return None

    def outcome(self) -> Outcome | None:
        return None

    def rest(self) -> None:
        return None

    def abort(self) -> None:
        self.is_aborted = True


def ended_after(bench: Bench, *, most_s: float = 60.0) -> float | None:
    """Seconds from the end of the run until nothing more is tried; None if that takes longer."""
    bench.delivery.finish("finished", None)
    began = bench.now
    while bench.now - began < most_s:
        bench.now += min(bench.delivery.work() or 0.2, 0.2)  # the sender looks five times a second
        if bench.delivery.is_done:
            return bench.now - began
    return None


def train(bench: Bench, *, seconds: float) -> None:
    for step in range(int(seconds * 5)):
        bench.delivery.accept([row(step)])
        bench.delivery.work()
        bench.now += 0.2


@pytest.mark.parametrize("mishap", ["request lost", "error before"])
def test_a_server_that_was_never_there_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mishap: str
) -> None:
    """Refused, or a proxy that answers for it: a second, and one line with the reason and what to do."""
    bench = Bench(spool=tmp_path / "r" / "s", gives_up=True)
    bench.wire.script = [mishap] * 1000
    train(bench, seconds=4)
    took = ended_after(bench)
    assert took is not None
    assert took <= GIVE_UP_S + 0.5
    (line,) = [r.getMessage() for r in caplog.records if "resend" in r.getMessage()]
    assert "20 steps could not be delivered (" in line
    assert {"request lost": "no route", "error before": "500"}[mishap] in line
    left = Spool.open(tmp_path / "r" / "s", limit_bytes=2**30)
    assert left.steps == 20
    left.close()


def test_a_server_that_hangs_is_told_once_and_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where not one request comes to an end: said after some seconds, and again why at the end."""
    courier = Silent()
    bench = Bench(spool=tmp_path / "r" / "s", gives_up=True, courier=courier)
    train(bench, seconds=8)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "the server has not answered for 3 s" in said[0]
    assert f"kept in {tmp_path / 'r' / 's'}" in said[0]
    took = ended_after(bench)
    assert took is not None
    assert took <= GIVE_UP_S + 0.5
    assert courier.is_aborted
    assert "40 steps could not be delivered (the server has not answered for 9 s)" in caplog.text


def test_a_short_run_gives_a_slow_server_some_seconds(tmp_path: Path) -> None:
    """A request that has only just gone out is no sign that nobody is there."""
    bench = Bench(spool=tmp_path / "r" / "s", gives_up=True, courier=Silent())
    train(bench, seconds=0.4)
    took = ended_after(bench)
    assert took is not None
    assert SILENT_S - 1.0 < took <= SILENT_S + 0.5


def test_a_server_that_was_there_is_waited_for(tmp_path: Path) -> None:
    """It may be starting again: it is away only after a while."""
    bench = Bench(spool=tmp_path / "r" / "s", gives_up=True)
    train(bench, seconds=2)
    bench.wire.script = ["request lost"] * 1000
    bench.delivery.accept([row(100)])
    assert ended_after(bench, most_s=AWAY_S - 1.0) is None
    bench.wire.script = []
    bench.now += 30.0
    bench.delivery.work()
    bench.work()
    assert bench.delivery.is_done
    assert not (tmp_path / "r" / "s").exists()


def test_steps_that_are_only_in_memory_are_not_given_up_early() -> None:
    """Without a spool they would be lost: the whole of close_timeout_s is theirs."""
    bench = Bench(gives_up=True)
    bench.wire.script = ["request lost"] * 1000
    train(bench, seconds=4)
    assert ended_after(bench) is None


def test_a_disk_that_refuses_is_not_named_as_the_place_where_steps_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server away too, both lines say memory; once the disk takes them, the spool is named."""
    bench = Bench(spool=tmp_path / "s", gives_up=True)
    bench.wire.script = ["request lost"] * 1000

    def refuse(*args: object, **given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "append", refuse)
        train(bench, seconds=4)
    assert "are kept in memory only" in caplog.text
    assert "meanwhile the steps are kept in memory, up to" in caplog.text
    bench.now += TRY_AGAIN_S
    bench.delivery.work()
    assert bench.delivery._outbox.kept_in == f"in {tmp_path / 's'}"


def test_an_answer_without_words_is_named_by_its_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(spool=tmp_path / "s")
    bench.wire.request = lambda *args: Answer(503, None, "")  # type: ignore[method-assign]
    train(bench, seconds=4)
    assert "the server answered 503 (Service Unavailable). It is tried again" in caplog.text
