"""Cases drawn beside the others, so that these stay where they are: rarer kinds, and several ranks."""

from __future__ import annotations

from benchmarks.diagnosis.cases import Case, inside
from benchmarks.diagnosis.rank_views import (
    gradient_out_of_line,
    same_everywhere,
    scales_of_own_amax,
    weights_part,
)
from benchmarks.diagnosis.scale_copies import FeaturesTimes, HistoryTwiceAStep, WeightCopyStale
from benchmarks.diagnosis.state_faults import GradientRace, GradientsInE5M2

_STATE, _RANKS = "scale_state_fault", "rank_divergence"
_UNSURE = ("undetermined", "op_kernel_fault", _RANKS)

LATER_CASES: tuple[Case, ...] = (
    Case("history-twice-a-step", _STATE, ("recompute",), on="window", slow=33, within=24, horizon=90,
         build=lambda p: HistoryTwiceAStep(p.training, p.scene, step=p.step)),
    inside(Case("weight-copy-stale", _STATE, ("stale_fp8_copy",), on="fp8", slow=20, within=30, horizon=90,
                when="early",
                build=lambda p: WeightCopyStale(p.scene, step=p.step, tensor=f"{p.layer}/weight")), "weight"),
    Case("features-x1e4", "invalid_input", ("out_of_range_values",),
         also=("bad_batch", "activation_outlier_growth", "stale_scale_saturation"),
         layers=("tok_emb",), tensors=("tok_emb/output",),
         build=lambda p: FeaturesTimes(p.scene, step=p.step, factor=1e4)),
    Case("features-x1e3", "invalid_input", ("out_of_range_values",), held_back=True,
         also=("bad_batch", "activation_outlier_growth", "stale_scale_saturation"),
         layers=("tok_emb",), tensors=("tok_emb/output",),
         build=lambda p: FeaturesTimes(p.scene, step=p.step, factor=1e3)),
    Case("gradients-summed-in-e5m2-128", "accumulation_precision",
         also=("undetermined", "gradient_underflow"), slow=3, within=12, held_back=True,
         build=lambda p: GradientsInE5M2(p.training, step=p.step, parts=128)),
    Case("gradient-race-half", "comm_overlap_race", also=_UNSURE, slow=4, within=26, horizon=70,
         held_back=True, build=lambda p: GradientRace(p.scene, step=p.step, share=0.5)),
    Case("rank-gradient-x12", _RANKS, slow=1, within=8, ranks=gradient_out_of_line(times=12.0)),
    Case("rank-gradient-x40", _RANKS, slow=1, within=8, held_back=True,
         ranks=gradient_out_of_line(times=40.0)),
    Case("rank-weights-part-0.3-pct", _RANKS, slow=2, within=8, ranks=weights_part(per_step=3e-3)),
    Case("rank-weights-part-1-pct", _RANKS, slow=2, within=8, held_back=True,
         ranks=weights_part(per_step=1e-2)),
    Case("amax-not-reduced", _STATE, ("reduction_group",), on="delayed", slow=3, within=8,
         ranks=scales_of_own_amax),
)  # fmt: skip

LATER_CONTROLS: tuple[Case, ...] = (
    Case("several-ranks", "healthy", horizon=120, ranks=same_everywhere),
)  # fmt: skip
