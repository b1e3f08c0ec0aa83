"""What is wrong, and where."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import zstandard

from floatscope.protocol.errors import ProtocolError
from floatscope_server.errors import Problem


@dataclass(frozen=True)
class Fault:
    """``where``: such as ``run r rank 0 steps 0-4095 loss``; ``what``: in words."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@contextmanager
def faults_of(where: str) -> Iterator[list[Fault]]:
    """A list to which is added what decoding and comparing inside raises."""
    found: list[Fault] = []
    try:
        yield found
    except Problem as error:
        found.append(Fault(where, error.detail))
    except (
        *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, AttributeError),
        *(OSError, struct.error, zstandard.ZstdError, ProtocolError, RecursionError),
    ) as error:
        found.append(Fault(where, f"cannot be read: {str(error) or type(error).__name__}"))
