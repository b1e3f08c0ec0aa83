"""Posts to a webhook: to a checked address, without redirects or proxies, in a bounded time, reading a
bounded answer.
"""

from __future__ import annotations

import email.utils
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping

from floatscope_server.notify.targets import Target

TIMEOUT_S = 10.0  # of the whole post, however slowly the receiver answers
MAX_READ_BYTES = 65_536
MAX_ANSWER_BYTES = 2048
MAX_RETRY_AFTER_S = 3600.0
OK_STATUS = range(200, 300)
PASSING_STATUS = (408, 425, 429)
"""Of the 4xx those that say "later"; all others say that this post will not be taken as it is."""
_REASON = re.compile(r"[A-Za-z][A-Za-z_ ]{2,59}")


class DeliveryFailed(Exception):
    """The message did not arrive. The text may be shown.

    status: the receiver's answer, None without one.  retry_after: seconds the receiver asks to wait.
    refused: it will not be taken later either unless somebody changes something.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.refused = refused


def post(
    target: Target,
    payload: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_S,
    now: Callable[[], float] = time.time,
) -> int:
    """Posts JSON and returns the status (2xx). Raises DeliveryFailed for anything else."""
    sent = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "floatscope"}
    sent.update(headers or {})
    deadline = _Deadline(timeout)
    connection = _connection(target, deadline)
    try:
        connection.connect()
        connection.sock.settimeout(deadline.left())
        connection.request("POST", target.path, body=payload, headers=sent)
        with connection.getresponse() as answer:
            text = answer.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
            status, retry_after = answer.status, answer.getheader("Retry-After")
    except (OSError, http.client.HTTPException) as error:
        # only the kind of error: http.client quotes lines of the answer, which may repeat the address
        said = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise DeliveryFailed(f"{target.host} does not answer: {said}") from None
    finally:
        connection.close()
    if status in OK_STATUS:
        return status
    redirected = 300 <= status < 400
    what = "answered with a redirect, which is not followed" if redirected else f"answered {status}"
    reason = _reason(text, target)
    raise DeliveryFailed(
        f"{target.host} {what}" + (f": {reason}" if reason else ""),
        status=status,
        retry_after=seconds_to_wait(retry_after, now=now()),
        refused=redirected or (400 <= status < 500 and status not in PASSING_STATUS),
    )


def seconds_to_wait(header: str | None, *, now: float) -> float | None:
    """Retry-After, seconds or an HTTP date, in seconds from now and bounded; nonsense counts as not given."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        then = email.utils.parsedate_to_datetime(text)
        return min(max(then.timestamp() - now, 0.0), MAX_RETRY_AFTER_S)
    except (ValueError, OverflowError, TypeError):
        return None


def _reason(text: str, target: Target) -> str:
    """A receiver's short word for its refusal, such as Slack's ``no_service``.

    Anything longer may repeat the address, or what a machine inside the network says, and is left out.
    """
    word = text.strip()
    return word if _REASON.fullmatch(word) and word not in target.path else ""


class _Deadline:
    """Seconds that are left of a bounded time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class _BoundedReader(io.RawIOBase):
    """Reads a socket until a deadline and a number of bytes, so that a slow drip ends as well.

    held: http.client's own reader, which keeps the socket open until it is closed.
    """

    def __init__(self, sock: socket.socket, deadline: _Deadline, held: io.BufferedIOBase) -> None:
        self._sock = sock
        self._held = held
        self._deadline = deadline
        self._left_bytes = MAX_READ_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._left_bytes <= 0:
            raise http.client.HTTPException("the answer is too long")
        self._sock.settimeout(self._deadline.left())
        got = self._sock.recv_into(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= got
        return got

    def close(self) -> None:
        self._held.close()
        super().close()


class _BoundedAnswer(http.client.HTTPResponse):
    """An answer that is read through a bounded reader."""

    def __init__(self, sock: socket.socket, deadline: _Deadline, method: str | None) -> None:
        super().__init__(sock, method=method)
        self.fp = io.BufferedReader(_BoundedReader(sock, deadline, self.fp))


def _connection(target: Target, deadline: _Deadline) -> http.client.HTTPConnection:
    if target.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            target.host, target.port, context=context
        )
    else:
        connection = http.client.HTTPConnection(target.host, target.port)

    def connect(*_named: object, **_more: object) -> socket.socket:
        failed: OSError | None = None
        for address in target.addresses:
            try:
                made = socket.create_connection((address, target.port), deadline.left())
                made.settimeout(deadline.left())
                return made
            except OSError as error:
                failed = error
        raise failed or OSError("no address")

    def answer(
        sock: socket.socket, _debuglevel: int = 0, method: str | None = None, _url: str | None = None
    ) -> http.client.HTTPResponse:
        return _BoundedAnswer(sock, deadline, method)

    connection._create_connection = connect  # type: ignore[attr-defined]  # where it would look up the name
    connection.response_class = answer  # type: ignore[assignment]
    return connection
