"""The sentences of a report that the terminal, the page and the summary share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope_diagnostics.diagnose import Diagnosed
from floatscope_diagnostics.readers.formats import readers
from floatscope_diagnostics.reports.numbers import count, number
from floatscope_diagnostics.reports.terminal import plain
from floatscope_diagnostics.rule import FAMILY_OF, Evidence, Finding
from floatscope_diagnostics.verdict import Judged, Source, Verdict

SEVERITY_ORDER = {"critical": 0, "warning": 1, "info": 2}
MOST_MAPPED = 8
MOST_NEEDS = 4
# A sentence ends at a full stop before a capital; "e.g." and numbers such as "1.0. If" stay whole enough.
_SENTENCE_END = re.compile(r"(?<=[\w)\]'\"%])\.\s+(?=[A-Z])")


def names_of(done: Sequence[Diagnosed]) -> list[str]:
    """What each run is called: its name or its path, with its number where an input holds several."""
    paths = Counter(d.verdict.source.path for d in done)
    origins = {(d.run.name, d.verdict.source.path) for d in done}
    shared = Counter(name for name, _ in origins)  # of how many inputs a name is
    names = []
    for d in done:
        path = d.verdict.source.path or "run"
        name = d.run.name or path
        if d.run.name and shared[d.run.name] > 1:
            name += f" ({path})"
        of = paths[d.verdict.source.path]
        names.append(plain(name + (f", run {d.number} of {of}" if of > 1 else "")))
    return names


def shown(verdict: Verdict) -> list[Judged]:
    """Findings that stand, worst and surest first."""
    stand = [j for j in verdict.findings if j.state != "replaced"]
    return sorted(stand, key=lambda j: (SEVERITY_ORDER[j.finding.severity], -j.finding.confidence))


def serious(verdict: Verdict) -> list[Judged]:
    """Those that are a warning or worse."""
    return [j for j in shown(verdict) if j.finding.severity != "info"]


def span(source: Source) -> str:
    """``1,200 steps (1 to 1,200), 48 tensors``."""
    if source.first_step is None:
        return "no steps"
    text = f"{count(source.steps, 'step')} ({source.first_step:,} to {source.last_step:,})"
    if source.tensors:
        text += f", {count(source.tensors, 'tensor')}"
    return text


def recipe_of(d: Diagnosed) -> str:
    """The precision recipe in a few words, empty if none is declared."""
    recipe = d.run.recipe
    words = [plain(str(recipe[k])) for k in ("name", "fp8_format", "amax_compute_algo") if k in recipe]
    if "amax_history_len" in recipe:
        words.append(f"history {plain(str(recipe['amax_history_len']))}")
    return ", ".join(words)


def format_title(source: Source) -> str:
    """The format's title for people."""
    return next((r.title for r in readers() if r.name == source.format), source.format)


def sure(finding: Finding) -> str:
    return "cause open" if finding.cause == "undetermined" else f"{100 * finding.confidence:.0f} % sure"


def since(finding: Finding) -> str:
    """``step 412 to 480``, or ``step 412``."""
    if finding.resolved is not None and finding.resolved - 1 > finding.onset:
        return f"step {finding.onset:,} to {finding.resolved - 1:,}"
    return f"step {finding.onset:,}"


def where(finding: Finding) -> str:
    """The first tensor, how many more, and the rank unless it is the first; empty if nothing is known."""
    rank = f"rank {finding.rank}" if finding.rank is not None and finding.rank > 0 else ""
    if not finding.tensors:
        return rank
    more = max(finding.affected, len(finding.tensors)) - 1
    text = plain(finding.tensors[0]) + (f", then {count(more, 'more tensor')}" if more > 0 else "")
    return text + (f" ({finding.order})" if finding.order else "") + (f", {rank}" if rank else "")


def cause(finding: Finding) -> tuple[str, str]:
    """Cause with its kind, and family with the rule."""
    kind = f", {finding.kind}" if finding.kind else ""
    return f"{finding.cause}{kind}", f"{FAMILY_OF[finding.cause]}, {finding.rule}"


def measured(evidence: Evidence) -> str:
    """``overflow_pct 4.1 in layers.23.mlp.fc2/input``."""
    value = evidence.value
    text = plain(value) if isinstance(value, str) else number(value)
    at = f" in {plain(evidence.tensor)}" if evidence.tensor else ""
    return f"{plain(evidence.signal)} {text}{at}"


def others(finding: Finding) -> str:
    return ", ".join(f"{a.cause} {100 * a.confidence:.0f} %" for a in finding.alternatives)


def steps_of(text: str) -> list[str]:
    """A remedy sentence by sentence."""
    parts = [part.strip() for part in _SENTENCE_END.split(plain(text)) if part.strip()]
    return [part if part.endswith((".", "!", "?")) else part + "." for part in parts]


def settings_of(finding: Finding) -> list[tuple[str, str]]:
    """Settings by framework, without those that only say that there is none."""
    given = finding.remedy.settings.items()
    return [(k, plain(v)) for k, v in given if not v.startswith(("no setting", "not a scale problem"))]


@dataclass(frozen=True)
class Unchecked:
    """Rules that could not look, for one reason. needs: signals they lack, each with its rules."""

    why: str
    needs: dict[str, list[str]]

    @property
    def rules(self) -> list[str]:
        return sorted({rule for rules in self.needs.values() for rule in rules})

    def text(self, *, everything: bool) -> str:
        if everything or len(self.needs) <= MOST_NEEDS:
            return f"{self.why}: " + "; ".join(f"{n} ({', '.join(r)})" for n, r in self.needs.items())
        first = list(self.needs)[:MOST_NEEDS]
        more = len(self.needs) - len(first)
        return f"{self.why}: {'; '.join(first)} and {more} more ({count(len(self.rules), 'rule')})"


def not_checked(verdict: Verdict) -> list[Unchecked]:
    """By reason."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for entry in verdict.not_checked:
        for need in entry["needs"]:
            rules = reasons.setdefault(entry["why"], {}).setdefault(need, [])
            if entry["rule"] not in rules:
                rules.append(entry["rule"])
    return [Unchecked(why, needs) for why, needs in reasons.items()]


def understood(source: Source) -> list[str]:
    """How the file was read, beyond its format: names, lines that were passed over, remarks."""
    rows = []
    if source.mapping:
        pairs = [f"{plain(theirs)} as {ours}" for theirs, ours in source.mapping[:MOST_MAPPED]]
        more = len(source.mapping) - len(pairs)
        rows.append(", ".join(pairs) + (f" and {more} more" if more > 0 else ""))
    if source.skipped_lines:
        first = f"; the first: {plain(source.first_skipped)}" if source.first_skipped else ""
        rows.append(f"{count(source.skipped_lines, 'line')} not understood{first}")
    rows += [plain(note) for note in source.notes]
    return rows


def ending(d: Diagnosed) -> str:
    """How the run ended, if its log says so."""
    if d.run.status in (None, "running"):
        return ""
    reason = (d.run.reason or "").strip().splitlines()
    return f"{d.run.status}" + (f": {plain(reason[-1])}" if reason else "")
