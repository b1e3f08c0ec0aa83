"""Text that prints a step, iteration or epoch and a loss in words: ``step 10: loss 2.31, lr 3e-4``.

The last resort among the line formats: it takes names and numbers as they stand.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.names import guess
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.piece import Piece

_STEP = re.compile(rf"\b(step|steps|iter|iters|iteration|it|global_step|update)\b\W{{0,3}}({NUMBER})", re.I)
_EPOCH = re.compile(rf"\bepoch\b\W{{0,3}}({NUMBER})", re.I)
_PAIR = re.compile(rf"([A-Za-z][A-Za-z_/ .]*?)\s*[:=]?\s+[:=]?\s*({NUMBER})|([A-Za-z][\w/.]*)[:=]({NUMBER})")
_LOSS = re.compile(rf"loss\W{{0,4}}{NUMBER}", re.I)


def certainty(head: Head) -> float:
    """Low, whatever it sees: any other format that knows the text is better."""
    return 0.1 if head.hits(_LOSS) else 0.0


def read(text: str) -> Piece | None:
    """The numbers of a line that has a loss."""
    if not _LOSS.search(text):
        return None
    values: dict[str, float] = {}
    names: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        value = to_float(match[2] or match[4])
        name = (match[1] or match[3]).strip()
        if value is not None and name not in names:
            names[name] = value
    mapping = guess(names)
    for name, value in names.items():
        key = mapping.get(name, name)
        if key not in ("step", "rank", "time"):
            values.setdefault(key, value)
    step, epoch = _STEP.search(text), _EPOCH.search(text)
    return Piece(
        values,
        step=to_int(step[2]) if step else None,
        epoch=to_float(epoch[1]) if epoch else None,
    )


FORMAT = LineFormat("plain_text", 'text with "step N ... loss X"', certainty, lambda: SingleLines(read))
