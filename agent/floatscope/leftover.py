"""Steps that could not be delivered before the process had to end, kept as a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from floatscope.protocol.batch import Batch
from floatscope.protocol.json_rows import rows_from_batch
from floatscope.protocol.runinfo import RunInfo
from floatscope.protocol.strict_json import dumps


def keep_undelivered(
    path: Path,
    batches: Sequence[Batch],
    *,
    info: RunInfo,
    run_id: str,
    rank: int,
    status: str,
    reason: str | None,
) -> int:
    """Appends the steps to a floatscope log at ``path``. Returns how many; raises OSError.

    info: description of the run, written as the log's first line.  status, reason: how the run ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if file.tell() == 0:
            ended = replace(info, status=status, reason=reason)
            file.write(dumps({"run": {"run_id": run_id, **ended.to_json()}}) + "\n")
        for batch in batches:
            file.writelines(dumps(row) + "\n" for row in rows_from_batch(batch, rank=rank))
    return sum(map(len, batches))
