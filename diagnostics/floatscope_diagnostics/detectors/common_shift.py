"""What all tensors of a class do at once.

A hard batch raises every gradient, a change of data every activation; a fault sits in a few tensors, or in
all of them. At each row the part of a rise that more than half of a class shares is taken off every tensor
of it, so that what is left is the tensor's own. What was taken off is judged by itself, once for the class:
a fault of all tensors is seen there.

The shared part is the lower median of the rises, and never below 0: with an even number of tensors, half of
them faulty, the healthy half decides. A class with fewer than MIN_TENSORS judged tensors has no shared part,
since one or two of them would decide; they are judged as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

MIN_TENSORS = 4


def common_rise(rise: Float64, judged: Bool, classes: Sequence[Int64]) -> Float64:
    """The part (len(classes),) of a rise (S,) that each class shares, 0 where it shares none.

    judged: (S,) tensors whose rise is known.  classes: columns of each class.
    """
    out = np.zeros(len(classes))
    for c, members in enumerate(classes):
        values = rise[members]
        values = values[judged[members] & ~np.isnan(values)]
        if len(values) >= MIN_TENSORS:
            middle = (len(values) - 1) // 2
            out[c] = max(0.0, float(np.partition(values, middle)[middle]))
    return out
