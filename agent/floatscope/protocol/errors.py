"""Errors of the protocol: they say which field, what was expected and what came."""

from __future__ import annotations

_GOT_LIMIT_CHARS = 200  # what came may be hostile and huge; the message stays short


class ProtocolError(ValueError):
    """Something on the wire or in a log is not as the protocol says.

    field: path of the offending field, for example ``steps[3].tensors['a/input'].amax``.
    expected: what would have been right.  got: what came, shortened.
    """

    def __init__(self, field: str, expected: str, got: object) -> None:
        self.field = _short(field)
        self.expected = expected
        self.got = _short(got if isinstance(got, str) else repr(got))
        super().__init__(f"{self.field}: expected {expected}, got {self.got}")


class NeedTensors(ProtocolError):
    """A batch names a tensor table by a hash the receiver does not know; it must be sent again with the
    table.
    """

    def __init__(self, table_hash: str) -> None:
        self.table_hash = table_hash
        super().__init__(
            "__metadata__.tensors.hash", "the hash of a table sent before, or the table beside it", table_hash
        )


class TooLarge(ProtocolError):
    """A body, once unpacked, is larger than the protocol allows."""


def _short(text: str) -> str:
    printable = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: _GOT_LIMIT_CHARS + 1])
    return printable if len(printable) <= _GOT_LIMIT_CHARS else printable[:_GOT_LIMIT_CHARS] + "..."
