"""When a message that did not arrive is tried again, and when it is given up."""

from __future__ import annotations

RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)
LATER_RETRY_S = 300.0
GIVE_UP_S = 86_400.0
GIVE_UP_TRIES = 24  # and no sooner, so that a clock that jumps a day ahead costs no message
REFUSED_RETRY_S = (30.0, 300.0, 1800.0)
"""After an answer such as 404 it takes somebody to change something: a few tries over half an hour, so that a
slip of the receiver is survived, then the message is dead and shown as such."""
JITTER = 0.2  # of each wait, added by chance, so that many servers do not return at once
LONGEST_WAIT_S = 3600.0 * (1 + JITTER)  # that a Retry-After can make


def wait_s(
    *, tries: int, refusals: int, age_s: float, refused: bool, retry_after: float | None, chance: float
) -> float | None:
    """Seconds until the next try, or None: it is given up.

    tries, refusals: attempts in vain so far, and those of them that were refused, with this one.  age_s:
    since the message was made.  chance: 0 to 1.
    """
    if refused:
        if refusals > len(REFUSED_RETRY_S):
            return None
        wait = REFUSED_RETRY_S[refusals - 1]
    else:
        if age_s >= GIVE_UP_S and tries >= GIVE_UP_TRIES:
            return None
        wait = RETRY_S[tries - 1] if tries <= len(RETRY_S) else LATER_RETRY_S
    return min(max(wait, retry_after or 0.0) * (1 + JITTER * chance), LONGEST_WAIT_S)
