"""Puts a monitor together: the only place of the agent where the parts meet."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from floatscope.answers import News
from floatscope.backlog import Backlog
from floatscope.capture import Captures
from floatscope.catalog import Catalog
from floatscope.client import HttpTransport, address_of
from floatscope.config import MonitorConfig, from_env
from floatscope.courier import Threaded
from floatscope.delivery import Delivery
from floatscope.findings import FindingBoard, Herald
from floatscope.guard import Guard
from floatscope.identity import choose_run_id, thread_name, unique_in_process
from floatscope.jsonable import jsonable, one_line
from floatscope.local import LocalDiagnosis, verdict_path_of
from floatscope.monitor import Monitor
from floatscope.outbox import Outbox
from floatscope.preflight.sending import preflight_outlet
from floatscope.probes import ProbeSet, attach
from floatscope.protocol.judgement import Judgement
from floatscope.protocol.runinfo import RunInfo
from floatscope.recorder import FlightRecorder, recorder_path
from floatscope.runlog import RunLog
from floatscope.schedule import Schedule
from floatscope.sender import Outlet, Sender
from floatscope.spool import Spool
from floatscope.version import version


def watch(
    model: Any = None,
    optimizer: Any = None,
    *,
    run: str,
    run_id: str | None = None,
    project: str = "default",
    baseline: str | None = None,
    mode: str | None = None,
    rank: int | None = None,
    **config: Any,
) -> Monitor:
    """Starts watching a training run and returns its monitor.

    model: a torch.nn.Module, or None to record scalars only.  optimizer: a torch optimizer, for gradients and
    updates. run: display name. run_id: identity, letters, digits and ``._-``; the same id resumes the run.
    baseline: run_id of the run to compare with.  mode: "server", "local" or "off"; by default "server" if
    FLOATSCOPE_URL is set, else "local".  rank: by default what the launcher says, or 0.
    config: further settings, see ``floatscope.config.MonitorConfig``.

    Raises TypeError for an unknown setting and ValueError for one that cannot be; from then on nothing.
    """
    settings, complaints = from_env(
        {
            "run": run,
            "run_id": run_id,
            "project": project,
            "baseline": baseline,
            "mode": mode,
            "rank": rank,
            **config,
        }
    )
    guard = Guard(strict=settings.strict, speaks=settings.rank == 0)
    for complaint in complaints:
        guard.say(complaint)
    wanted = choose_run_id(settings)
    chosen = unique_in_process(wanted, settings.rank)
    if chosen != wanted:
        guard.say(
            f"another monitor of this process is recording run {wanted} (rank {settings.rank}); "
            f"this one records {chosen}."
        )
    return _assemble(model, optimizer, settings, run_id=chosen, guard=guard)


def _assemble(model: Any, optimizer: Any, config: MonitorConfig, *, run_id: str, guard: Guard) -> Monitor:
    catalog = Catalog(describe_run(config))
    schedule = Schedule(config.stats_every)
    asked: dict[str, Any] = {}

    def on_settings(settings: Mapping[str, Any]) -> None:
        asked.update(settings)
        schedule.ask(settings)

    log_path = log_path_of(config, run_id)
    board, herald = FindingBoard(), Herald(guard)

    def hear(judgement: Judgement) -> None:
        herald.tell(board.post(judgement))

    log: RunLog | None = None
    diagnosis: LocalDiagnosis | None = None
    delivery: Delivery | None = None
    sender: Sender | None = None
    recorder: FlightRecorder | None = None
    wake = threading.Event()
    if config.mode != "off":
        outlets: list[Outlet] = []
        if config.rank == 0 and config.preflight is None:
            looked = preflight_outlet(catalog, uses_nvml=config.gpu is not False, guard=guard)
            outlets += [] if looked is None else [looked]
        if config.recorder_steps:
            path = recorder_path(config, run_id)
            recorder = FlightRecorder(path, run_id=run_id, config=config, info=catalog.info, guard=guard)
            outlets.append(recorder)
        if log_path is not None:
            log = RunLog(log_path, run_id=run_id, rank=config.rank, info=catalog.info, guard=guard)
            if config.mode == "local" and config.diagnose:
                diagnosis = LocalDiagnosis(
                    verdict_path_of(log_path),
                    log=log_path,
                    run_id=run_id,
                    rank=config.rank,
                    info=catalog.info,
                    guard=guard,
                    hear=hear,
                    ask=schedule.ask,
                    turn_s=config.flush_every_s,
                )
                outlets.append(diagnosis)  # before the log: it looks at what the file holds from earlier
            outlets.append(log)
        if config.mode == "server":
            news = News(settings=on_settings, verdict=lambda said: _heard(said, hear), url=_shown(config))
            delivery = _delivery(config, run_id, catalog, guard, schedule, news, wake.set)
            outlets.append(delivery)
        sender = Sender(outlets, name=thread_name(run_id, config.rank), guard=guard, wake=wake)
        starting = guard.area("starting", loses="the whole record of this run")
        is_started = False
        with starting:
            sender.start()
            is_started = True
        if not is_started:
            sender = None

    def left_behind() -> str | None:
        return None if delivery is None else delivery.left_behind()

    def farewell() -> str | None:
        if log is None or config.mode != "local" or config.rank != 0:
            return None
        said = None if diagnosis is None else diagnosis.farewell()
        if said is not None and log.lost_rows:
            lost = f"{log.lost_rows:,} steps are missing in that log: they could not be written"
            return f"{said}\nfloatscope: {lost}"
        return said or log.farewell()

    probes = attach(model, optimizer, config, guard=guard, catalog=catalog)
    return Monitor(
        config,
        run_id=run_id,
        guard=guard,
        catalog=catalog,
        probes=probes,
        sender=sender,
        schedule=schedule,
        settings=asked,
        board=board,
        farewell=farewell,
        left_behind=left_behind,
        recorder=recorder,
        captures=_captures(config, run_id, probes, catalog, guard),
    )


def _captures(
    config: MonitorConfig, run_id: str, probes: ProbeSet, catalog: Catalog, guard: Guard
) -> Captures | None:
    keeper = probes.keeper()
    if keeper is None or not config.capture or config.mode == "off":
        return None
    return Captures(
        config.spool_dir / run_id / "captures",
        keeper,
        run_id=run_id,
        rank=config.rank,
        info=catalog.info,
        most=config.most_captures,
        guard=guard,
    )


def _heard(said: object, hear: Callable[[Judgement], None]) -> None:
    judgement = Judgement.from_json(said)
    if judgement is not None:
        hear(judgement)


def _shown(config: MonitorConfig) -> Callable[[str], None]:
    """Says where the run can be watched: once for all ranks, as plain text, whatever logging is set to."""

    def show(url: str) -> None:
        if config.rank == 0:
            sys.stderr.write(f"floatscope: watching this run at {one_line(url, most=500)}\n")

    return show


def _delivery(
    config: MonitorConfig,
    run_id: str,
    catalog: Catalog,
    guard: Guard,
    schedule: Schedule,
    news: News,
    wake: Callable[[], None],
) -> Delivery:
    assert config.url is not None
    address = address_of(config.url)
    path = config.spool_dir / run_id / f"rank{config.rank}.spool"
    transport = HttpTransport(
        config.url,
        token=config.token,
        timeout_s=config.request_timeout_s,
        user_agent=f"floatscope/{version()} python/{platform.python_version()}",
    )

    process = {"host": platform.node(), "pid": os.getpid()}
    told: RunInfo | None = None
    run: dict[str, Any] = {}

    def about() -> dict[str, Any]:
        nonlocal told, run
        info = catalog.info()
        if info is not told:  # asked for several times a second, and thousands of tensors take their time
            known = {key: value for key, value in info.to_json().items() if key != "tensors"}
            told, run = info, {"run_id": run_id, **known}
        return {"run": run, "rank": config.rank, "url": address, **process}

    outbox = Outbox(
        rank=config.rank,
        backlog=Backlog(most_rows=config.memory_rows, most_bytes=config.memory_bytes),
        info=catalog.info,
        guard=guard,
        flush_every_s=config.flush_every_s,
        batch_steps=config.batch_steps,
        compress=config.compress,
        open_spool=(lambda: Spool.open(path, limit_bytes=config.spool_bytes)) if config.spool else None,
        about=about,
        on_pressure=lambda pressure: schedule.ease(2**pressure),
    )
    return Delivery(
        run_id=run_id,
        rank=config.rank,
        courier=Threaded(transport, wake=wake),
        info=catalog.info,
        outbox=outbox,
        guard=guard,
        news=news,
        gives_up=True,
    )


def log_path_of(config: MonitorConfig, run_id: str) -> Path | None:
    """Where the run's log goes, or None if a server keeps the record."""
    if config.log_path is not None:
        return config.log_path
    if config.mode == "local":
        return config.spool_dir / run_id / f"rank{config.rank}.jsonl"
    return None


def describe_run(config: MonitorConfig) -> RunInfo:
    """What is known of a run before its first step."""
    agent = {
        "version": version(),
        "python": platform.python_version(),
        "host": platform.node(),
        "torch": str(getattr(sys.modules.get("torch"), "__version__", "")) or None,
        "stats_every": config.stats_every,
    }
    return RunInfo(
        name=config.run,
        project=config.project,
        baseline=config.baseline,
        recipe=jsonable(dict(config.recipe)),
        vocab_size=config.vocab_size,
        ranks=config.world_size,
        preflight=config.preflight if isinstance(config.preflight, Mapping) else {},
        config={**jsonable(dict(config.config)), "agent": {k: v for k, v in agent.items() if v is not None}},
    )
