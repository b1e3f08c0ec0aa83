"""What a recorder knows, as lines of a heading and a text, for the terminal and the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from floatscope.recorder_notes import BETWEEN, IN_STEP, Now
from floatscope_diagnostics.recorder.story import Story
from floatscope_diagnostics.reports.terminal import plain

STACK_LINES = 24  # of a traceback, the last ones; --json has all
_FAULT_LINES = 16
_PHASE = {
    IN_STEP: "forward, backward or the optimizer's step was under way",
    BETWEEN: "it had ended; the next batch had not been handed to the monitor",
}
_FRAME = re.compile(r"(Current thread|Thread) 0x")


def facts(story: Story) -> list[tuple[str, str]]:
    """Headings and texts, one line each."""
    out = [("Ended", f"{story.status}: {story.ended}" if story.ended != story.status else story.status)]
    now = story.now
    if now is None:
        out.append(("Last step", "not known: the slot of the step under way is damaged"))
    elif now.step is None:
        out.append(("Last step", f"none had begun; last sign of life {moment(now.time)}"))
    else:
        out.append(("Last step", f"step {now.step:,}: {_PHASE.get(now.phase, 'it had begun')}"))
        out.append(("Last sign", _sign(now)))
    if now is not None and now.data_id:
        out.append(("Last batch", now.data_id))
    if story.late is not None:
        first, last = story.late
        steps = f"step {last:,}" if first == last else f"steps {first:,} to {last:,}"
        text = f"{steps}: ended, but without a record; the values were on the device or in the queue"
        out.append(("Under way", text))
    recorded = "no step" if story.first is None else f"steps {story.first:,} to {story.last:,}"
    out.append(("Recorded", f"{recorded} ({story.steps:,})" if story.first is not None else recorded))
    recipe = story.info.recipe
    if recipe:
        short = [f"{key} {value}" for key, value in recipe.items() if key != "name" and _is_short(value)]
        named = [str(recipe["name"])] if "name" in recipe else []
        out.append(("Recipe", ", ".join((*named, *short[:12]))))
    if story.versions:
        out.append(("Versions", ", ".join(f"{key} {value}" for key, value in story.versions.items())))
    place = [story.host] if story.host else []
    place += [f"{key} {value}" for key, value in story.coordinates.items()]
    if place:
        out.append(("Place", ", ".join(place)))
    out += [("Damage", text) for text in story.damage]
    return [(head, plain(text)) for head, text in out]


def _is_short(value: object) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) < 60


def stack(story: Story) -> list[str]:
    """The last lines of the exception's traceback, or the fault handler's of the thread that died."""
    if story.ending is not None and story.ending.traceback:
        lines = story.ending.traceback.rstrip().splitlines()
        return [plain(line) for line in lines[-STACK_LINES:]]
    if not story.fault:
        return []
    lines = story.fault.splitlines()
    current = next((k for k, line in enumerate(lines) if line.startswith("Current thread")), None)
    if current is None:
        return [plain(line) for line in lines[:_FAULT_LINES]]
    body = [lines[current]]
    for line in lines[current + 1 :]:
        if not line.startswith("  "):
            break
        body.append(line)
    return [plain(line) for line in (lines[0], *body[:_FAULT_LINES])]


def title(story: Story) -> str:
    """``gpt-fp8, rank 3``."""
    name = story.info.name or story.run_id or "run"
    also = f" ({story.run_id})" if story.run_id and story.run_id != name else ""
    return plain(f"{name}{also}, rank {story.rank}")


def rank_line(story: Story) -> str:
    """One line for a rank among many."""
    step = "-" if story.now is None or story.now.step is None else f"{story.now.step:,}"
    phase = (
        ""
        if story.now is None
        else {IN_STEP: "in step", BETWEEN: "after step"}.get(story.now.phase, "before")
    )
    data = f"   batch {story.now.data_id}" if story.now is not None and story.now.data_id else ""
    return plain(f"rank {story.rank}   {phase} {step}   {story.status}: {story.ended}{data}")


def moment(seconds: float) -> str:
    """``2026-11-30 09:12:01 UTC``."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def many(stories: Sequence[Story]) -> Iterator[str]:
    """One line a rank, run by run; ranks that stand behind the first are what a hang looks like."""
    runs: dict[str, list[Story]] = {}
    for story in stories:
        runs.setdefault(story.run_id or story.path, []).append(story)
    for ranks in runs.values():
        if len(runs) > 1:
            yield plain(f"run {ranks[0].info.name or ranks[0].run_id or ranks[0].path}")
        yield from (rank_line(story) for story in ranks)
        steps = {s.now.step for s in ranks if s.now is not None and s.now.step is not None}
        if len(steps) > 1:
            apart = "1 step" if max(steps) - min(steps) == 1 else f"{max(steps) - min(steps):,} steps"
            yield f"the ranks are {apart} apart: those behind held the others up, or died first"


def _sign(now: Now) -> str:
    return f"{moment(now.time)}, as the {'step began' if now.phase == IN_STEP else 'step ended'}"
