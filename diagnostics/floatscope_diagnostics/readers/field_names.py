"""Names of a log that cannot be kept: they cost their own field, not the record they stand in."""

from __future__ import annotations

from floatscope.protocol.errors import ProtocolError
from floatscope.protocol.names import MAX_TENSORS, check_name
from floatscope_diagnostics.readers.run_log import Tally

MAX_COUNTED = 1 << 16  # refused names that are told apart; beyond, "at least"
SHOWN_CHARS = 40


class FieldNames:
    """Tells the names that can be kept from the others, and says once how many were not."""

    def __init__(self) -> None:
        self._good: set[str] = set()
        self._refused: set[int] = set()  # hashes: the names themselves may be long
        self._first = ""
        self._told = ""

    def usable(self, name: str) -> bool:
        """Whether the name may be kept: 1 to 1,024 bytes of UTF-8 without control characters."""
        if name in self._good:
            return True
        try:
            check_name(name, field="name")
        except ProtocolError:
            if not self._refused:
                self._first = ascii(name[:SHOWN_CHARS]) + ("..." if len(name) > SHOWN_CHARS else "")
            if len(self._refused) < MAX_COUNTED:
                self._refused.add(hash(name))
            return False
        if len(self._good) < MAX_TENSORS:
            self._good.add(name)
        return True

    def tell(self, tally: Tally) -> None:
        """Notes what was left out so far, in place of what was noted before."""
        if not self._refused:
            return
        least = "at least " if len(self._refused) >= MAX_COUNTED else ""
        text = (
            f"names that are empty, over 1,024 bytes or hold control characters were left out: {least}"
            f"{len(self._refused):,}, the first {self._first}"
        )
        if self._told in tally.notes:
            tally.notes[tally.notes.index(self._told)] = text
        else:
            tally.note(text)
        self._told = text
