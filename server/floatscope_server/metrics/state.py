"""What is looked up when somebody asks: the state of the database and of this worker's parts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from floatscope_server.database import Database
from floatscope_server.store import figures
from floatscope_server.store.figures import Figures

KEPT_S = 5.0  # several who ask at once cost one look

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gauge:
    """A figure of one part of this worker. value: None where there is no such part, or nothing is known.
    counts: whether it only grows; its name then ends in ``_total``.
    """

    name: str
    text: str
    value: Callable[[], float | None] | None
    counts: bool = False


@dataclass(eq=False)
class State(Collector):
    """``gauges``: of this worker. What the database says is the same from every worker, so it has no label of
    one.
    """

    database: Database
    worker: str
    gauges: Sequence[Gauge]
    clock: Callable[[], float] = time.monotonic
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _seen: tuple[float, Figures] | None = None

    def describe(self) -> list[Metric]:
        """Nothing before the first look: names are made by ``collect``."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._of_worker()
        found = self._figures()
        up = GaugeMetricFamily("floatscope_database_up", "Whether the database answers.")
        up.add_metric([], float(found is not None))
        yield up
        if found is not None:
            yield from _of_database(found)

    def _of_worker(self) -> Iterator[Metric]:
        for gauge in self.gauges:
            value = None if gauge.value is None else gauge.value()
            if value is not None:
                family = CounterMetricFamily if gauge.counts else GaugeMetricFamily
                metric = family(gauge.name, gauge.text, labels=["worker"])
                metric.add_metric([self.worker], value)
                yield metric

    def _figures(self) -> Figures | None:
        with self._guard:
            now = self.clock()
            if self._seen is None or now - self._seen[0] >= KEPT_S:
                try:
                    with self.database.read() as c:
                        self._seen = (now, figures.of(c))
                except SQLAlchemyError as error:  # a scrape must work then too: it is how people hear of it
                    _log.warning("figures could not be read: %s", type(error).__name__)
                    return None
            return self._seen[1]


def _of_database(found: Figures) -> Iterator[Metric]:
    runs = GaugeMetricFamily("floatscope_runs", "Runs by status.", labels=["status"])
    for status, count in found.runs.items():
        runs.add_metric([status], count)
    yield runs
    alerts = GaugeMetricFamily("floatscope_alerts", "Alerts.", labels=["state", "severity"])
    for (state, severity), count in found.alerts.items():
        alerts.add_metric([state, severity], count)
    yield alerts
    messages = GaugeMetricFamily("floatscope_messages", "Messages to people.", labels=["kind", "state"])
    for (kind, state), count in found.messages.items():
        messages.add_metric([kind, state], count)
    yield messages
    for name, text, value in (
        ("floatscope_hot_rows", "Rows that are not in chunks yet.", found.hot_rows),
        ("floatscope_hot_rows_of_a_rank_max", "The most of them that one rank has.", found.most_hot_rows),
        ("floatscope_compaction_ranks_waiting", "Ranks whose rows are due to be rewritten.", found.waiting),
        ("floatscope_runs_being_removed", "Deleted runs that are still being removed.", found.removing),
    ):
        metric = GaugeMetricFamily(name, text)
        metric.add_metric([], value)
        yield metric
