"""The tails that limits come from: peaks, fits, and false alarms of simulated noise at the stated rate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("scipy")

from benchmarks.diagnosis import tails
from benchmarks.diagnosis.tail_signs import RunSigns, lasting, signs_of
from floatscope_diagnostics.detectors.limits import Tail, parse_tails
from tests.diagnostics.tensor_rows import batch_of, info_of, names_of

Float64 = NDArray[np.float64]


def noise(kind: str, seed: int, rows: int = 4000, size: int = 50) -> Float64:
    rng = np.random.default_rng(seed)
    values: Float64 = rng.normal(size=(rows, size)) if kind == "white" else rng.standard_t(4, (rows, size))
    return values


@pytest.mark.parametrize("kind", ["white", "heavy"])
def test_a_fitted_limit_is_passed_as_rarely_as_it_says(kind: str) -> None:
    fit = tails.fit_tail([noise(kind, s) for s in range(4)], percent=False)
    assert fit is not None
    p = 1e-5  # beyond most of the 800,000 values it was fitted to: 8 expected
    limit = Tail(fit.threshold, fit.scale, fit.shape, fit.rate).beyond(p)
    fresh = [noise(kind, s) for s in range(10, 30)]  # 4 million values: 40 expected
    passed = sum(len(tails.peaks_over(f, limit)) for f in fresh)
    assert 10 <= passed <= 120


def test_a_limit_for_a_long_run_is_not_passed_in_a_short_one() -> None:
    """One in 100 million values: none of 4 million passes."""
    for kind in ("white", "heavy"):
        fit = tails.fit_tail([noise(kind, s) for s in range(4)], percent=False)
        assert fit is not None
        limit = Tail(fit.threshold, fit.scale, fit.shape, fit.rate).beyond(1e-8)
        assert sum(int((noise(kind, s) > limit).sum()) for s in range(40, 60)) <= 1


def test_peaks_close_to_each_other_are_one() -> None:
    values = np.zeros((40, 2))
    values[[5, 7, 9], 0] = [2.0, 3.0, 2.5]
    values[[5, 30], 1] = 4.0
    assert sorted(tails.peaks_over(values, 1.0).tolist()) == [3.0, 4.0, 4.0]


def test_what_lasts_is_the_least_of_the_rows() -> None:
    values = np.array([[5.0], [1.0], [4.0], [6.0], [np.nan], [3.0]])
    got = lasting(values, 3)[:, 0]
    assert np.isnan(got[[0, 1, 4, 5]]).all()
    assert got[[2, 3]].tolist() == [1.0, 1.0]


def test_too_few_peaks_are_no_tail() -> None:
    assert tails.fit_tail([np.zeros((100, 3))], percent=True) is None
    assert tails.fit_tail([np.full((100, 3), np.nan)], percent=False) is None


def a_run(seed: int) -> RunSigns:
    names = names_of(5)
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 0.2, (400, len(names)))
    stats = {
        "amax": np.exp2(x),
        "scale": np.full(x.shape, 400.0),
        "overflow_pct": np.maximum(x, 0.0),
        "underflow_pct": np.abs(rng.normal(0.0, 0.1, x.shape)),
        "sqnr_db": 30.0 + rng.normal(0.0, 0.2, x.shape),
    }
    info = info_of(names, {"name": "a recipe without history"})
    return signs_of(f"run{seed}", info, [batch_of(names, stats)], seed=10 + seed)


def test_runs_go_through_the_detectors_and_become_a_data_file_that_can_be_read() -> None:
    runs = [a_run(seed) for seed in range(6)]
    assert {r.kind for r in runs} == {"stateless"}
    fits = dict(tails.fits_of(runs))
    text = tails.document(fits, runs)
    read = parse_tails(text)
    assert ("amax_jump", "forward", "stateless") in read.by_key
    assert json.loads(text)["provenance"]["seeds"] == list(range(10, 16))
    assert json.loads(text)["provenance"]["healthy_steps"] == 6 * 400
    assert len(tails.table(fits, read, runs)) == len(fits) + 3


def test_without_scipy_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tails, "find_spec", lambda name: None)
    assert tails.main([]) == 2
    assert "pip install scipy" in capsys.readouterr().err
