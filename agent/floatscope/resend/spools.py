"""Delivers what runs left on disk whose process is gone: the work behind ``floatscope resend``.

Batches go out under the seq and with the bytes that were written down, so what the server has already is not
doubled. A spool that a living process holds is left alone: it delivers itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from floatscope.answers import said, whole
from floatscope.backlog import Backlog
from floatscope.client import Transport, TransportError
from floatscope.config import is_url
from floatscope.courier import Direct
from floatscope.delivery import Delivery
from floatscope.guard import Guard
from floatscope.outbox import Outbox
from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import check_run_id
from floatscope.protocol.runinfo import RunInfo
from floatscope.recorder_notes import fault_path, is_alive
from floatscope.recorder_reading import read_file
from floatscope.spool import Spool
from floatscope.spool_files import RUN_FILE, SpoolBusy, is_own, read_about

TRIES = 4  # in a row without an answer, after which the server counts as away
MOST_BYTES = 2**50  # nothing is given up here
ENDED = ("finished", "failed", "crashed")
NO_ENDING = (
    "crashed",
    "the process ended without saying how (killed, out of memory, or its machine went down)",
)


@dataclass(frozen=True)
class Resent:
    """What became of one spool.

    state: waiting, delivered, busy (a living process has it), away (no answer), refused (by the server) or
    unreadable.
    steps: delivered now.  left: still in the spool.  ending: status the run was given, if any.
    """

    path: Path
    run_id: str | None
    rank: int | None
    state: str
    steps: int = 0
    left: int = 0
    ending: str | None = None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object of ``--json``, without what is not known."""
        return {key: str(v) if key == "path" else v for key, v in vars(self).items() if v is not None}


def spools_in(folder: Path) -> list[Path]:
    """The spools in a folder of runs, in the folder of one run, or the one that is named itself."""
    if folder.name.endswith(".spool"):
        return [folder] if folder.is_dir() else []
    found = {*folder.glob("rank*.spool"), *folder.glob("*/rank*.spool")}
    return sorted(path for path in found if path.is_dir())


def resend(
    path: Path, *, connect: Callable[[str | None], Transport], sleep: Callable[[float], None] = time.sleep
) -> Resent:
    """Delivers one spool and deletes it when all is there.

    connect: makes a connection to the server, given the address noted in the spool, if this user has written
    it: what others note must not be sent a token.  Raises nothing.
    """
    about = read_about(path)
    run_id, rank = _whose(path, about)
    if run_id is None or rank is None:
        return Resent(
            path, run_id, rank, "unreadable", detail="its name does not say of which run and rank it is"
        )
    if not any(path.iterdir()):
        path.rmdir()  # left by a process that ended before it wrote anything
        return Resent(path, run_id, rank, "delivered")
    try:
        spool = Spool.open(path, limit_bytes=MOST_BYTES)
    except SpoolBusy:
        return Resent(path, run_id, rank, "busy")
    except OSError as error:
        return Resent(path, run_id, rank, "unreadable", detail=str(error.strerror or error))
    transport = connect(_address(path, about))
    try:
        resent = _deliver(spool, transport, about, run_id=run_id, rank=rank, sleep=sleep)
        _tidy(path.parent, rank)
        return resent
    except TransportError as error:
        return Resent(path, run_id, rank, "away", left=spool.steps, detail=str(error))
    finally:
        spool.close()
        transport.close()


def waiting(path: Path) -> Resent:
    """What lies in a spool, without sending it."""
    run_id, rank = _whose(path, read_about(path))
    try:
        spool = Spool.open(path, limit_bytes=MOST_BYTES)
    except SpoolBusy:
        return Resent(path, run_id, rank, "busy")
    except OSError as error:
        return Resent(path, run_id, rank, "unreadable", detail=str(error.strerror or error))
    spool.close()
    return Resent(path, run_id, rank, "waiting", left=spool.steps)


def _deliver(
    spool: Spool,
    transport: Transport,
    about: dict[str, Any],
    *,
    run_id: str,
    rank: int,
    sleep: Callable[[float], None],
) -> Resent:
    known = transport.request("GET", f"/api/v1/runs/{quote(run_id, safe='')}", b"", {})
    if known.status not in (200, 404) or known.body is None:
        state = "refused" if known.status in (401, 403) else "away"
        return Resent(spool.path, run_id, rank, state, left=spool.steps, detail=said(known))
    before = known.body if known.status == 200 else {}
    before_steps, last_seq = spool.steps, spool.last_seq
    info = _described(about, run_id)
    guard = Guard(speaks=False)
    outbox = Outbox(
        rank=rank,
        backlog=Backlog(most_rows=1, most_bytes=1),
        info=lambda: info,
        guard=guard,
        open_spool=lambda: spool,
        about=lambda: {key: value for key, value in about.items() if key != "format"},
    )
    delivery = Delivery(
        run_id=run_id, rank=rank, courier=Direct(transport), info=lambda: info, outbox=outbox, guard=guard
    )
    expected = _expected(before, rank)
    if before:
        delivery.goes_on(expected)  # a run that has ended is not opened again
    outbox.keep(0.0)
    failed = _work(delivery, sleep, until=lambda: outbox.due_in(0.0) is None)
    if failed is not None:
        left = spool.steps
        return Resent(
            spool.path, run_id, rank, failed, before_steps - left, left, detail=delivery.patience.last_failure
        )
    ending = None
    is_last = not delivery.is_shared and (before_steps > 0 or not before or last_seq == expected - 1)
    if before.get("status") not in ENDED:
        ending = _ending(about) or (NO_ENDING if is_last or before.get("status") == "stalled" else None)
    if ending is not None:
        delivery.finish(*ending)
        failed = _work(delivery, sleep, until=lambda: delivery.is_done)
        if failed is not None:
            why = delivery.patience.last_failure
            return Resent(spool.path, run_id, rank, failed, before_steps, detail=why)
    else:
        outbox.close(is_all_said=True)
    return Resent(spool.path, run_id, rank, "delivered", before_steps, ending=ending and ending[0])


def _tidy(folder: Path, rank: int) -> None:
    """Takes away the fault handler's file of a process that died without a word to it."""
    recorder = folder / f"rank{rank}.recorder"
    fault = fault_path(recorder)
    with contextlib.suppress(OSError, ValueError):
        if (
            not fault.stat().st_size
            and is_alive(read_file(recorder).description.get("process") or {}) is False
        ):
            fault.unlink()


def _work(delivery: Delivery, sleep: Callable[[float], None], *, until: Callable[[], bool]) -> str | None:
    """Works until it is done; what stopped it, else None."""
    while not until():
        wait = delivery.work()
        if delivery.is_stopped:
            return "refused"
        if delivery.patience.failures >= TRIES:
            return "away"
        if wait:
            sleep(wait)
    return None


def _whose(path: Path, about: dict[str, Any]) -> tuple[str | None, int | None]:
    """Run and rank by ``run.json``, or by where the spool lies: ``<run_id>/rank<R>.spool``."""
    run = about.get("run")
    name = path.name.removeprefix("rank").removesuffix(".spool")
    rank = whole(about.get("rank"))
    if rank is None and name.isdecimal():
        rank = int(name)
    for candidate in (run.get("run_id") if isinstance(run, dict) else None, path.absolute().parent.name):
        try:
            return check_run_id(candidate), rank
        except ProtocolError:
            continue
    return None, rank


def _address(path: Path, about: dict[str, Any]) -> str | None:
    url = about.get("url")
    return url if is_url(url) and is_own(path / RUN_FILE) else None


def _described(about: dict[str, Any], run_id: str) -> RunInfo:
    try:
        run = {key: value for key, value in about["run"].items() if key not in ("run_id", "status", "reason")}
        return RunInfo.from_json(run)
    except (KeyError, AttributeError, ProtocolError):
        return RunInfo(name=run_id)


def _ending(about: dict[str, Any]) -> tuple[str, str | None] | None:
    status, reason = about.get("status"), about.get("reason")
    if status not in ENDED:
        return None
    return str(status), reason if isinstance(reason, str) else None


def _expected(run: Any, rank: int) -> int:
    """The seq that the server expects of this rank, from the run as it shows it."""
    ranks = run.get("ranks")
    for found in ranks if isinstance(ranks, list) else []:
        if isinstance(found, dict) and found.get("rank") == rank:
            return whole(found.get("expected_seq")) or 0
    return 0


def resend_all(
    folder: Path, *, connect: Callable[[str | None], Transport], sleep: Callable[[float], None] = time.sleep
) -> Iterator[Resent]:
    """Delivers all spools of a folder, one after the other."""
    for path in spools_in(folder):
        yield resend(path, connect=connect, sleep=sleep)
