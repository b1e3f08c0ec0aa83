"""Megatron's arguments as they stand in a shell script or a command line."""

from __future__ import annotations

import re

_OPTION = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]{0,80})(?:[= \t]+(?!--)([^\s\\]+))?")
_ASSIGNED = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w{0,60})=([^\s;]*)[ \t]*;?[ \t]*$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
MOST_CHARS = 1000  # of a value
MOST_STEPS = 8
"""Of variables that stand for variables; more are a circle."""


def arguments_of(text: str) -> dict[str, object]:
    """Options of a text, by their names with underscores: whole numbers as numbers, those without a value as
    true, all else as text. Of an option given twice the last counts. Variables with a plain value in the same
    text are put in; nothing is executed.
    """
    text = _COMMENT.sub("", text)
    variables = {match[1]: match[2].strip("\"'")[:MOST_CHARS] for match in _ASSIGNED.finditer(text)}
    found: dict[str, object] = {}
    for match in _OPTION.finditer(text):
        raw = match[2]
        if raw is None or raw in (")", "&&", ";", "|", "#"):
            found[match[1].replace("-", "_")] = True
        else:
            found[match[1].replace("-", "_")] = _value(_filled(raw, variables))
    return found


def _filled(raw: str, variables: dict[str, str]) -> str:
    raw = raw[:MOST_CHARS]
    for _ in range(MOST_STEPS):
        filled = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] or m[0]), raw)[:MOST_CHARS]
        if filled == raw:
            break
        raw = filled
    return raw.strip("\"'),")


def _value(text: str) -> object:
    if re.fullmatch(r"[+-]?\d{1,30}", text):
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)
