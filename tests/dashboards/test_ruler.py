"""The range ruler: shares of histograms worked out by hand, what a row says, and where things are drawn."""

from __future__ import annotations

import math

import pytest

from floatscope.protocol.formats import FORMATS
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.pictures_view import RulerView, TensorAt
from floatscope_dashboards.ruler import LOWEST, Ruler, RulerRow, headroom, quantiles, ruler, share_above

SAY = Pages().say("en")
E4M3_TOP = math.log2(448)


def counts(**of_exponent: int) -> tuple[int, ...]:
    """A histogram from "e_m3=5" (exponent -3) and "e2=7"."""
    out = [0] * 64
    for name, count in of_exponent.items():
        exponent = int(name.removeprefix("e").replace("_m", "-"))
        out[exponent - LOWEST] = count
    return tuple(out)


def shown(*tensors: TensorAt, step: int = 10, **more: object) -> Ruler:
    view = RulerView(step, step, tensors, len(tensors), scaled=len(tensors))
    return ruler(view, SAY, run="r1")


def only(tensor: TensorAt) -> RulerRow:
    return shown(tensor).groups[0].rows[0]


def test_quantiles_lie_evenly_inside_a_binade() -> None:
    four = counts(e0=100, e1=100, e2=100, e3=100)
    assert quantiles(four, (0.25, 0.5, 0.75, 1.0)) == pytest.approx((1.0, 2.0, 3.0, 4.0))
    assert quantiles(counts(e_m3=10), (0.5,)) == pytest.approx((-2.5,))
    assert quantiles(counts(e_m40=1, e23=1), (0.25, 0.75)) == pytest.approx((-39.5, 23.5))


def test_nothing_counted_has_no_quantiles() -> None:
    assert quantiles((0,) * 64, (0.5,)) == ()
    assert share_above((0,) * 64, 0.0) == 0.0


def test_the_clipped_share_of_a_histogram_is_that_of_the_cast() -> None:
    """blocks.0.attn.qkv/input of a run whose scale stood still: amax 12.9, scale 116.6, 34.09 % measured."""
    seen = counts(
        e_m12=7,
        e_m11=1,
        e_m8=53,
        e_m7=11,
        e_m6=86,
        e_m5=146,
        e_m4=443,
        e_m3=602,
        e_m2=1059,
        e_m1=2452,
        e0=4224,
        e1=7534,
        e2=7035,
        e3=923,
    )
    limit = math.log2(448 / 116.5971450805664)
    assert share_above(seen, limit) == pytest.approx(34.08610153198242, abs=0.3)


def test_a_histogram_is_moved_by_the_scale_of_its_step() -> None:
    """Values around 1 with scale 2**5 are drawn where those around 32 are without."""
    moved = only(
        TensorAt(
            "l.0/input",
            "e4m3",
            amax=2.0,
            scale=32.0,
            counts=counts(e0=100),
            sampled=10,
            sampled_scale=32.0,
        )
    )
    plain = only(
        TensorAt(
            "l.0/input",
            "e4m3",
            amax=64.0,
            scale=1.0,
            counts=counts(e5=100),
            sampled=10,
            sampled_scale=1.0,
        )
    )
    assert (moved.line, moved.bar, moved.amax) == (plain.line, plain.bar, plain.amax)
    assert moved.amax is not None


def test_what_clips_is_drawn_beyond_the_largest_value() -> None:
    row = only(
        TensorAt(
            "l.23.mlp.fc2/input",
            "e4m3",
            amax=1000.0,
            scale=1.0,
            overflow_pct=3.2,
            underflow_pct=9.0,
            counts=counts(e0=10, e9=10),
            sampled=10,
            sampled_scale=1.0,
        )
    )
    assert (row.words, row.kind) == ("3.2\u202f% clip", "crit")
    assert row.label == "23.mlp.fc2"
    assert row.amax_over
    assert row.over is not None
    assert row.line is not None
    assert row.over[0] == row.line[1]
    group = shown(TensorAt("l.0/input", "e4m3", amax=1.0, scale=1.0)).groups[0]
    assert group.top == row.over[0]


@pytest.mark.parametrize(
    ("tensor", "words", "kind"),
    [
        (TensorAt("l/input", "e4m3", amax=448 / 2**3.6, scale=1.0, overflow_pct=0.0), "3.6 free", ""),
        (TensorAt("l/input", "e4m3", amax=448.1, scale=1.0, overflow_pct=0.01), "0.0 free", ""),
        (TensorAt("l/input", "e4m3", amax=900.0, scale=1.0), "1.0 over", "crit"),
        (
            TensorAt("l/grad_output", "e5m2", amax=1.0, scale=1.0, underflow_pct=6.8),
            "6.8\u202f% lost",
            "warn",
        ),
        (TensorAt("l/input", "e4m3", amax=0.0, scale=1.0), "all zero", ""),
        (TensorAt("l/input", "e4m3", amax=1.0, scale=1.0, nan=96.0), "96 NaN", "nan"),
        (TensorAt("l/input", "e4m3", amax=1.0, scale=1.0, inf=2.0), "2 Inf", "nan"),
        (TensorAt("l/input", "e4m3", amax=1.0, scale=math.inf), "scale Inf", "nan"),
        (TensorAt("l/input", "e4m3", amax=math.nan, scale=1.0), "amax NaN", "nan"),
        (TensorAt("l/input", "e4m3", amax=1.0, scale=0.0), "scale 0", "crit"),
        (TensorAt("l/input", "e4m3", amax=1.0), "no scale logged", ""),
    ],
)
def test_what_a_row_says_at_its_end(tensor: TensorAt, words: str, kind: str) -> None:
    row = only(tensor)
    assert (row.words, row.kind) == (words, kind)


@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, -1.0, None])
def test_without_a_usable_scale_nothing_is_drawn(scale: float | None) -> None:
    tensor = TensorAt(
        "l/input", "e4m3", amax=1.0, scale=scale, counts=counts(e0=9), sampled=10, sampled_scale=scale
    )
    row = only(tensor)
    assert row.bar is None
    assert row.line is None


def test_a_tensor_of_zeros_and_nan_has_no_bar() -> None:
    row = only(
        TensorAt("l/input", "e4m3", amax=0.0, scale=1.0, counts=(0,) * 64, sampled=10, sampled_scale=1.0)
    )
    assert (row.bar, row.amax) == (None, None)


def test_the_grid_comes_from_the_format_table() -> None:
    card = shown(
        TensorAt("l/input", "e4m3", amax=1.0, scale=1.0),
        TensorAt("l/grad_output", "e5m2", amax=1.0, scale=1.0),
    )
    forward, backward = card.groups
    assert (forward.title, backward.title) == ("Forward, E4M3", "Backward, E5M2")
    assert (forward.top_words, backward.top_words) == ("max 448", "max 57,344")
    low = math.log2(FORMATS["e5m2"].min_subnormal) - 2.2
    high = math.log2(FORMATS["e5m2"].max_finite) + 2.2
    assert forward.top == pytest.approx(100 * (E4M3_TOP - low) / (high - low), abs=0.01)
    assert forward.zero == pytest.approx(100 * (-9 - low) / (high - low), abs=0.01)
    assert forward.sub == pytest.approx(100 * (-6 - low) / (high - low), abs=0.01)
    assert {power for _x, power in card.ticks} == {-16, -12, -8, -4, 0, 4, 8, 12, 16}


def test_blocks_with_scales_of_their_own_are_told_and_not_drawn() -> None:
    tensor = TensorAt(
        "l/input",
        "mxfp8_e4m3",
        amax=8.0,
        amax_min_block=0.5,
        underflow_pct=7.0,
        counts=counts(e0=9),
        sampled=10,
    )
    group = shown(tensor).groups[0]
    assert group.title == "Forward, MXFP8 E4M3"
    assert "32 values has a scale of its own" in group.note
    row = group.rows[0]
    assert row.bar is None
    assert row.words == "7.0\u202f% lost"
    assert "blocks differ by 4.0 binades" in row.told


def test_bf16_alone_is_placed_without_limits() -> None:
    view = RulerView(3, 3, (TensorAt("l/input", "bf16", amax=2.0, counts=counts(e0=9), sampled=3),), 1,
                     plain=(("bf16", 1),))  # fmt: skip
    card = ruler(view, SAY, run="r1")
    group = card.groups[0]
    assert (group.zero, group.top) == (None, None)
    assert group.rows[0].bar is not None
    assert group.rows[0].words == "127.0 free"
    assert card.sub == "at step 3"
    assert {power for _x, power in card.ticks} == {-24, -16, -8, 0, 8, 16}


def test_it_says_of_which_step_histograms_are() -> None:
    tensor = TensorAt(
        "l/input", "e4m3", amax=1.0, scale=1.0, counts=counts(e0=9), sampled=8, sampled_scale=1.0
    )
    assert "Histograms were sampled at step 8." in shown(tensor).notes
    assert not any("sampled at" in note for note in shown(tensor, step=8).notes)
    none = shown(TensorAt("l/input", "e4m3", amax=1.0, scale=1.0))
    assert any("stats_every" in note for note in none.notes)


def test_a_name_of_markup_stays_text_in_the_link() -> None:
    row = only(TensorAt('<b>"x"/input', "e4m3", amax=1.0, scale=1.0))
    assert row.href == "/runs/r1/tensors/%3Cb%3E%22x%22%2Finput?at=10"


def test_headroom_is_the_engines() -> None:
    assert headroom(TensorAt("l/input", "e4m3", amax=3.5, scale=64.0)) == pytest.approx(1.0)
    assert headroom(TensorAt("l/input", "", amax=3.5, scale=64.0)) is None
    assert headroom(TensorAt("l/input", "e4m3", amax=3.5)) is None
