"""How this process logs: lines for people, or one JSON object a record for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

from floatscope_server.observing import request_id
from floatscope_server.settings import Settings

MOST_CHARS = 32_768  # of a message or a stack


def set_up(settings: Settings, *, worker: int | None = None) -> None:
    """Sets the log of this process up; with several workers each record says whose it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(worker) if settings.log_format == "json" else Lines(worker))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.getLogger("alembic").setLevel("WARNING")
    logging.getLogger("httpx").setLevel("WARNING")  # one line per request passed on


class Lines(logging.Formatter):
    """A line for people; what is told beside the message follows it."""

    def __init__(self, worker: int | None) -> None:
        who = "" if worker is None else f"worker {worker} "
        super().__init__(f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # the library's name
        line = super().formatMessage(record)
        told: dict[str, Any] = getattr(record, "told", {})
        rest = [f"{key}={told[key]}" for key in ("duration_s", "token", "request_id") if key in told]
        return " ".join([line, *rest])


class JsonLines(logging.Formatter):
    """One object a record: time, level, logger, message, what is told beside it, an error's stack."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        out: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MOST_CHARS],
        }
        if self._worker is not None:
            out["worker"] = self._worker
        name = request_id.get()
        if name is not None:
            out["request_id"] = name
        out.update(getattr(record, "told", {}))
        if record.exc_info:
            out["stack"] = self.formatException(record.exc_info)[-MOST_CHARS:]
        return json.dumps(out, ensure_ascii=True, default=str)
