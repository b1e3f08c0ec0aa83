"""What any text log may hold between its records: overflows of the loss scale, NaN told in words, and the
lines of a program that fails."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.piece import EVENT, Piece

REPEAT_LINES = 64  # ranks print the same event within so many lines
REPEAT_SCALE_S = 5.0  # a scale that fell can only fall from the same value again after hundreds of steps
REPEAT_S = 0.2
DAY_S = 86_400.0
MAX_TEXT_CHARS = 300

_MAYBE = re.compile(
    r"scal|nan|non-?finite|invalid loss|infinite|error|exception|traceback|killed|sig(?:term|kill|abrt|segv)"
    r"|signal|memory|nccl|watchdog|time limit|segmentation|core dumped|exit ?code|return code|interrupt",
    re.I,
)
_ATTEMPTED = re.compile(
    rf"attempted loss scale:\s{{0,4}}({NUMBER})(?:,? reducing to\s{{0,4}}({NUMBER}))?", re.I
)
_FROM_TO = re.compile(
    r"(?:reduc|increas|decreas|lower|rais)\w{1,4} (?:the |dynamic ){0,2}(?:loss|grad)[ _]scal(?:e|er)\b"
    rf".{{0,24}}?from\s{{0,4}}({NUMBER})\s{{1,4}}to\s{{1,4}}({NUMBER})",
    re.I,
)
_TO = re.compile(
    rf"(?:reduc|increas|decreas|lower|sett|rais)ing (?:the )?loss[ _]scale to:?\s{{0,4}}({NUMBER})", re.I
)
_MINIMUM = re.compile(rf"minimum loss scale reached \(({NUMBER})\)", re.I)
_NAN_LOSS = re.compile(
    r"\bloss(?: value)? (?:is|=|became|was|returned in .{1,40} is) ?(?:infinite or )?(?:nan|infinite)\b"
    r"|\bnan loss (?:during|detected|encountered|at|in)|\bnon-?finite loss\b|\bloss is not finite"
    r"|(?:found|detected|got|encountered) (?:a )?nan (?:in |as )?(?:the )?(?:local )?(?:forward )?loss"
    r"|\binvalid loss, terminating",
    re.I,
)
_NAN_GRAD = re.compile(
    r"\bgrad(?:ient)?s?[ _]?(?:norm|value)?s? (?:is|are|=|contains?|has) ?(?:a )?(?:nan|inf|non-?finite)\b"
    r"|(?:found|detected) (?:nan|inf)(?: or (?:nan|inf))? in (?:local )?(?:grad|the grad)",
    re.I,
)
_STEP = re.compile(r"\b(?:iteration|step|iter|update)\s?[=:#]?\s?(\d{1,15})\b", re.I)
_BAR = re.compile(r"(?<![\d/.])(\d{1,12})/(\d{1,12}) \[")
_TIME = re.compile(r"\b(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_FAILURE = re.compile(
    r"^\s{0,8}(?:\[rank\d{1,6}\]:? ?)?(?:[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt)\b(?::|$)"
    r"|Traceback \(most recent call last\))"
    r"|\bCUDA out of memory|\bout of memory\b|\bCUDA error\b|\bNCCL (?:error|failure|timeout)|Watchdog caught"
    r"|\b(?:SIGTERM|SIGKILL|SIGABRT|SIGSEGV)\b|[Ss]egmentation fault|core dumped|oom.kill|DUE TO TIME LIMIT"
    r"|^\s{0,8}Killed\b|\bexit ?code\s?:?\s?-?[1-9]\d{0,3}\b|return code = -?[1-9]|stopping training\b"
    r"|\bdiverged with loss\b|\bMinimum loss scale reached|scale already at minimum"
)
_NOT_FINITE = ("nan", "inf", "finite", "invalid")  # one of them stands in each line that tells NaN
_FRAME = re.compile(r"Traceback \(most recent")


@dataclass(frozen=True)
class _Seen:
    values: tuple[tuple[str, float], ...]
    fell: bool
    line: int
    time: float | None


class Events:
    """Reads the lines that a format does not know. Remembers the last events, to take what several ranks
    print as one."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=16)

    def line(self, number: int, text: str, *, known: Mapping[str, float]) -> tuple[Piece | None, str | None]:
        """The event that a line tells, and the line itself if it says that the program failed.

        known: values that the format has read in the line.
        """
        if _MAYBE.search(text) is None:
            return None, None
        failure = text.strip()[:MAX_TEXT_CHARS] if _FAILURE.search(text) else None
        values, note = _values(text)
        values = {name: value for name, value in values.items() if name not in known}
        if not values or self._is_repeat(number, text, values):
            return None, failure
        step = _STEP.search(text) if note else None
        bar = None if note else _last(_BAR, text[:2048])
        piece = Piece(
            values,
            step=to_int(step[1]) if step else None,
            batch=to_int(bar[1]) if bar else None,
            batches=to_int(bar[2]) if bar else None,
            kind=EVENT,
            note=f'line {number:,} says in words: "{text.strip()[:120]}"' if note else None,
        )
        return piece, failure

    def _is_repeat(self, number: int, text: str, values: dict[str, float]) -> bool:
        time = _time(text)
        key = tuple((n, -1.0 if math.isnan(v) else v) for n, v in values.items())
        fell = _fell(text)
        for seen in self._seen:
            if seen.values != key or number - seen.line > REPEAT_LINES or seen.fell != fell:
                continue
            if time is not None and seen.time is not None:
                apart = (time - seen.time) % DAY_S
                if min(apart, DAY_S - apart) <= (REPEAT_SCALE_S if fell else REPEAT_S):
                    return True
            elif fell and time is None and seen.time is None:
                return True
        self._seen.append(_Seen(key, fell, number, time))
        return False


def _values(text: str) -> tuple[dict[str, float], bool]:
    """Values of an event, and whether they are NaN told in words."""
    lower = text.lower()
    if "scal" in lower:
        found = _scale(text)
        if found is not None:
            return found, False
    if not any(word in lower for word in _NOT_FINITE):
        return {}, False
    if _NAN_LOSS.search(text):
        return {"loss": math.nan}, True
    if _NAN_GRAD.search(text):
        return {"grad_norm": math.nan}, True
    return {}, False


def _scale(text: str) -> dict[str, float] | None:
    """The loss scale that a line tells, empty where it is unreadable; None if it tells none."""
    if match := _ATTEMPTED.search(text):
        before = to_float(match[1])
        after = before if match[2] is None else to_float(match[2])
        if before is None or after is None:
            return {}
        if match[2] is not None and not _is_fraction(before, after):
            after = before / 2  # the line is torn: another rank wrote into it
        return {"loss_scale": after}
    for pattern, group in ((_FROM_TO, 2), (_TO, 1), (_MINIMUM, 1)):
        if match := pattern.search(text):
            value = to_float(match[group])
            return {} if value is None else {"loss_scale": value}
    return None


def _is_fraction(before: float, after: float) -> bool:
    """Whether a scale can have fallen from the one to the other: not at all, or by a power of two."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0 or after <= 0:
        return True
    log = math.log2(before) - math.log2(after)
    return log >= 0 and abs(log - round(log)) < 1e-3


def _fell(text: str) -> bool:
    """Whether the line says that the scale is another one from here on."""
    match = _ATTEMPTED.search(text)
    if match is not None:
        return match[2] is not None and to_float(match[1]) != to_float(match[2])
    return bool(_FROM_TO.search(text) or _TO.search(text))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


def _time(text: str) -> float | None:
    """Seconds of the day, from the last clock time on the line's first half."""
    match = _last(_TIME, text[:512])
    if match is None:
        return None
    return int(match[1]) * 3600.0 + int(match[2]) * 60.0 + int(match[3]) + float(f"0.{match[4] or 0}")


def is_frame(text: str) -> bool:
    """Whether a failure line only announces the one that names the error."""
    return bool(_FRAME.search(text))
