"""What is counted as it happens. Labels are few and fixed: never a run, a name or an address."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from sqlalchemy import Engine, event

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
NOT_ROUTED = "none"
OUTCOMES = ("stored", "repeated", "gap", "conflict", "need_tensors", "refused", "limited", "failed")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Measures:
    """One worker's figures. ``worker``: its number, a label of all of them."""

    def __init__(self, *, worker: int = 0) -> None:
        self.registry = CollectorRegistry()
        self.worker = str(worker)
        self._requests = self._histogram(
            "floatscope_http_request_seconds", "Time to answer.", ("method", "route", "status"), REQUEST_S
        )
        self._under_way = self._gauge("floatscope_http_requests_under_way", "Requests being answered.")
        self._refused = self._counter(
            "floatscope_limited_requests_total", "Requests that a limit turned away.", ("limit",)
        )
        self._batches = self._counter(
            "floatscope_ingest_batches_total", "Batches by what became of them.", ("outcome",)
        )
        self._values = self._counter("floatscope_ingest_values_total", "Numbers in stored batches.")
        self._steps = self._counter("floatscope_ingest_steps_total", "Steps in stored batches.")
        self._bytes = self._counter("floatscope_ingest_bytes_total", "Bytes of stored batches as sent.")
        self._batch_s = self._histogram(
            "floatscope_ingest_batch_seconds", "Time to unpack, judge and store a batch.", (), BATCH_S
        )
        self._database_s = self._histogram(
            "floatscope_database_connection_seconds",
            "Time a database connection was in use: one transaction.",
            (),
            REQUEST_S,
        )
        for outcome in OUTCOMES:
            self._batches.labels(self.worker, outcome)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, ("worker", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("worker",), registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(name, text, ("worker", *labels), registry=self.registry, buckets=buckets)

    def began(self) -> None:
        """A request came in."""
        self._under_way.labels(self.worker).inc()

    def ended(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """It was answered. route: the template of its address, never the address itself."""
        self._under_way.labels(self.worker).dec()
        known = method if method in METHODS else "other"
        self._requests.labels(self.worker, known, route, str(status)).observe(seconds)

    def left(self) -> None:
        """It was answered and is counted elsewhere."""
        self._under_way.labels(self.worker).dec()

    def limited(self, limit: str) -> None:
        self._refused.labels(self.worker, limit).inc()

    def batch(self, outcome: str) -> None:
        """A batch was not stored anew."""
        self._batches.labels(self.worker, outcome).inc()

    def stored(self, *, steps: int, values: int, sent_bytes: int, seconds: float) -> None:
        self.batch("stored")
        self._steps.labels(self.worker).inc(steps)
        self._values.labels(self.worker).inc(values)
        self._bytes.labels(self.worker).inc(sent_bytes)
        self._batch_s.labels(self.worker).observe(seconds)

    def watch(self, engine: Engine) -> None:
        """Times every connection of the engine's pool from when it is taken until it is given back."""
        spent = self._database_s.labels(self.worker)

        @event.listens_for(engine, "checkout")
        def on_checkout(_raw: Any, record: Any, _proxy: Any) -> None:
            record.info["floatscope.since"] = time.perf_counter()

        @event.listens_for(engine, "checkin")
        def on_checkin(_raw: Any, record: Any) -> None:
            since = record.info.pop("floatscope.since", None)
            if since is not None:
                spent.observe(time.perf_counter() - since)

    def exposition(self) -> bytes:
        """All figures as Prometheus' text."""
        return generate_latest(self.registry)
