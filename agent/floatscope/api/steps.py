"""The steps of a run as the lines of a floatscope log, whole even if the connection breaks meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote, urlencode

from floatscope.api.connection import Connection, Sleep
from floatscope.api.errors import ApiError, CutOff, NotReached

ATTEMPTS = 5  # in a row without a single new line
FIRST_WAIT_S = 0.5
MOST_LINE_BYTES = 256 << 20

Place = tuple[int, int]


def lines(
    connection: Connection,
    run_id: str,
    *,
    first: int | None,
    last: int | None,
    rank: str | None,
    segment: int | None,
    sleep: Sleep,
) -> Iterator[bytes]:
    """Lines without their ends: first the run, then the steps in order, each once.

    After a cut it goes on at the step where it stopped. Raises ApiError: CutOff if it cannot, NotFound if
    there is no such run, or no more.
    """
    at: Place | None = None
    has_head = False
    failures = 0
    while True:
        asked = {"from": first if at is None else at[0], "to": last, "rank": rank, "segment": segment}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        path = f"/api/v1/runs/{quote(run_id, safe='')}/steps" + (f"?{query}" if query else "")
        skipping = at
        try:
            with connection.stream("GET", path) as parts:
                for number, line in enumerate(_lines(parts)):
                    if number == 0:
                        if not has_head:
                            has_head = True
                            yield line
                        continue
                    place = _place(line)
                    if skipping is not None and place <= skipping:
                        continue
                    at, skipping, failures = place, None, 0
                    yield line
            return
        except (CutOff, NotReached) as error:
            if isinstance(error, NotReached) and not has_head:
                raise  # the connection has tried again already, and there is nothing to take up
            failures += 1
            if failures >= ATTEMPTS:
                raise
            sleep(FIRST_WAIT_S * 2.0 ** (failures - 1))


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    size = 0
    for part in parts:
        *whole, after = part.split(b"\n")
        for line in whole:
            rest.append(line)
            yield b"".join(rest)
            rest, size = [], 0
        if after:
            rest.append(after)
            size += len(after)
            if size > MOST_LINE_BYTES:
                raise ApiError(f"a line of more than {MOST_LINE_BYTES >> 20} MiB")
    if rest:
        raise CutOff("the last line has no end")


def _place(line: bytes) -> Place:
    """Step and rank of a line, by which lines are in order."""
    try:
        row = json.loads(line)
        return int(row["step"]), int(row.get("rank", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ApiError("the server sent a line that is no step of a floatscope log") from error
