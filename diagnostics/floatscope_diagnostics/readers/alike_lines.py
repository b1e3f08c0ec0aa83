"""Long text logs, quickly: what the parser makes of one line is learnt, and lines that are alike but for
their numbers are read a column at a time.

Learnt by asking: each number of the line is replaced by others, the parser reads the line again, and what has
changed shows what the number stands for. A number that changes nothing may be anything; one that changes more
than one value (a count of skipped iterations) must stand there as it is. Lines are alike if nothing is
different without their digits, signs, points and blanks; one whose numbers are not plain goes through the
parser all the same. So the columns hold what the parser gives, for formats whose records depend on their own
line alone (``LineFormat.alike``).
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from floatscope_diagnostics.readers.line_format import LineParser
from floatscope_diagnostics.readers.number_table import exact_options, pandas_or_none
from floatscope_diagnostics.readers.piece import Piece

MAX_MAKES = 8  # kinds of lines learnt of one log
MAX_TRIES = 64  # lines that are tried as a sample
OFTEN = 32  # lines of a block from which it pays to learn their make
MAX_LINE_BYTES = 2_000
MAX_NUMBERS = 64
_OPEN = b"0123456789+-. \t"  # what may differ between lines that are alike
_SIGNS = b"0123456789+-."
_TOKEN = re.compile(r"[0-9+\-.eE]+")
_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?")
_PLACES = ("step", "epoch", "batch", "batches")
_WHOLE_PROBES = ("7919", "104729", "3")
_REAL_PROBES = ("791.25", "0.03125", "-3.5", "0.0")
_POWER_PROBES = ("7.9125{}+02", "3.125{}-02", "-3.5{}+00", "0.0{}+00")

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class _Column:
    """What a number of the line stands for: a place (step, epoch, ...) or a value.

    divisor: of its unit.  whole: only whole numbers from 0 were asked for.
    """

    name: str
    place: bool
    divisor: float
    whole: bool = False


@dataclass(frozen=True)
class _Make:
    """Lines that are alike.

    skeleton: the line without what may differ.  table, gone: how ``bytes.translate`` leaves only numbers and
    blanks.  tokens: numbers of a line then.  columns: what they stand for, by place among them.  fixed:
    those that must be as in the sample.  constant: values that no number changes.
    """

    kind: str
    skeleton: bytes
    table: bytes
    gone: bytes
    tokens: int
    columns: dict[int, _Column]
    fixed: dict[int, float]
    names: tuple[str, ...]
    constant: dict[str, float]


class Sink(Protocol):
    """What takes the columns; see ``Records``."""

    def reserve(self, count: int) -> int:
        """Hands out the next ``count`` places in the order of the lines; returns the first."""
        ...

    def add_columns(
        self,
        kind: str,
        *,
        line: NDArray[np.int64],
        values: Mapping[str, Float64],
        where: Mapping[str, NDArray[Any]],
        order: NDArray[np.int64],
    ) -> object:
        """Takes the records at these places."""
        ...


class _Text:
    """Lines of a log; they are cut apart only where they are looked at one by one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = data.count(b"\n") + 1

    @cached_property
    def lines(self) -> list[bytes]:
        return self.data.split(b"\n")


class AlikeLines:
    """The makes of lines known of one log."""

    def __init__(self, parser: Callable[[], LineParser]) -> None:
        self._parser = parser
        self._makes: dict[bytes, _Make] = {}
        self._refused: set[bytes] = set()
        self._tries = 0

    def take(self, number: int, data: bytes, records: Sink, other: Callable[[int, bytes], None]) -> int:
        """Reads whole lines, the first of them with this number; those of no known make go to ``other``, in
        their order. Returns how many did not."""
        text = _Text(data.removesuffix(b"\n"))
        found = np.full(text.count, -1)  # by line, the place of its make
        tables: list[tuple[_Make, NDArray[np.int64], Float64]] = []
        for make, index in self._alike(text):
            part = data if len(index) == text.count else b"\n".join([text.lines[k] for k in index.tolist()])
            values = _numbers(make, part, len(index))
            if values is None:
                continue
            good = _sound(make, values)
            found[index[good]] = len(tables)
            tables.append((make, index[good], values[good]))
        order = np.zeros(text.count, np.int64)
        edges = [0, *(np.flatnonzero(np.diff(found >= 0)) + 1).tolist(), text.count]
        for start, stop in pairwise(edges):
            if found[start] >= 0:
                first = records.reserve(stop - start)
                order[start:stop] = np.arange(first, first + stop - start)
                continue
            for k in range(start, stop):
                other(number + k, text.lines[k])
        for make, index, values in tables:
            _store(make, values, index + number, order[index], records)
        return int((found >= 0).sum())

    def _alike(self, text: _Text) -> Iterator[tuple[_Make, NDArray[np.int64]]]:
        """Each known make with the places of its lines. Learns those that come often."""
        joined = text.data.translate(None, _OPEN)
        for make in self._makes.values():
            if joined == b"\n".join([make.skeleton] * text.count):
                yield make, np.arange(text.count)
                return
        skeletons = joined.split(b"\n")
        if self._tries < MAX_TRIES and len(self._makes) < MAX_MAKES:
            common = Counter(skeletons).most_common(MAX_MAKES)
            for skeleton, count in common:
                if count >= OFTEN and skeleton not in self._makes and skeleton not in self._refused:
                    self._learn(skeleton, text.lines[skeletons.index(skeleton)])
        places = {skeleton: k for k, skeleton in enumerate(self._makes)}
        which = np.array([places.get(x, -1) for x in skeletons])
        for k, make in enumerate(self._makes.values()):
            index = np.flatnonzero(which == k)
            if len(index):
                yield make, index

    def _learn(self, skeleton: bytes, raw: bytes) -> None:
        self._tries += 1
        self._refused.add(skeleton)
        if len(raw) > MAX_LINE_BYTES or not raw.isascii():
            return
        text = raw.decode()
        make = _make_of(text, self._parser) if text.replace("\t", " ").isprintable() else None
        if make is not None:
            self._makes[skeleton] = make


def _numbers(make: _Make, data: bytes, count: int) -> Float64 | None:
    """The numbers of the lines that mean something, float64 [N, columns and fixed], NaN where a token is no
    number; None if they do not stand in columns."""
    plain = data.translate(make.table, make.gone)
    used = [*make.columns, *make.fixed]
    pandas = pandas_or_none()
    out = np.full((count, len(used)), np.nan)
    if pandas is None:
        tokens = plain.split()
        if len(tokens) != count * make.tokens:
            return None
        for k, place in enumerate(used):
            try:
                out[:, k] = list(map(float, tokens[place :: make.tokens]))
            except ValueError:
                return None
        return out
    try:
        frame = pandas.read_csv(
            io.BytesIO(plain), sep=r"\s+", header=None, names=range(make.tokens), usecols=sorted(used),
            engine="c", index_col=False, low_memory=False, **exact_options(pandas),
        )  # fmt: skip
    except (ValueError, pandas.errors.ParserError, pandas.errors.ParserWarning):
        return None
    if len(frame) != count:
        return None
    for k, place in enumerate(used):
        column = frame[place]
        if column.dtype.kind not in "iuf":
            column = pandas.to_numeric(column, errors="coerce")
        out[:, k] = column.to_numpy(np.float64)
    return out


def _sound(make: _Make, values: Float64) -> NDArray[np.bool_]:
    """Lines whose numbers are such as were asked for, bool [N]."""
    good = np.asarray(np.isfinite(values).all(axis=1), bool)
    for k, column in enumerate(make.columns.values()):
        if column.whole:
            x = values[:, k]
            good &= (x >= 0) & (x < 2**53) & (x == np.floor(x))
    for k, literal in enumerate(make.fixed.values(), start=len(make.columns)):
        good &= values[:, k] == literal
    return good


def _store(
    make: _Make, numbers: Float64, line: NDArray[np.int64], order: NDArray[np.int64], to: Sink
) -> None:
    where: dict[str, Float64 | NDArray[np.int64]] = {}
    values: dict[str, Float64] = {n: np.full(len(line), v) for n, v in make.constant.items()}
    for k, column in enumerate(make.columns.values()):
        x = numbers[:, k]
        if column.place:
            where[column.name] = x if column.name == "epoch" else x.astype(np.int64)
        else:
            values[column.name] = x / column.divisor if column.divisor != 1.0 else x
    to.add_columns(make.kind, line=line, values={n: values[n] for n in make.names}, where=where, order=order)


def _make_of(text: str, parser: Callable[[], LineParser]) -> _Make | None:
    """The make of a line; None if it gives no single record, or one that its numbers alone do not explain."""
    base = _read(text, parser)
    slots = [m for m in _TOKEN.finditer(text) if any(c.isdigit() for c in m[0])]
    if base is None or not base.values or len(slots) > MAX_NUMBERS:
        return None
    powers = "".join(c for c in "eE" if any(c in m[0] for m in slots))
    kept = _SIGNS + powers.encode() + b"\n"
    table = bytes(c if c in kept else 32 for c in range(256))
    gone = bytes(c for c in range(128) if chr(c).isalpha() and c not in kept)
    tokens = text.encode().translate(table, gone).decode().split()
    if any(slot[0] not in tokens for slot in slots):  # letters alone stand between two numbers
        gone = b""
        tokens = text.encode().translate(table, gone).decode().split()
    columns: dict[int, _Column] = {}
    fixed: dict[int, float] = {}
    at = -1
    for slot in slots:
        try:
            at = tokens.index(slot[0], at + 1)
        except ValueError:  # letters or signs around it belong to no number
            return None
        meaning = _meaning(text, slot, base, parser)
        if isinstance(meaning, _Column):
            columns[at] = meaning
        elif meaning is None:
            if _NUMBER.fullmatch(slot[0]) is None:
                return None
            fixed[at] = float(slot[0])
    known = [c.name for c in columns.values()]
    if len(set(known)) < len(known) or not any(c.place for c in columns.values()):
        return None
    given = {n for n in _PLACES if getattr(base, n) is not None}
    if given - set(known):
        return None
    constant = {n: v for n, v in base.values.items() if n not in known}
    skeleton = text.encode().translate(None, _OPEN)
    return _Make(base.kind, skeleton, table, gone, len(tokens), columns, fixed, tuple(base.values), constant)


def _read(text: str, parser: Callable[[], LineParser]) -> Piece | None:
    """The one record of a line, if it says nothing else."""
    fresh = parser()
    found = (*fresh.line(1, text), *fresh.end())
    if len(found) != 1 or found[0].note is not None or found[0].rank is not None:
        return None
    return found[0]


def _meaning(
    text: str, slot: re.Match[str], base: Piece, parser: Callable[[], LineParser]
) -> _Column | str | None:
    """What a number stands for; "" if for nothing, None if it must stay as it is."""
    whole = slot[0].isdigit()
    probes: tuple[str, ...]
    if whole:
        probes = _WHOLE_PROBES
    elif _NUMBER.fullmatch(slot[0]) is None:  # a date
        probes = ("".join(str((int(c) + 1) % 10) if c.isdigit() else c for c in slot[0]),)
    else:
        power = next((c for c in "eE" if c in slot[0]), None)
        probes = _REAL_PROBES if power is None else tuple(p.format(power) for p in _POWER_PROBES)
    meanings = {_asked(text, slot, p, base, parser) for p in probes if not _same(p, slot[0])}
    meaning = meanings.pop() if len(meanings) == 1 else None
    if not isinstance(meaning, _Column):
        return meaning
    if not whole:
        return meaning
    real = {_asked(text, slot, p, base, parser) for p in _REAL_PROBES if not _same(p, slot[0])}
    if real == {meaning} and not meaning.place:
        return meaning
    return _Column(meaning.name, meaning.place, meaning.divisor, whole=True)


def _asked(
    text: str, slot: re.Match[str], probe: str, base: Piece, parser: Callable[[], LineParser]
) -> _Column | str | None:
    """What the parser makes of another number in its place; see ``_meaning``."""
    piece = _read(text[: slot.start()] + probe + text[slot.end() :], parser)
    if piece is None or tuple(piece.values) != tuple(base.values) or piece.kind != base.kind:
        return None
    changed: list[tuple[str, bool, float, float]] = []
    for name, value in piece.values.items():
        old = base.values[name]
        if value != old and not (math.isnan(value) and math.isnan(old)):
            changed.append((name, False, old, value))
    for name in _PLACES:
        was, now = getattr(base, name), getattr(piece, name)
        if was != now:
            if was is None or now is None:
                return None
            changed.append((name, True, was, now))
    if not changed:
        return ""
    if len(changed) > 1:
        return None
    name, place, old, new = changed[0]
    for divisor in (1.0, 1000.0):
        if new == float(probe) / divisor and old == float(slot[0]) / divisor:
            return _Column(name, place, divisor)
    return None


def _same(a: str, b: str) -> bool:
    """Whether both are the same number, so that one in the other's place shows nothing."""
    return bool(_NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)) and float(a) == float(b)
