"""What can go wrong for a reason the caller can mend, and how it is told: status, field, what was expected,
what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floatscope.protocol.errors import NeedTensors, ProtocolError, TooLarge


class Problem(Exception):
    """An answer that is an error (RFC 9457).

    ``hint`` says what to do; ``extra`` are further members of the body.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        field: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.expected = expected
        self.hint = hint
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The members of the problem+json document; those that are not known are left out."""
        out: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        for key in ("field", "expected", "hint"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        return out | self.extra


class RunNotFound(Problem):
    def __init__(self, run_id: str) -> None:
        super().__init__(
            404,
            "Unknown run",
            f"there is no run {run_id!r}",
            field="run_id",
            expected="the id of a run that was created and not deleted",
            hint="create it first with POST /api/v1/runs",
        )


class AlertNotFound(Problem):
    def __init__(self, alert_id: str) -> None:
        super().__init__(
            404,
            "Unknown alert",
            f"there is no alert {alert_id!r}",
            field="id",
            hint="GET /api/v1/alerts lists them",
        )


class RuleNotFound(Problem):
    def __init__(self, code: str) -> None:
        super().__init__(
            404,
            "Unknown rule",
            f"there is no rule {code!r}",
            field="code",
            hint="GET /api/v1/rules lists them",
        )


class BacktestNotFound(Problem):
    def __init__(self, backtest_id: str) -> None:
        super().__init__(
            404,
            "Unknown back-test",
            f"there is no back-test {backtest_id!r}",
            field="id",
            hint="GET /api/v1/backtests lists the newest; older ones are removed",
        )


class SilenceNotFound(Problem):
    def __init__(self, silence_id: str) -> None:
        super().__init__(
            404,
            "Unknown silence",
            f"there is no silence {silence_id!r}",
            field="id",
            hint="GET /api/v1/silences lists them",
        )


class ChannelNotFound(Problem):
    def __init__(self, channel_id: str) -> None:
        super().__init__(
            404,
            "Unknown channel",
            f"there is no channel {channel_id!r}",
            field="id",
            hint="GET /api/v1/channels lists them",
        )


class DeliveryNotFound(Problem):
    def __init__(self, channel_id: str, number: int) -> None:
        super().__init__(
            404,
            "Unknown delivery",
            f"channel {channel_id!r} has no delivery {number}",
            field="number",
            hint=f"GET /api/v1/channels/{channel_id}/deliveries lists them; old ones are forgotten",
        )


class Busy(Problem):
    def __init__(self, run_id: str) -> None:
        detail = f"run {run_id} is being changed by others"
        super().__init__(503, "Busy", detail, hint="send it again", headers={"Retry-After": "1"})


class Damaged(Problem):
    """Stored bytes that are not what was written: of a block, a tile, a level or a JSON column."""

    def __init__(self, part: str) -> None:
        super().__init__(
            502,
            "Stored data is damaged",
            f"{part} cannot be read: its bytes in the database are not what was written",
            hint="the rest of the run can still be read; floatscope db verify lists what is damaged",
            extra={"damaged": part},
        )
        self.part = part


class Unreachable(Problem):
    """Stored data that is in an object store which does not give it now."""

    def __init__(self, part: str) -> None:
        super().__init__(
            503,
            "Storage is not available",
            f"{part} is in the object store, which does not give it now",
            hint="ask again later; the server's log says more",
            headers={"Retry-After": "5"},
        )


class SeqGap(Problem):
    def __init__(self, seq: int, expected_seq: int) -> None:
        super().__init__(
            409,
            "A batch is missing",
            f"batch {seq} cannot be stored before batch {expected_seq}",
            field="seq",
            expected=str(expected_seq),
            hint=f"send batch {expected_seq} first; if it is gone, send its hole under that seq: "
            '{"steps": [], "lost": {"first_step": ..., "last_step": ...}}',
            extra={"reason": "gap", "expected_seq": expected_seq},
        )


class SeqConflict(Problem):
    def __init__(self, seq: int, expected_seq: int) -> None:
        super().__init__(
            409,
            "Another batch has this seq",
            f"batch {seq} is stored already, with other bytes",
            field="seq",
            expected=f"the same bytes again, or seq {expected_seq} for new steps",
            hint=f"send these steps under seq {expected_seq}",
            extra={"reason": "conflict", "expected_seq": expected_seq},
        )


class Refused(Problem):
    """Input that is well-formed HTTP and wrong in one field."""

    def __init__(
        self, field: str, expected: str, got: object, *, hint: str | None = None, status: int = 422
    ) -> None:
        super().__init__(
            status,
            "Request too large" if status == 413 else "Invalid input",
            f"{field}: expected {expected}, got {got}",
            field=field,
            expected=expected,
            hint=hint or f"send {expected} as {field}",
        )


def from_protocol(error: ProtocolError, *, expected_seq: int | None = None) -> Problem:
    """The answer to input that breaks the protocol."""
    if isinstance(error, NeedTensors):
        return Problem(
            409,
            "Tensor table wanted",
            str(error),
            field=error.field,
            expected=error.expected,
            hint="send the batch again with the tensor table beside its hash",
            extra={"reason": "need_tensors"}
            | ({} if expected_seq is None else {"expected_seq": expected_seq}),
        )
    hint = "send fewer steps in a batch" if isinstance(error, TooLarge) else None
    return Refused(
        error.field, error.expected, error.got, hint=hint, status=413 if isinstance(error, TooLarge) else 422
    )
