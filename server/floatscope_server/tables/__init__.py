"""The tables. ``run`` leads every primary key of telemetry, so a run can move to another database as a whole.

Times are Unix seconds UTC. Text columns called ``*_json`` hold strict JSON (non-finite numbers as strings),
since neither database keeps NaN in a number column on both paths (SQLite makes it NULL).
"""

from floatscope_server.tables.access import audit, secret, session, token
from floatscope_server.tables.alerts import (
    alert,
    alert_event,
    channel,
    outbox,
    outbox_alert,
    silence,
    telling,
)
from floatscope_server.tables.diagnosis import backtest, engine_state, rule_setting, verdict
from floatscope_server.tables.registry import metadata
from floatscope_server.tables.runs import rank, run, worker
from floatscope_server.tables.telemetry import (
    batch,
    block,
    chunk,
    frame,
    garbage,
    level,
    series,
    tensor_table,
    tile,
)

__all__ = [
    "alert",
    "alert_event",
    "audit",
    "backtest",
    "batch",
    "block",
    "channel",
    "chunk",
    "engine_state",
    "frame",
    "garbage",
    "level",
    "metadata",
    "outbox",
    "outbox_alert",
    "rank",
    "rule_setting",
    "run",
    "secret",
    "series",
    "session",
    "silence",
    "telling",
    "tensor_table",
    "tile",
    "token",
    "verdict",
    "worker",
]
