"""What was decoded lately, remembered up to a number of bytes.

Levels of chunks and blocks of batches never change once they are stored, and the id of a run is never used
twice, so nothing remembered is ever wrong; what is deleted is forgotten in time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WARM_BYTES = 64 << 20


class Warm:
    """Decoded arrays by key; those used last stay."""

    def __init__(self, most_bytes: int = WARM_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._making: dict[tuple[Any, ...], tuple[threading.Lock, int]] = {}

    def get(self, key: tuple[Any, ...]) -> Any:
        """What was kept under the key, or None."""
        with self._lock:
            known = self._found.get(key)
            if known is None:
                return None
            self._found.move_to_end(key)
            return known[0]

    def keep(self, key: tuple[Any, ...], value: Any, size_bytes: int) -> None:
        """Remembers a value that nobody changes any more; one too big for it is not kept."""
        if size_bytes > self._most_bytes // 8:
            return
        with self._lock:
            _old, old_bytes = self._found.pop(key, (None, 0))
            self._found[key] = (value, size_bytes)
            self._bytes += size_bytes - old_bytes
            while self._bytes > self._most_bytes:
                _key, (_value, freed) = self._found.popitem(last=False)
                self._bytes -= freed

    @contextmanager
    def alone(self, key: tuple[Any, ...]) -> Iterator[None]:
        """One thread at a time makes what takes long: who comes next looks again at what was kept."""
        with self._lock:
            lock, users = self._making.get(key) or (threading.Lock(), 0)
            self._making[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _lock, users = self._making.pop(key)
                if users > 1:
                    self._making[key] = lock, users - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of what is remembered."""
        return self._bytes
