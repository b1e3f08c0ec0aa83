"""What makes a prediction from a histogram doubtful, told from the stored statistics alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from floatscope_diagnostics.whatif.block_kinds import BlockKind, Blocks
from floatscope_diagnostics.whatif.density import Points
from floatscope_diagnostics.whatif.spread import ROW, Spread
from floatscope_diagnostics.whatif.tensor_model import BULK_WITHOUT

FEWEST = 1_000
CONCENTRATED = 0.5
_END_SHARE = 1e-3


@dataclass(frozen=True)
class Flag:
    """code: stable.  sentence: for a person."""

    code: str
    sentence: str


def flags_of(spread: Spread) -> tuple[Flag, ...]:
    """Everything that speaks against a prediction that can be made; see ``cannot`` for what prevents it."""
    out: list[Flag] = []
    n = spread.n
    if n < FEWEST:
        out.append(Flag("too_few", f"Only {n:,} non-zero values: shares and dB vary by chance."))
    out += _ends(spread, n)
    out += _other_step(spread)
    if spread.rows_every > 1:
        out.append(Flag("rows_sampled", f"Of the tensor's rows one in {spread.rows_every} was looked at."))
    return tuple(out)


def is_concentrated(points: Points) -> bool:
    """Whether a few elements hold most of the power, so that SQNR says little of the others."""
    return points.share_of_power(BULK_WITHOUT) > CONCENTRATED


def flags_of_points(points: Points, kinds: Mapping[int, BlockKind]) -> tuple[Flag, ...]:
    """The same from the distribution: power in few elements, blocks that are not alike.

    kinds: of the blocks that were asked for, by their size, ``ROW`` for rows.
    """
    out: list[Flag] = []
    if is_concentrated(points):
        share = points.share_of_power(BULK_WITHOUT)
        out.append(
            Flag(
                "power_concentrated",
                f"The {BULK_WITHOUT} largest elements hold {100 * share:.0f} % of the power: the SQNR says "
                "what becomes of them alone, and depends on their exact values, which no histogram knows. Go "
                "by underflow and by the SQNR of the bulk.",
            )
        )
    found: dict[Blocks, list[str]] = {}
    for size, kind in kinds.items():
        found.setdefault(kind.state, []).append(_said(size, kind))
    if "unlike" in found:
        out.append(
            Flag(
                "blocks_unlike",
                f"Large values keep together in some blocks ({'; '.join(found['unlike'])}): rows or regions "
                "have a size of their own, which the prediction takes into account, with larger errors.",
            )
        )
    if "even" in found:
        out.append(
            Flag(
                "blocks_even",
                f"Large values lie in the same places of every row ({'; '.join(found['even'])}), as "
                "outliers in fixed channels do.",
            )
        )
    if "unknown" in found:
        out.append(
            Flag(
                "assumes_blocks_alike",
                f"No spread of block amax was logged for {', '.join(found['unknown'])}: their "
                "figures assume blocks alike, and are wrong where rows have a size of their own.",
            )
        )
    return tuple(out)


def _said(size: int, kind: BlockKind) -> str:
    name = "rows" if size == ROW else f"blocks of {size}"
    told = [f"spread x{kind.ratio:.2f}"] if kind.ratio is not None else []
    told += [f"mean {kind.apart:+.2f} octaves"] if kind.apart is not None else []
    return f"{name}: {', '.join(told)}" if told else name


def _ends(spread: Spread, n: int) -> list[Flag]:
    out = []
    low, high = int(spread.counts[0]), int(spread.counts[-1])
    if low > _END_SHARE * n:
        out.append(
            Flag(
                "below_histogram",
                f"{100 * low / n:.1f} % of the non-zero values are counted at 2^-40 or below, where the "
                "histogram ends: how far below is not known, and underflow is a lower bound.",
            )
        )
    if high:
        out.append(
            Flag(
                "above_histogram",
                f"{high:,} values are counted at 2^23 or above, where the histogram ends.",
            )
        )
    return out


def _other_step(spread: Spread) -> list[Flag]:
    if spread.stats_step is not None and spread.step is not None and spread.stats_step != spread.step:
        return [
            Flag(
                "other_step",
                f"The histogram is of step {spread.step}, the other numbers are of step {spread.stats_step}.",
            )
        ]
    amax = spread.amax
    if amax is None:
        return [Flag("no_amax", "No amax was logged: the upper end of the highest bin stands for it.")]
    if not np.isfinite(amax) or amax <= 0 or spread.largest != amax:
        return [
            Flag(
                "amax_disagrees",
                f"The logged amax {amax:.4g} does not lie in the histogram's highest bin (values from "
                f"2^{spread.top_exponent}): the bin's upper end is used.",
            )
        ]
    return []
