"""Stored bytes that cannot be read: told as what they are, so that one bad row takes down one answer only."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import zstandard

from floatscope_server.errors import Damaged, Unreachable

_log = logging.getLogger(__name__)
_ON_WRONG_BYTES = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError),
    *(struct.error, zstandard.ZstdError),
)


T = TypeVar("T")


@contextmanager
def reading(part: str) -> Iterator[None]:
    """Raises Damaged naming ``part`` if what is decoded inside is not what was written, and Unreachable if
    an object store does not give it.

    Only decoding belongs inside: what numpy, blosc2, zstd, struct and json raise on wrong bytes is caught,
    errors of the database are not.
    """
    try:
        yield
    except OSError as error:
        _log.error("%s cannot be had: %s", part, error)
        raise Unreachable(part) from error
    except _ON_WRONG_BYTES as error:
        _log.error("%s cannot be read: %s", part, error)
        raise Damaged(part) from error


def each(found: Iterator[T], part: str) -> Iterator[T]:
    """What an iterator that decodes gives, with its faults told as those of ``part``."""
    while True:
        with reading(part):
            try:
                item = next(found)
            except StopIteration:
                return
        yield item
