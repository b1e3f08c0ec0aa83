"""A plain loop that does not want to call ``monitor.step``.

    monitor = floatscope.watch(model, optimizer, run="mine")
    auto_step(monitor, optimizer)
    for batch in loader:
        loss = loss_of(model, batch)
        loss.backward()
        monitor.log({"loss": loss})
        optimizer.step()          # ends the step

There is no ``with monitor.step():``. A step ends at one point, behind the optimizer's, and its scalars are
known only there: ``monitor.step(loss=loss)`` is that point, and ``auto_step`` puts it there by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from floatscope.guard import Guard
from floatscope.integrations.wrapping import wrap
from floatscope.monitor import Monitor


def auto_step(monitor: Monitor, optimizer: Any, *, scaler: Any = None) -> Callable[[], None]:
    """Ends a step of the record after each ``optimizer.step()``, with the learning rate of its first group.

    optimizer: a torch optimizer, the last one stepped where there are several; what is logged before it
    belongs to the step, what is logged after it to the next.  scaler: a GradScaler; steps then end with its
    ``update()``, so that those it skips are recorded too.
    Returns what takes it off; the end of the run does so as well. Raises TypeError for what has no hooks.
    """
    if not hasattr(optimizer, "register_step_post_hook"):
        raise TypeError(
            f"auto_step() got a {type(optimizer).__name__}, which has no step hooks; expected a torch "
            "optimizer"
        )
    guard = Guard(speaks=monitor.rank == 0)
    area = guard.area("automatic steps", loses="the record of some steps")

    def end(*args: Any) -> None:
        if area.tripped:
            return
        with area:
            groups = optimizer.param_groups
            monitor.step(lr=groups[0].get("lr") if groups else None)

    if scaler is not None:
        undo = wrap(scaler, "update", area=area, after=end)
    else:
        undo = optimizer.register_step_post_hook(end).remove
    monitor.at_end(undo)
    return undo
