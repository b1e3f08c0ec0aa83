"""What stands beside the loss chart: the evidence, and below it as many events as there is room for.

Heights are in CSS pixels of a wide window, about what run.css makes of them. An estimate is enough: a column
longer than the chart by a little stretches the chart's card, a shorter one leaves a little room.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatscope_dashboards.events_log import EventLine
from floatscope_dashboards.evidence import EvidenceCard

CHART_PX, PANEL_PX = 590, 80
"""The card of the loss chart with one panel below the loss, and what the panel of the evidence adds."""
HEAD_PX, GAP_PX = 66, 16
LINE_PX = 20
ITEM_PX, FOLDED_PX, EVENT_PX = 40, 40, 37
"""An item of one line: of the evidence, of what is folded, of the events."""
CHARACTERS = 42
"""Of a line in the column."""
LEAST_EVENTS = 3
"""With room for fewer than these (or than there are) the events stand below, where they have a row."""
SLACK_PX = 60


def events_beside(card: EvidenceCard, events: Sequence[EventLine], *, has_panel: bool, most: int) -> int:
    """How many of the events are shown beside the chart, the rest folded; 0: they do not fit there."""
    room = CHART_PX + (PANEL_PX if has_panel else 0) + SLACK_PX - evidence_px(card) - GAP_PX - HEAD_PX
    if len(events) > most:
        room -= FOLDED_PX
    shown = 0
    for item in events[:most]:
        room -= EVENT_PX + LINE_PX * _more_lines(f"{item.text}{item.note}")
        if room < 0:
            break
        shown += 1
    return shown if shown >= min(LEAST_EVENTS, len(events)) else 0


def evidence_px(card: EvidenceCard) -> int:
    """The height of the evidence card with nothing unfolded."""
    height = HEAD_PX + sum(
        ITEM_PX + LINE_PX * (_more_lines(f"{item.label} {item.value} {item.expected}") + bool(item.tensor))
        for item in card.evidence
    )
    if card.alternatives:
        height += ITEM_PX + sum(ITEM_PX + LINE_PX * _more_lines(item.against) for item in card.alternatives)
    return height + FOLDED_PX * sum(map(bool, (card.clean, card.unable, card.partly)))


def _more_lines(text: str) -> int:
    return max(0, len(text) - 1) // CHARACTERS
