"""The benchmark of synthetic curves: the same curves from the same seeds, judged no worse than before."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.curves import faults, healthy
from benchmarks.curves.__main__ import judged, samples
from benchmarks.curves.twelve import twelve


def test_the_same_seed_makes_the_same_curve() -> None:
    one, other = (samples(faults.KINDS, "tune", 1, "spike")[0] for _ in range(2))
    assert np.array_equal(one.columns["loss"], other.columns["loss"])
    report = samples(faults.KINDS, "report", 1, "spike")[0]
    assert not np.array_equal(one.columns["loss"][:50], report.columns["loss"][:50])


@pytest.mark.parametrize("curve", twelve(), ids=lambda c: c.kind)
def test_the_twelve_logs(curve: object) -> None:
    assert judged(curve).right  # type: ignore[arg-type]


def test_sound_curves_raise_no_alarm_and_faults_are_named() -> None:
    sound = [judged(c) for c in samples(healthy.KINDS, "tune", 2, None)]
    assert [o.symptoms for o in sound if not o.right] == []
    found = [judged(c) for c in samples(faults.KINDS, "tune", 2, None)]
    assert sum(o.right for o in found) >= len(found) - 1
