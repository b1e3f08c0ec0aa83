"""Text that prints a step, iteration or epoch and a loss in words: ``step 10: loss 2.31, lr 3e-4``.

The last resort among the line formats: it takes names and numbers as they stand. A line is one of a training
run if it names a loss, or a step and something told with a colon or an equals sign. What a line does not say
of its place it has from the header before it (``Epoch 3/10``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.line_prefix import split_rank
from floatscope_diagnostics.readers.names import guess, normal
from floatscope_diagnostics.readers.numbers import to_float, to_int
from floatscope_diagnostics.readers.piece import Piece
from floatscope_diagnostics.readers.template import MAX_LEARNT, MOST, POSITIONS, Slot, Template
from floatscope_diagnostics.readers.words import (
    Pair,
    axis_of,
    axis_word,
    is_eval,
    is_loss,
    pairs,
    prefix_end,
    section,
    short_name,
)

MAX_CHARS = 4_096  # of a line; a record of a log is shorter
REFUSED = 8  # lines that differ in their digits alone; after so many the next ones are no records either
MAX_REFUSED = 1_024  # such kinds of lines that are remembered
LOOKED_AT = 400  # lines for the certainty
TIMES = frozenset(
    ("time", "dt", "step_time", "iter_time", "batch_time", "time_per_step", "time_per_iteration",
     "elapsed_time_per_iteration", "iteration_time", "sec_per_step")
)  # fmt: skip
_DIGITS = re.compile(r"\d+")
# A printed PyTorch tensor of one number: tensor(2.31, device='cuda:0', grad_fn=<NllLossBackward0>)
_TENSOR = re.compile(r"\btensor\(\s{0,4}\[?([-+\w.]{1,40})[^()]{0,120}\)")


def certainty(head: Head) -> float:
    """Low, whatever it sees: any other format that knows the text is better."""
    parser = PlainText()
    best = 0.0
    some = 0
    for text in _sample(head.lines):
        found = parser.line(0, text)
        for piece in found:
            placed = piece.step is not None or piece.epoch is not None or piece.batch is not None
            if any(is_loss(name) for name in piece.values):
                some += 1
                best = max(best, 0.2 if placed else 0.1)
            elif placed and piece.values:
                best = max(best, 0.06)
    return 0.3 if some >= 3 and best >= 0.2 else best


def _sample(lines: tuple[str, ...]) -> Iterable[str]:
    step = max(1, len(lines) // LOOKED_AT)
    return lines[::step]


class PlainText:
    """mapping: names of the log and what they are here, where they differ.

    parent: of a probe, see there.
    """

    def __init__(self, parent: PlainText | None = None) -> None:
        self._parent = parent
        self._passed_by = False  # lines with a step of their own may not come through here any more
        self.mapping: dict[str, str] = {}
        self._taken: dict[str, str] = {}  # our name -> the name that has it, as ``normal`` writes it
        self._templates: list[Template] = []
        self._learnt = 0
        self._refused: dict[str, int] = {}  # text without its digits -> number of lines
        self._place: dict[str, str] = {}

    def probe(self) -> PlainText:
        """A parser that reads as this one would, only lines that say their step themselves. Such lines may
        be read without this parser from then on."""
        probe = PlainText(self)
        probe._taken.update(self._taken)
        return probe

    def line(self, number: int, text: str) -> Iterable[Piece]:
        rank, text = None, text[:MAX_CHARS].strip()
        if "tensor(" in text:
            text = _TENSOR.sub(r"\1", text)
        if not text[:1].isdigit():  # "3: ..." may be a step as well as a rank
            rank, text = split_rank(text)
        for k, template in enumerate(self._templates):
            numbers = template.read(text)
            if numbers is not None:
                if k:
                    self._templates.insert(0, self._templates.pop(k))
                return self._piece(template, numbers, rank)
        slots = self._known_by(text)
        if slots is None:
            return ()
        template = Template(text, slots)
        if self._learnt < MAX_LEARNT:
            self._learnt += 1
            self._templates = [template, *self._templates][:MOST]
        return self._piece(template, template.numbers, rank)

    def end(self) -> Iterable[Piece]:
        return ()

    def _piece(self, template: Template, numbers: tuple[str, ...], rank: int | None) -> Iterable[Piece]:
        place = {name: numbers[k] for k, name in template.place}
        if place:
            if "epoch" not in place and "epoch" in self._place:
                place["epoch"] = self._place["epoch"]
            self._place = place
        if not template.values:
            return HELD
        values: dict[str, float] = {}
        for k, name, factor in template.values:
            try:
                value = float(numbers[k])
            except ValueError:
                spelled = to_float(numbers[k])
                if spelled is None:
                    continue
                value = spelled
            values[name] = value * factor
        where = self._place
        if self._parent is not None:
            if "step" not in place or "epoch" in place:
                return ()
            self._parent._passed_by = True
        elif self._passed_by and not place and "step" in where:
            where = {}  # the step before may be a later one than this parser has seen
        return (
            Piece(
                values,
                step=to_int(where["step"]) if "step" in where else None,
                epoch=to_float(where["epoch"]) if "epoch" in where else None,
                batch=to_int(where["batch"]) if "batch" in where else None,
                batches=to_int(where["batches"]) if "batches" in where else None,
                rank=rank,
                kind=template.kind,
                note=template.note,
            ),
        )

    def _known_by(self, text: str) -> list[Slot] | None:
        """The same as ``_slots``, quickly for a line like many that gave none."""
        kind = _DIGITS.sub("0", text)
        count = self._refused.get(kind, 0)
        if count >= REFUSED:
            return None
        slots = self._slots(text)
        if slots is None and (count or len(self._refused) < MAX_REFUSED):
            self._refused[kind] = count + 1
        return slots

    def _slots(self, text: str) -> list[Slot] | None:
        """The numbers of a line that is one of a training run, else None."""
        begin = prefix_end(text)
        found = pairs(text, begin)
        if not found:
            return None
        spans = axis_of(text, begin, found)
        others = [p for p in found if (p.start, p.end) not in spans.values() and axis_word(p) is None]
        losses = any(is_loss(short_name(p.name)) for p in others)
        wanted = [p for p in others if p.told or is_loss(short_name(p.name)) or _ours(short_name(p.name))]
        if not losses and not any(p.told for p in wanted):
            in_words = any(axis_word(p) is not None for p in found)
            wanted = []
            if others or not in_words:
                return None
        if not spans and not losses:
            return None
        slots = [Slot(low, high, name, 1.0) for name, (low, high) in spans.items()]
        return sorted([*slots, *self._named(wanted, section(text[begin:]))], key=lambda s: s.start)

    def _named(self, found: list[Pair], part: str | None) -> list[Slot]:
        named: dict[str, Pair] = {}
        for pair in found:
            name = short_name(pair.name)
            if part is not None and not is_eval(name):
                name = f"{part}_{name}"
            named.setdefault(name + ("_pct" if pair.unit == "%" else ""), pair)
        guessed = guess(named)
        out = []
        for name, pair in named.items():
            ours = "step_time_s" if _is_step_time(name, pair.unit) else guessed.get(name)
            if ours in ("step", "rank", "time"):
                continue
            if ours is not None and self._taken.setdefault(ours, normal(name)) != normal(name):
                ours = None  # another name of the log has it already
            if ours is not None and ours != name:
                self.mapping[name] = ours
            out.append(Slot(pair.start, pair.end, ours or name, _factor(name, ours, pair.unit)))
        return [slot for slot in out if slot.name not in POSITIONS]


def _ours(name: str) -> str | None:
    return guess([name]).get(name)


def _is_step_time(name: str, unit: str) -> bool:
    short = normal(name)
    base = short.removesuffix("_ms").removesuffix("_s")
    return base in TIMES and (base not in ("time", "dt") or unit == "ms" or short.endswith("_ms"))


def _factor(name: str, ours: str | None, unit: str) -> float:
    if unit == "ms" or (ours == "step_time_s" and normal(name).endswith("_ms")):
        return 1e-3
    if ours == "tokens" or normal(name).startswith(("tok", "samples")):
        return {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}.get(unit, 1.0)
    return 1.0


FORMAT = LineFormat("plain_text", 'text with "step N ... loss X"', certainty, PlainText, alike=True)
