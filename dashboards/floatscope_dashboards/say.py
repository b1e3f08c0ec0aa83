"""What pages say, in the reader's language.

    say = catalogues()["zh-CN"]
    say("Since when")
    say("No data for {age}", age=say.duration(90))
    say.plural("{n} run", "{n} runs", 3)

The English text is the key. Translations are gettext catalogues, ``locale/<language>/*.po``: ``pages.po`` for
templates and Python, ``scripts.po`` for the scripts, which get theirs in the page, ``engine.po`` for what the
diagnosis says (``say.engine``). A text that has no translation stays English. Tables made at import mark
their texts with ``later`` and are said when shown.
"""

from __future__ import annotations

import gettext
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from babel.core import negotiate_locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from markupsafe import escape

from floatscope_dashboards.engine_words import EngineWords, InEnglish, is_bare

ENGLISH = "en"
LANGUAGES: Mapping[str, str] = {ENGLISH: "English", "zh-CN": "简体中文"}
"""Language tag -> its own name."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
NARROW_SPACE = "\u202f"
"""Between a number and its unit: keeps them on one line."""
NO_VALUE = "\u2013"


def later(text: str) -> str:
    """The text as it is, marked for translation: for tables, whose texts are said when they are shown."""
    return text


class Say:
    """One language. ``language`` is its tag, for the page's ``lang``."""

    def __init__(
        self,
        language: str,
        messages: gettext.NullTranslations,
        scripts: Mapping[str, str | list[str]],
        engine: EngineWords | None = None,
    ) -> None:
        self.language = language
        self.scripts = scripts
        """Text -> translation, for the scripts; empty in English."""
        self._messages = messages
        self._engine = engine

    def __call__(self, text: str, /, **values: object) -> str:
        """The text with ``{name}`` filled in. With markup among the values the answer is markup, in which
        all other parts are escaped.
        """
        return _filled(self._messages.gettext(text) if text else "", values)

    def plural(self, one: str, many: str, n: int, /, **values: object) -> str:
        """``one`` or ``many`` by the language's rules; ``{n}`` is the number."""
        return _filled(self._messages.ngettext(one, many, n), {"n": f"{n:,}", **values})

    def engine(self, text: str) -> str:
        """A sentence, phrase or code of the diagnosis engine. One that is not understood stays as it is, and
        its markup says that it is English.
        """
        if self._engine is None or not text:
            return text
        found = self._engine(text)
        if found is not None:
            return found
        return text if is_bare(text) else InEnglish(text)

    def sentences(self, parts: Iterable[str]) -> str:
        """Sentences one after the other, without those that are empty; a Chinese full stop has its space."""
        return " ".join(part for part in parts if part).replace("\u3002 ", "\u3002")

    def step(self, step: int | None) -> str:
        """A step with thousands separators; a dash when there is none."""
        return NO_VALUE if step is None else f"{step:,}"

    def duration(self, seconds: float) -> str:
        """In at most two units: "2 s", "14 min", "7 h 14 min", "21 d 6 h"; below zero reads as 0 s."""
        say, total = self, max(0, int(seconds))  # by this name its texts are found for the catalogues
        if total < MINUTE_S:
            return say("{s} s", s=total)
        if total < HOUR_S:
            return say("{min} min", min=total // MINUTE_S)
        if total < DAY_S:
            minutes = total % HOUR_S // MINUTE_S
            hours = total // HOUR_S
            return say("{h} h {min} min", h=hours, min=minutes) if minutes else say("{h} h", h=hours)
        hours, days = total % DAY_S // HOUR_S, total // DAY_S
        return say("{d} d {h} h", d=days, h=hours) if hours else say("{d} d", d=days)


@cache
def catalogues() -> Mapping[str, Say]:
    """Language tag -> what says it, of every language there is; read once in a process."""
    found = {ENGLISH: Say(ENGLISH, gettext.NullTranslations(), {})}
    for tag in LANGUAGES:
        if tag != ENGLISH:
            folder = Path(__file__).parent / "locale" / tag.replace("-", "_")
            engine = EngineWords(_plain_texts(folder / "engine.po"))
            messages, scripts = _translations(folder / "pages.po"), _script_texts(folder / "scripts.po")
            found[tag] = Say(tag, messages, scripts, engine)
    return MappingProxyType(found)


def chosen_language(asked: str | None, remembered: str | None, accepted: Sequence[str]) -> str:
    """The language of a page: asked for in its address, else remembered, else the first that the browser
    accepts; English if there is none of them.
    """
    for tag in (asked, remembered):
        if tag is not None and tag in LANGUAGES:
            return tag
    wanted = [tag.replace("-", "_") for tag in accepted]
    found = negotiate_locale(wanted, [tag.replace("-", "_") for tag in LANGUAGES], aliases={"zh": "zh_CN"})
    return found.replace("_", "-") if found else ENGLISH


def _filled(text: str, values: Mapping[str, object]) -> str:
    if any(hasattr(value, "__html__") for value in values.values()):
        return escape(text).format(**values)
    return text.format(**values) if values else text


def _translations(path: Path) -> gettext.NullTranslations:
    with path.open("rb") as file:
        catalogue = read_po(file)
    packed = io.BytesIO()
    write_mo(packed, catalogue)
    packed.seek(0)
    return gettext.GNUTranslations(packed)


def _script_texts(path: Path) -> dict[str, str | list[str]]:
    with path.open("rb") as file:
        catalogue = read_po(file)
    found: dict[str, str | list[str]] = {}
    for message in catalogue:
        key: Any = message.id[0] if isinstance(message.id, (list, tuple)) else message.id
        if key and message.string and any(message.string):
            found[str(key)] = message.string if isinstance(message.string, str) else list(message.string)
    return found


def _plain_texts(path: Path) -> dict[str, str]:
    texts = _script_texts(path)  # none has a plural
    return {text: form for text, form in texts.items() if isinstance(form, str)}
