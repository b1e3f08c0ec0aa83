"""Batches: the way in for steps."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from floatscope.protocol.names import MAX_UNPACKED_BYTES
from floatscope_server import body
from floatscope_server.answers import Json, ProblemAnswer
from floatscope_server.errors import Problem
from floatscope_server.ingest import CONTENT_TYPES, Receipt
from floatscope_server.routes.fields import Rank, RunId, Seq
from floatscope_server.services import Services, Use

router = APIRouter(tags=["batches"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            CONTENT_TYPES[0]: {"schema": {"type": "object", "properties": {"steps": {"type": "array"}}}},
            CONTENT_TYPES[1]: {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


@router.put("/runs/{run_id}/ranks/{rank}/batches/{seq}", openapi_extra=_BODY, response_class=Json)
async def put_batch(request: Request, run_id: RunId, rank: Rank, seq: Seq, services: Use) -> Response:
    """Stores steps exactly once. The same seq with the same content may be sent any number of times."""
    try:
        await anyio.to_thread.run_sync(_may_send, services, run_id, rank)
        sent = await body.read(request)
    except Problem as problem:
        services.measures.batch("limited" if problem.status in (429, 507) else "refused")
        await body.drain(request)
        return ProblemAnswer(problem)
    store = partial(_store, services, run_id, rank, seq, sent, request)
    receipt: Receipt | None = None
    with suppress(body.LargeBody):  # whose traceback holds what was unpacked, so nothing waits in a handler
        small = partial(store, most=body.LARGE_BYTES)
        receipt = await anyio.to_thread.run_sync(small, limiter=services.ingest_slots)
    if receipt is None:  # one at a time, and others do not wait for it
        large = partial(store, most=MAX_UNPACKED_BYTES)
        receipt = await anyio.to_thread.run_sync(large, limiter=services.large_slots)
    told = {"expected_seq": receipt.expected_seq, "segment": receipt.segment, "settings": receipt.settings}
    return Json(told if receipt.verdict is None else {**told, "verdict": receipt.verdict})


def _may_send(services: Services, run_id: str, rank: int) -> None:
    services.ingest.check_run(run_id)
    services.disk.check()
    services.backlog.check(run_id, rank)


def _store(
    services: Services,
    run_id: str,
    rank: int,
    seq: int,
    sent: bytes,
    request: Request,
    *,
    most: int,
) -> Receipt:
    began = time.perf_counter()
    unpacked = body.unpack(sent, request.headers.get("content-encoding"), most=most)
    content_type = request.headers.get("content-type", "")
    try:
        receipt = services.ingest.put(run_id, rank=rank, seq=seq, content_type=content_type, body=unpacked)
    except Problem as problem:
        services.measures.batch(str(problem.extra.get("reason", "refused")))
        raise
    except BaseException:
        services.measures.batch("failed")
        raise
    if receipt.repeated:
        services.measures.batch("repeated")
        return receipt
    seconds = time.perf_counter() - began
    services.measures.stored(
        steps=receipt.steps, values=receipt.values, sent_bytes=len(sent), seconds=seconds
    )
    services.backlog.note(run_id, rank, hot_rows=receipt.hot_rows, hot_batches=receipt.hot_batches)
    return receipt
