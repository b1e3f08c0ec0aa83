"""Reads a request's body within bounds: counted while it streams in, and again while it is unpacked."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import anyio
import zstandard
from starlette.requests import ClientDisconnect, Request

from floatscope.protocol.names import MAX_BODY_BYTES, MAX_UNPACKED_BYTES
from floatscope_server.errors import Problem, Refused

MIB = 2**20
LARGE_BYTES = 32 * MIB  # unpacked; what is larger waits until it is the only one
GZIP_CHUNK_BYTES = 16 * 1024  # a byte can stand for a KiB, so one call yields at most 16 MiB or so
ZSTD_CHUNK_BYTES = 1024  # a block of 4 bytes can stand for 128 KiB, so one call yields at most 32 MiB
ZSTD_WINDOW_BYTES = 128 * MIB
DRAIN_BYTES = 64 * MIB  # what is read and thrown away so that a client that is still sending sees the answer
DRAIN_S = 20.0  # for so long: who sends nothing, and may have no token, must not hold a connection
ENCODINGS = ("identity", "gzip", "zstd")


@dataclass(frozen=True)
class Body:
    """A body as sent, unpacked. ``fault``: why it could not be unpacked; ``content`` is then empty.

    digest: SHA-256 of the unpacked content (of the sent bytes if there is a fault), so that the same
    content counts as the same bytes however it was compressed.
    """

    content: bytes
    digest: bytes
    fault: Problem | None = None


class LargeBody(Exception):
    """Unpacked, the body is larger than was asked for, and may still be small enough to be taken."""


async def read(request: Request, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body as sent. Raises Problem 413 as soon as it is known to be larger than the limit."""
    claimed = request.headers.get("content-length", "")
    if claimed.isdigit() and int(claimed) > limit:
        raise too_large(f"{int(claimed):,} bytes", limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large("more", limit)
            parts.append(chunk)
    except ClientDisconnect as error:
        detail = "the connection closed, or nothing came for too long, before the body was complete"
        raise Problem(400, "Request cut short", detail, headers={"Connection": "close"}) from error
    return b"".join(parts)


async def drain(request: Request) -> None:
    """Reads on, within bounds, what a client still sends; nothing if it waits for ``100-continue`` or claims
    more than that.
    """
    claimed = request.headers.get("content-length", "")
    endless = claimed.isdigit() and int(claimed) > DRAIN_BYTES
    if endless or request.headers.get("expect", "").lower() == "100-continue":
        return
    left = DRAIN_BYTES
    try:
        with anyio.move_on_after(DRAIN_S):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (ClientDisconnect, RuntimeError):  # gone, or the stream was read to its end already
        return


def unpack(sent: bytes, encoding: str | None, *, most: int = MAX_UNPACKED_BYTES) -> Body:
    """Undoes ``Content-Encoding``. Never holds more than 256 MiB, whatever the packed bytes claim.

    Raises LargeBody when packed bytes yield more than ``most``, if that is less than the 256 MiB.
    """
    name = (encoding or "identity").strip().lower()
    try:
        if name == "identity":
            content = sent
        elif name in ("gzip", "x-gzip"):
            content = _gathered(_gunzip(sent), most)
        elif name == "zstd":
            content = _gathered(_unzstd(sent), most)
        else:
            raise Refused("Content-Encoding", "one of " + ", ".join(ENCODINGS), name, status=415)
    except Problem as fault:
        return Body(b"", hashlib.sha256(sent).digest(), fault)
    return Body(content, hashlib.sha256(content).digest())


def too_large(got: str, limit: int, *, unpacked: bool = False) -> Problem:
    what = "unpacked body" if unpacked else "body"
    most = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // 1024} KiB"
    return Problem(
        413,
        "Request too large",
        f"{what}: expected at most {most}, got {got}",
        field="body",
        expected=f"at most {most}" + (" unpacked" if unpacked else ""),
        hint="send fewer steps in a batch" if limit >= MIB else "send less",
    )


def _gathered(parts: Iterator[bytes], most: int) -> bytes:
    """All parts as one; the buffer grows in place and is handed on as it is, so nothing is held twice."""
    whole = BytesIO()
    for part in parts:
        size = whole.tell() + len(part)
        if size > MAX_UNPACKED_BYTES:
            raise too_large("more", MAX_UNPACKED_BYTES, unpacked=True)
        if size > most:
            raise LargeBody
        whole.write(part)
    return whole.getvalue()


def _gunzip(sent: bytes) -> Iterator[bytes]:
    reader = zlib.decompressobj(wbits=31)
    end = 0
    try:
        while end < len(sent) and not reader.eof:
            yield reader.decompress(memoryview(sent)[end : end + GZIP_CHUNK_BYTES])
            end = min(end + GZIP_CHUNK_BYTES, len(sent))
        yield reader.flush()
    except zlib.error as error:
        raise _broken("gzip", str(error)) from error
    if not reader.eof:
        raise _broken("gzip", "the data ends in the middle")
    after = len(reader.unused_data) + len(sent) - end
    if after:
        raise _broken("gzip", f"{after} bytes after the end")


def _unzstd(sent: bytes) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()
    try:
        for at in range(0, len(sent), ZSTD_CHUNK_BYTES):
            yield reader.decompress(sent[at : at + ZSTD_CHUNK_BYTES])
            if reader.eof:
                break
    except zstandard.ZstdError as error:
        raise _broken("zstd", str(error)) from error
    if not reader.eof:
        raise _broken("zstd", "the data ends in the middle")


def _broken(name: str, why: str) -> Problem:
    return Refused("body", f"{name} data, as Content-Encoding says", why)
