"""The tables of the benchmark: what closed, and what other sets of layers would have done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.advisor.chance import Measured, Spread, closed_pct, interval, measured, spread_of
from benchmarks.advisor.checking import Outcome
from benchmarks.advisor.smallest import OtherSet

TARGET_PCT = 80.0


@dataclass(frozen=True)
class Chance:
    """Spread between twins of BF16 runs, faulty runs and runs with an advice, pooled over the scenarios."""

    base: Spread
    before: Spread
    after: Spread


@dataclass(frozen=True)
class Row:
    """One run. closed: None without a gap beyond chance, or where the advice changes nothing."""

    found: Outcome
    before: Measured
    after: Measured | None
    closed: float | None


def chance_of(outcomes: Sequence[Outcome]) -> Chance:
    """From the outcomes that have twins. Healthy FP8 runs have none."""
    faulty = [o for o in outcomes if o.scenario.family != "healthy"]
    base = {(o.scenario.base, o.seed): o.base for o in outcomes}
    return Chance(
        spread_of(list(base.values())),
        spread_of([o.before for o in faulty]),
        spread_of([o.after for o in faulty if o.after]),
    )


def row_of(found: Outcome, chance: Chance) -> Row:
    """The gaps of an outcome, and the share that closed."""
    before = measured(found.before, found.base, chance.before, chance.base)
    after = measured(found.after, found.base, chance.after, chance.base) if found.after else None
    return Row(found, before, after, None if after is None else closed_pct(before, after))


def line(row: Row) -> str:
    """One run in a line."""
    found = row.found
    out = f"seed {found.seed:3d} {found.scenario.name:<16} {found.advice['decision']:<12}"
    out += f" gap {row.before.nats:+.4f}"
    if row.after is not None:
        told = found.advice["predicted"]["gap_closed_pct"]
        out += f" -> {row.after.nats:+.4f}, " + (
            "no measurable gap" if row.closed is None else f"{row.closed:.0f} % closed"
        )
        out += "" if told is None else f" (predicted {told:.0f} %)"
    if found.scenario.bad and "--recipe" not in found.applied:
        out += (
            f"; of {len(found.scenario.bad)} bad layers {len(found.missed)} missed, {len(found.spare)} spare"
        )
    if found.rounds > 1:
        out += f"; asked {found.rounds} times"
    return f"{out}; {found.applied or 'nothing changes'}"


def closing(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """A line a scenario and one of the count, and whether the targets are met: 80 % of each measurable gap in
    the mean, healthy runs kept. A scenario without a measurable gap meets none and misses none.
    """
    by: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by[row.found.scenario.name].append(row)
    lines = [
        f"{'scenario':<16} {'family':<9} runs  gap before   after  "
        " closed (95 % interval)   lowest  missed spare"
    ]
    verdicts: list[bool | None] = []
    for name, group in by.items():
        met, told = _verdict(group)
        verdicts.append(met)
        missed, spare = (sum(len(getattr(r.found, k)) for r in group) for k in ("missed", "spare"))
        after = [r.after.nats for r in group if r.after is not None]
        shown = f"{sum(after) / len(after):+8.4f}" if after else f"{'-':>8}"
        lines.append(
            f"{name:<16} {group[0].found.scenario.family:<9} {len(group):4d}  "
            f"{sum(r.before.nats for r in group) / len(group):+10.4f} {shown}  {told:<32} "
            f"{missed:5d} {spare:5d}"
        )
    met_count, missed_count, open_count = (verdicts.count(kind) for kind in (True, False, None))
    lines.append(f"targets: {met_count} met, {missed_count} missed, {open_count} without a measurable gap")
    return lines, met_count > 0 and not missed_count


def _verdict(group: Sequence[Row]) -> tuple[bool | None, str]:
    """Whether a scenario's target is met, None if that cannot be told, and how it went."""
    decisions = [r.found.advice["decision"] for r in group]
    if group[0].found.scenario.family == "healthy":
        kept = decisions.count("keep_fp8")
        return kept == len(group), f"kept {kept}/{len(group)}"
    changed = [r for r in group if r.after is not None]
    if not changed:
        said = decisions.count("not_layers")
        return said == len(group), f"said not to be layers {said}/{len(group)}"
    shares = [r.closed for r in changed if r.closed is not None]
    if not shares:
        return None, "no measurable gap"
    mean, low, high = interval(shares)
    told = f"{mean:4.0f} %  ({low:.0f} to {high:.0f} %)".ljust(24) + f" {min(shares):4.0f} %"
    if len(shares) < len(group):
        told += f", {len(group) - len(shares)} without a measurable gap or an advice"
    return len(changed) == len(group) and mean >= TARGET_PCT, told


def predictions(rows: Sequence[Row]) -> str:
    """How often what closed lay in the interval that the advice printed."""
    told = [
        r for r in rows if r.closed is not None and r.found.advice["predicted"]["gap_closed_pct"] is not None
    ]
    inside = sum(
        r.found.advice["predicted"]["gap_closed_low_pct"] <= (r.closed or 0.0)
        <= r.found.advice["predicted"]["gap_closed_high_pct"]
        for r in told
    )  # fmt: skip
    errors = [(r.closed or 0.0) - r.found.advice["predicted"]["gap_closed_pct"] for r in told]
    span = f", off by {min(errors):+.0f} to {max(errors):+.0f} points" if errors else ""
    return f"predicted share: {inside} of {len(told)} inside the interval that was printed{span}"


def other_sets(
    rows: Mapping[str, Row], less: Mapping[str, Sequence[OtherSet]], drawn: Mapping[str, Sequence[OtherSet]]
) -> Iterator[str]:
    """A line a scenario: the advised set, one layer less, and random sets as large. Shares of the gap."""
    yield f"{'scenario':<16} moved  advised  one less: mean (best)  still beyond  random: mean (best)"
    for name, row in rows.items():
        base = sum(row.found.base) / len(row.found.base)

        def share(one: OtherSet, base: float = base, gap: float = row.before.nats) -> float:
            return 100.0 * (1.0 - (one.loss - base) / gap)

        fewer, random = ([share(one) for one in sets.get(name, ())] for sets in (less, drawn))
        beyond = sum(bool(one.still_beyond) for one in less.get(name, ()))
        yield (
            f"{name:<16} {len(row.found.moved):5d}  {row.closed or 0.0:5.0f} %  {_mean_best(fewer):<21}"
            f"  {f'{beyond} of {len(fewer)}':<12}  {_mean_best(random)}"
        )


def _mean_best(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.0f} % ({max(shares):.0f} %)" if shares else "-"
