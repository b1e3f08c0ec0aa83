"""Tables of an evaluation, and the list of what was wrong for whoever tunes the diagnosis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.diagnosis.metrics import (
    Share,
    confusion,
    f1_by_cause,
    false_alarms,
    macro_f1,
    median_of,
    onset_early,
    onset_right,
    share,
)
from benchmarks.diagnosis.outcome import Finding, Judged

NAME_WIDTH = 46


def table(title: str, runs: Sequence[Judged]) -> Iterator[str]:
    """The totals of a split, line by line."""
    faulty = [r for r in runs if r.cause != "healthy"]
    alarms = false_alarms(runs)
    yield f"== {title}: {len(runs)} runs, {len(faulty)} with a fault"
    yield _line("healthy runs with an alarm", f"{alarms.runs_with_alarm}/{alarms.runs}")
    yield _line("healthy steps", f"{alarms.steps:,}")
    yield _line("false alarms on them", f"{alarms.alarms}")
    yield _line("  per million healthy steps", _number(alarms.per_million))
    yield _line("  95 % upper bound (3/n without an alarm)", _number(alarms.bound_per_million))
    yield _line(
        "  on resampled healthy steps",
        f"{alarms.resampled_alarms} on {alarms.resampled_steps:,}",
    )
    if not faulty:
        return
    yield _line("family right (all runs)", _share(share([r.family_ok for r in runs])))
    yield _line("cause right (all runs)", _share(share([r.cause_ok for r in runs])))
    yield _line("family right (faulty runs)", _share(share([r.family_ok for r in faulty])))
    yield _line("cause right (faulty runs)", _share(share([r.cause_ok for r in faulty])))
    score = macro_f1(runs)
    yield _line("cause macro-F1", "-" if score is None else f"{score:.3f}")
    yield _line("kind right (where the cause is)", _share(share([r.kind_ok for r in faulty])))
    yield _line("detected in time", _share(share([r.detected for r in faulty])))
    yield _line("onset within 2 steps (abrupt, noticed)", _share(onset_right(faulty)))
    yield _line(
        "median distance of the onset (noticed), steps",
        _number(median_of([None if r.onset_error is None else abs(r.onset_error) for r in faulty])),
    )
    yield _line("onset more than 5 steps early", _share(onset_early(faulty)))
    yield _line(
        "median delay (abrupt, noticed), steps", _number(median_of([r.delay for r in faulty if r.abrupt]))
    )
    yield _line("first layer right", _share(share([r.layer_ok for r in faulty])))
    yield _line("tensor right", _share(share([r.tensor_ok for r in faulty])))
    leads = [r.lead for r in faulty if r.lead is not None]
    yield _line("alarm before the loss moves by 1 % (noticed)", _share(share([lead > 0 for lead in leads])))
    yield _line("  loss never moves while watched", f"{sum(math.isinf(lead) for lead in leads)}")
    finite = [lead for lead in leads if math.isfinite(lead)]
    yield _line("  median lead where it does, steps", _number(median_of(finite)))
    yield _line("faults in no recorded number", f"{sum(not r.visible for r in faulty)}")


def confusion_table(runs: Sequence[Judged]) -> Iterator[str]:
    """Per true cause what was said; a star marks an accepted answer."""
    scores = f1_by_cause(runs)
    counts = confusion(runs)
    yield "   true cause, F1, what was said (* accepted)"
    for cause in sorted(counts, key=lambda c: scores[c]):
        said = ", ".join(f"{name} {count}" for name, count in Counter(counts[cause]).most_common())
        yield f"   {cause:<28}{scores[cause]:5.2f}  {said}"


def by_group(runs: Sequence[Judged], *, of: str) -> Iterator[str]:
    """False alarms and accuracy per recipe or flavour."""
    yield f"   per {of}: healthy steps, false alarms, cause right"
    for name in sorted({str(getattr(r, of)) for r in runs}):
        part = [r for r in runs if getattr(r, of) == name]
        alarms = false_alarms(part)
        right = _share(share([r.cause_ok for r in part if r.cause != "healthy"]))
        yield f"   {name:<20}{alarms.steps:>9,}{alarms.alarms:>6}   {right}"


def mistakes(runs: Sequence[Judged]) -> Iterator[str]:
    """False alarms first, then wrong causes, run by run. For the tuning split only."""
    wrong = [(r, f) for r in runs for f in r.false_alarms]
    kinds = Counter((str(f["cause"]), str(f["rule"])) for _, f in wrong)
    yield f"## False alarms: {len(wrong)}"
    yield from (f"- {count} x {cause} ({rule})" for (cause, rule), count in kinds.most_common())
    for run, finding in wrong:
        yield f"\n{run.run} [{run.case}, {run.flavour}]"
        yield f"    {describe(finding)}"
    missed = [r for r in runs if r.cause != "healthy" and not r.cause_ok]
    yield f"\n## Wrong causes: {len(missed)} of {sum(r.cause != 'healthy' for r in runs)}"
    for run in sorted(missed, key=lambda r: (r.cause, r.case, r.run)):
        yield f"\n{run.run}\n    true {run.cause} ({run.case}), said {run.predicted}"
        yield from (f"    {describe(f)}" for f in run.alarms[:3])
    yield "\n## Right cause, wrong place or time"
    for run in runs:
        if run.cause == "healthy" or not run.cause_ok or not run.alarms:
            continue
        faults = [
            *(["layer"] if run.layer_ok is False else []),
            *(["tensor"] if run.tensor_ok is False else []),
            *(["kind"] if run.kind_ok is False else []),
            *([f"onset {run.onset_error:+d}"] if run.onset_error and abs(run.onset_error) > 2 else []),
            *([f"late, delay {run.delay}"] if run.detected is False else []),
        ]
        if faults:
            yield f"\n{run.run}\n    {', '.join(faults)}\n    {describe(run.alarms[0])}"


def describe(finding: Finding) -> str:
    """A finding in one line: rule, cause, steps, place, evidence."""
    kind = f"/{finding['kind']}" if finding["kind"] else ""
    evidence = "; ".join(
        f"{e['signal']} {e['tensor'] or ''} at {e['step']}: {e['value']} (expected {e['expected']})"
        for e in finding["evidence"][:3]
    )
    return (
        f"{finding['rule']} {finding['cause']}{kind} {finding['severity']} {finding['confidence']}, onset "
        f"{finding['onset_step']}, detected {finding['detected_step']}, "
        f"{finding['tensor'] or finding['layer'] or '-'}, affects {finding['affected_tensors']} | {evidence}"
    )


def _line(name: str, value: str) -> str:
    return f"   {name:<{NAME_WIDTH}}{value}"


def _share(part: Share) -> str:
    return "-" if part.percent is None else f"{part.percent:5.1f} %   {part.right}/{part.total}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
