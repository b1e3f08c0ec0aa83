"""GPT-NeoX: Megatron's lines with ``samples/sec`` in front and ``lm_loss``; a record is several lines."""

from __future__ import annotations

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat
from floatscope_diagnostics.readers.lines.megatron import NEOX, Iterations
from floatscope_diagnostics.readers.ranked import Ranked


def certainty(head: Head) -> float:
    """A record's first line."""
    return 0.95 if head.hits(NEOX) else 0.0


FORMAT = LineFormat("gpt_neox", "GPT-NeoX output", certainty, lambda: Ranked(Iterations()))
