"""Loads a JSON document; of one that is cut off, everything before the cut."""

from __future__ import annotations

import re
from typing import Any

from floatscope.protocol.errors import ProtocolError, TooLarge
from floatscope.protocol.strict_json import loads, refuse_too_many
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.run_log import UnreadableLog

MAX_BYTES = 512 << 20
MAX_VALUES = 50_000_000  # about 4 GiB as Python objects; 5 million log entries with ten numbers
_BOM = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|[\[\]{},]', re.DOTALL)
_CLOSED_BY = {b"{": b"}", b"[": b"]"}
_CUT = "the document is cut off: its last complete entry is the last that was read"


def load(opened: Opened) -> Any:
    """The value. Raises UnreadableLog if the text is no JSON; a cut end is noted in ``opened.notes``."""
    text = opened.read_all(MAX_BYTES).removeprefix(_BOM).strip(b" \t\r\n\x00")
    try:
        refuse_too_many(text, most=MAX_VALUES, field="the document")
        return loads(text, field="the document")
    except TooLarge as error:
        raise UnreadableLog(f"is too large a JSON document: {error}") from error
    except ProtocolError as error:
        if isinstance(error.__cause__, RecursionError):
            raise UnreadableLog(
                "is a JSON document nested too deep to be read: hundreds of lists or objects inside each "
                "other, as no log is. Pass the file that holds the steps, or write one step a line"
            ) from error
        whole = mended(text)
        if whole is None:
            raise UnreadableLog(f"is not complete JSON ({error}). Copy the file again") from error
        opened.notes.append(_CUT)
        return whole


def mended(text: bytes) -> Any:
    """The value of a text that is valid up to its end, without its last, unfinished entry; None if that does
    not help.

    The entry is one of the outermost list that is still open, else a member of the innermost object.
    """
    open_now: list[bytes] = []
    commas: list[int] = []  # by depth, the last one; -1 for none
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in _CLOSED_BY:
            open_now.append(sign)
            commas.append(-1)
        elif sign in (b"}", b"]"):
            if not open_now or _CLOSED_BY[open_now.pop()] != sign:
                return None
            commas.pop()
        elif sign == b"," and commas:
            commas[-1] = token.start()
    depth = open_now.index(b"[") if b"[" in open_now else len(open_now) - 1
    if depth < 0 or commas[depth] < 0:
        return None
    closers = b"".join(_CLOSED_BY[s] for s in reversed(open_now[: depth + 1]))
    try:
        return loads(text[: commas[depth]] + closers)
    except ProtocolError:
        return None
