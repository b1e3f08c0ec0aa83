"""What the diagnosis engine says, in a reader's language.

The engine writes English sentences and stores them. Its texts are in a catalogue of their own, ``engine.po``,
where a sentence with values has numbered places: ``"{0} reaches {1!s}."``. A sentence is found by its fixed
pieces, one after the other; what stands in a place is a name or a number and stays, or is a text of the
catalogue itself. In a place ``{1!s}`` a text may follow a name or a number. Nothing else is taken: a sentence
that is not understood as a whole stays English.

No regular expression sees the sentence as a whole, and a look is given up after `MOST_TRIES` comparisons, so
that no text can keep a page waiting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

MOST_CHARACTERS, MOST_TRIES, MOST_DEPTH = 1_500, 8_000, 6
COST_OF_FEW, COST_OF_ALL, COST_OF_A_PLACE = 1, 10, 5
"""Tries that it takes to go through the templates that begin alike, or through all, and to fill a place."""
MOST_SEVERAL = 2
"""How deep a place may hold several texts, one after the other."""
REMEMBERED = 8_192
"""Sentences whose translation is kept."""
SEPARATORS = ((" or ", " 或 "), ("; ", "；"), (", ", "、"), (" and ", " 和 "))
"""Between the parts of a list, and what Chinese has there."""
SMALL_WORDS = frozenset({
    "a", "an", "and", "as", "at", "be", "by", "for", "from", "had", "has", "have", "in", "into", "is", "it",
    "its", "no", "not", "of", "on", "or", "so", "than", "that", "the", "then", "there", "these", "they",
    "this", "those", "to", "too", "up", "was", "were", "what", "when", "which", "while", "whose", "with",
    "would",
})  # fmt: skip
"""Never the whole of what stands in a place."""
NAMES = frozenset({"amax", "scale", "rms", "lr", "nats", "token", "tokens"})
"""Words that are names where they stand among names."""
FULL_STOPS = ".。"
_PLACE = re.compile(r"\{\d+(!s)?\}")
_BETWEEN = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff])")
"""A space that stood between two words of which both are Chinese now."""
_ORDINAL = re.compile(r"([\d,]+)(?:st|nd|rd|th)")
_WORD = re.compile(r"(?<![\w./|*-])[A-Z]?[a-z]{2,}(?!\.?[\w/|*-])")
_LETTERS = re.compile(r"[A-Za-z]{2}")
_BREAK = re.compile(r"(?<= )(?=\S)|(?= )|(?=[,;:.] )")


class InEnglish(str):
    """An English text in a page of another language: its markup says so."""

    __slots__ = ()

    def __html__(self) -> str:
        return Markup('<span lang="en">{}</span>').format(str(self))


@dataclass(frozen=True)
class _Template:
    """A text with places. pieces: around the places, one more than there are.  wide: whether a place holds
    several values.  unsaid: whether the translation leaves it out, as the s of a plural.  form: the
    translation.
    """

    pieces: tuple[str, ...]
    wide: tuple[bool, ...]
    unsaid: tuple[bool, ...]
    form: str
    longest: str
    fixed: int

    @classmethod
    def of(cls, pieces: Sequence[str], wide: tuple[bool, ...], form: str) -> _Template:
        unsaid = tuple(f"{{{place}}}" not in form for place in range(len(wide)))
        return cls(tuple(pieces), wide, unsaid, form, max(pieces, key=len), sum(map(len, pieces)))


class _Templates:
    """Those that may fit a text, the ones with most fixed text first."""

    def __init__(self, templates: list[_Template]) -> None:
        ordered = sorted(templates, key=lambda item: -item.fixed)
        firsts = {item.pieces[0][:1] for item in ordered}
        self._fixed = {first: [item for item in ordered if item.pieces[0][:1] == first] for first in firsts}
        self._any = {
            first: [item for item in ordered if item.pieces[0][:1] in ("", first)] for first in firsts
        }

    def of(self, small: str, *, fixed: bool) -> list[_Template]:
        """small: a text with a small letter at its beginning.  fixed: only what begins with fixed text."""
        if fixed:
            return self._fixed.get(small[:1], [])
        return self._any.get(small[:1]) or self._any.get("", [])


class EngineWords:
    """The catalogue of one language. texts: English text -> translation, both with ``{0}`` as places."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._whole: dict[str, str] = {}
        templates = []
        for text, form in texts.items():
            if not form:
                continue
            split = _PLACE.split(_bare(text))
            first, *rest = (_single(piece) for piece in split[::2])
            form = form.rstrip(FULL_STOPS)
            if rest:
                templates.append(_Template.of((_small(first), *rest), tuple(map(bool, split[1::2])), form))
                continue
            self._whole[_small(first)] = _single(form)
            parts, forms = first.split(". "), _single(form).split("。")
            if len(parts) == len(forms):  # pages show one sentence of several, too
                for part, said in zip(parts, forms, strict=True):
                    if part:
                        self._whole.setdefault(_small(part), said)
        self._templates = _Templates(templates)
        self._said = lru_cache(REMEMBERED)(self._translated)

    def __call__(self, text: str) -> str | None:
        """The text in the catalogue's language; None if it is not understood as a whole."""
        return self._said(text)

    def _translated(self, text: str) -> str | None:
        if len(text) > MOST_CHARACTERS:
            return None
        found = self.look().said(text)
        return None if found is None else _BETWEEN.sub("", found)

    def look(self) -> Look:
        """What translates one text."""
        return Look(self._whole, self._templates)


class Look:
    """One text being translated, with all the tries it may take."""

    def __init__(self, whole: Mapping[str, str], templates: _Templates) -> None:
        self._whole = whole
        self._templates = templates
        self.left = MOST_TRIES
        self._known: dict[tuple[str, bool], str | None] = {}
        self._ones: dict[tuple[str, bool], str | None] = {}

    def said(self, text: str) -> str | None:
        found = self._text(text, 0)
        return self._list(text, 0, SEPARATORS[1:2]) if found is None else found

    def _text(self, text: str, depth: int, *, wide: bool = False) -> str | None:
        """A text of the catalogue, or several one after the other. wide: the first may be a name."""
        key = text, wide
        if key not in self._known:
            self._known[key] = None  # while it is looked for
            found = self._one(text, depth, fixed=depth > 0)
            if found is None and depth <= MOST_SEVERAL:
                found = self._several(text, wide=wide)
            if found is None and depth > 0:
                found = self._one(text, depth)
            self._known[key] = found
        return self._known[key]

    def _one(self, text: str, depth: int, *, fixed: bool = False) -> str | None:
        if depth > MOST_DEPTH or self.left <= 0:
            return None
        key = text, fixed
        if key not in self._ones:
            self._ones[key] = self._looked_up(text, depth, fixed=fixed)
        return self._ones[key]

    def _looked_up(self, text: str, depth: int, *, fixed: bool) -> str | None:
        bare = _bare(text)
        found = self._whole.get(_small(bare))
        if found is None:
            found = self._filled(bare, depth, fixed=fixed)
        if bare == text:
            return found
        return self._filled(text, depth, fixed=fixed) if found is None else f"{found}。"

    def _filled(self, bare: str, depth: int, *, fixed: bool) -> str | None:
        small = _small(bare)
        self.left -= COST_OF_FEW if fixed else COST_OF_ALL
        for template in self._templates.of(small, fixed=fixed):
            pieces = template.pieces
            if bare.endswith(pieces[-1]) and small.startswith(pieces[0]) and template.longest in small:
                values = self._values(template, bare, len(pieces[0]), 1, depth)
                if values is not None:
                    return template.form.format(*values)
        return None

    def _values(self, template: _Template, text: str, start: int, place: int, depth: int) -> list[str] | None:
        """What stands in the places from `place` on, translated; None if the rest of `text` does not fit."""
        pieces, wide = template.pieces, template.wide[place - 1]
        value: str | None
        last = place == len(pieces) - 1
        at = len(text) - len(pieces[place]) if last else text.find(pieces[place], start)
        while at >= start:
            self.left -= COST_OF_A_PLACE
            if self.left <= 0:
                return None
            end = at + len(pieces[place])
            if template.unsaid[place - 1]:
                value = None if " " in text[start:at] else ""
            elif pieces[place - 1].endswith("'") and pieces[place].startswith("'"):
                value = text[start:at]  # quoted, whatever it is
            else:
                value = (
                    None
                    if _is_inside_a_name(text, end)
                    else self._value(text[start:at], depth + 1, wide=wide)
                )
            if value is not None:
                if last:
                    return [value]
                rest = self._values(template, text, end, place + 1, depth)
                if rest is not None:
                    return [value, *rest]
            if last:
                return None
            at = text.find(pieces[place], at + 1)
        return None

    def _value(self, text: str, depth: int, *, wide: bool = False) -> str | None:
        """What stands in a place: a text, a list of such, or what is the same in every language."""
        ordinal = _ORDINAL.fullmatch(text)
        if ordinal:
            return ordinal[1]
        if text.endswith(".") and not text.endswith(".."):
            return self._text(text, depth, wide=wide)  # no name ends so
        if not text or (" " not in text and _small(_bare(text)) not in self._whole):
            return None if text in SMALL_WORDS else text
        if _is_name(text):
            return text
        found = self._text(text, depth, wide=wide)
        if found is None:
            found = self._list(text, depth)
        return text if found is None and is_bare(text) else found

    def _list(self, text: str, depth: int, separators: Sequence[tuple[str, str]] = SEPARATORS) -> str | None:
        for separator, shown in separators:
            parts = text.split(separator)
            if len(parts) > 1 and depth < MOST_DEPTH:
                found = [self._value(part, depth + 1) for part in parts]
                if all(part is not None for part in found) and found != parts:
                    return shown.join(part for part in found if part is not None)
        return None

    def _several(self, text: str, *, wide: bool) -> str | None:
        """Texts one after the other; all but the first begin with fixed text. wide: as for a text."""
        cuts = [cut.start() for cut in _BREAK.finditer(text) if text[: cut.start()].strip()]
        good: dict[int, str] = {len(text): ""}
        for at in reversed(cuts):
            rest = self._from(text, at, good)
            if rest is not None:
                good[at] = rest
        for end in sorted(good, reverse=True):
            head = text[:end]
            if 0 < end < len(text):
                is_whole = head.rstrip().endswith(".")
                if is_whole or not is_bare(head):
                    first = self._one(head.rstrip() if is_whole else head, MOST_SEVERAL, fixed=not is_whole)
                else:
                    first = head if wide else None
                if first is not None:
                    return first + good[end]
        return None

    def _from(self, text: str, at: int, good: Mapping[int, str]) -> str | None:
        """What begins at `at`, up to an end from which on the rest is known."""
        for end in sorted(good, reverse=True):
            part = text[at:end]
            found = part if end == len(text) and is_bare(part) else self._one(part, MOST_SEVERAL, fixed=True)
            if found is not None:
                return found + good[end]
        return None


def _is_name(text: str) -> bool:
    """Whether there is no word of two letters in it at all."""
    return _LETTERS.search(text) is None


def is_bare(text: str) -> bool:
    """Whether it is the same in every language: names and numbers."""
    return all(word in NAMES for word in _WORD.findall(text))


def _is_inside_a_name(text: str, end: int) -> bool:
    """Whether a piece that ends there ends at a dot of a name or of a number."""
    return 0 < end < len(text) and text[end - 1] == "." and text[end] != " "


def _bare(text: str) -> str:
    """The text without its full stop."""
    return text.removesuffix(".") if not text.endswith("..") else text


def _small(text: str) -> str:
    """The text with a small letter at its beginning, which may be a sentence's or not."""
    return text[:1].lower() + text[1:]


def _single(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")
