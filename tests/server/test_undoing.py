"""Whatever people do with an alert, the way back leads to where it stood."""

from __future__ import annotations

import pytest

from floatscope_server.telling.states import PEOPLE_EVENTS, Standing, after
from floatscope_server.telling.undoing import Step, way_back
from tests.server.test_alert_states import BEFORE

ACTIONS = [event for event in PEOPLE_EVENTS if event != "note"]


@pytest.mark.parametrize("covered", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("name", "is_past"),
    [(name, past) for name in BEFORE for past in (False, True) if past or name != "recovered"],
)
def test_every_action_on_every_state_is_taken_back(
    name: str, action: str, covered: bool, is_past: bool
) -> None:
    before = BEFORE[name]
    now = after(before, action, covered=covered, is_past=is_past)
    way = way_back(before, now, covered=covered, is_past=is_past)
    fires = {"firing", "silenced"}
    assert bool(way) == (
        now.rejected != before.rejected or (now.state != before.state and {now.state, before.state} != fires)
    )
    at = now
    for step in way:
        assert at.state == step.expected
        at = after(at, step.event, covered=covered, is_past=is_past)
    open_one = "silenced" if covered else "firing"
    wanted = open_one if way and before.state in fires else before.state
    assert (at.state if way else before.state, at.rejected) == (wanted, before.rejected)


def test_an_acknowledged_alert_whose_run_has_recovered_takes_three_steps() -> None:
    known = Standing("acknowledged", "warning", settled="warning")
    closed = after(known, "not_the_cause", is_past=True)
    assert way_back(known, closed, covered=False, is_past=True) == (
        Step("reopen", "resolved"),
        Step("reopen", "recovered"),
        Step("acknowledge", "firing"),
    )
