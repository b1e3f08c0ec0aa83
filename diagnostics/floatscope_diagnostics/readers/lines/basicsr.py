"""BasicSR (Real-ESRGAN, SwinIR, ...).

``[EDSR][epoch:  0, iter:   1,200, lr:(1.000e-04,)] [eta: 1 day, 0:00:00, time (data): 0.300 (0.001)] l_pix:
1.2e-01`` A pixel loss alone is the loss. With losses of a discriminator (l_d_real, l_g_gan) all keep their
names.
"""

from __future__ import annotations

import re

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import LineFormat, SingleLines
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.pairs import COLON, pairs
from floatscope_diagnostics.readers.piece import Piece

_LINE = re.compile(
    rf"\[epoch:\s{{0,6}}(\d{{1,9}}), iter:\s{{0,12}}([\d,]{{1,16}}), lr:\(({NUMBER}),.{{0,80}}?\)\] "
    r"(?:\[eta: [^\]]{1,60}?, time \(data\): ([\d.]{1,12}) \(([\d.]{1,12})\)\])?",
    re.I,
)
_NOTE = "losses of networks that play against each other: not judged as a falling loss"


def certainty(head: Head) -> float:
    """Sure of a line in that form."""
    return 0.95 if head.hits(_LINE) else 0.0


def read(text: str) -> Piece | None:
    """The losses of an iteration."""
    at = _LINE.search(text)
    step = to_int(at[2]) if at else None
    if at is None or step is None:
        return None
    losses = dict(pairs(text[at.end() :], COLON))
    against = any(name.startswith("l_d") or "gan" in name for name in losses)
    if list(losses) == ["l_pix"]:
        losses = {"loss": losses["l_pix"]}
    found = {"lr": at[3], "step_time_s": at[4] or "", "data_time_s": at[5] or ""}
    numbers = {k: v for k, v in ((k, to_float(t)) for k, t in found.items()) if v is not None}
    return Piece({**losses, **numbers}, step=step, note=_NOTE if against else None)


FORMAT = LineFormat("basicsr", "BasicSR log", certainty, lambda: SingleLines(read))
