"""The figures of this worker's parts."""

from __future__ import annotations

import resource
import sys
import time

import anyio

from floatscope_server.compaction import Compactor
from floatscope_server.diagnosis import Diagnosis
from floatscope_server.disk import Disk
from floatscope_server.events import Events
from floatscope_server.limits.backlog import Backlog
from floatscope_server.metrics.state import Gauge
from floatscope_server.workers.crew import Crew


def gauges(
    *,
    diagnosis: Diagnosis,
    compactor: Compactor,
    events: Events,
    crew: Crew,
    disk: Disk,
    backlog: Backlog,
    slots: anyio.CapacityLimiter,
) -> tuple[Gauge, ...]:
    """What each part says of itself when it is asked."""
    owners = crew.owners
    began = time.time()
    return (
        Gauge("floatscope_engines_live", "Runs whose diagnosis is in memory.", diagnosis.live),
        Gauge(
            "floatscope_engines_restored",
            "Times that a run's diagnosis was brought back from the database.",
            lambda: diagnosis.brought_back,
            counts=True,
        ),
        Gauge("floatscope_compaction_chunks", "Chunks made.", lambda: compactor.chunks_made, counts=True),
        Gauge(
            "floatscope_compaction_seconds",
            "Time spent on making them.",
            lambda: compactor.busy_s,
            counts=True,
        ),
        Gauge("floatscope_compaction_works", "0 while it fails or has stopped.", compactor.works),
        Gauge("floatscope_compaction_ranks_held_back", "Ranks whose senders have to wait.", backlog.count),
        Gauge("floatscope_event_readers", "Readers of live events.", events.readers),
        Gauge("floatscope_ingest_under_way", "Batches being stored.", lambda: slots.borrowed_tokens),
        Gauge("floatscope_disk_free_bytes", "Free where the embedded database is.", disk.free_bytes),
        Gauge("floatscope_owned_runs", "Runs this worker serves.", None if owners is None else owners.count),
        Gauge("process_start_time_seconds", "When the worker started, Unix time.", lambda: began),
        Gauge("process_cpu_seconds", "Processor time used.", time.process_time, counts=True),
        Gauge("process_peak_memory_bytes", "The most memory it had.", peak_memory_bytes),
    )


def peak_memory_bytes() -> float:
    """The most memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
