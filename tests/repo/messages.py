"""Keeps the message catalogues in step with the texts of the pages: ``python -m tests.repo.messages``.

babel.cfg says where texts are. Templates and Python go to ``pages.po``, scripts to ``scripts.po``; what the
diagnosis engine says, to ``engine.po``. What is translated stays, what nobody says any more goes. Files hold
no dates and no line numbers, so that a change of one text is a change of one place.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from tests.repo import engine_texts
from tests.repo.repository import ROOT

LOCALE = ROOT / "dashboards/floatscope_dashboards/locale"
NAMES = ("pages", "scripts", "engine")
KEYWORDS = {"say": None, "later": None, "plural": (1, 2)}
WIDTH = 110
HEADER = """msgid ""
msgstr ""
"Project-Id-Version: floatscope\\n"
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=1; plural=0;\\n"
"""


OPTIONS = {"jinja2": {"silent": "false"}, "javascript": {"parse_template_string": "true"}}
"""A template that cannot be read is an error; texts inside template strings count."""


def sources() -> Iterator[tuple[str, Path]]:
    """(method, file) of every file that may hold texts, in a fixed order."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "babel.cfg", encoding="utf-8")
    for section in config.sections():
        method, _, pattern = section.partition(":")
        folder, _, ending = pattern.strip().partition("/**")
        for path in sorted((ROOT / folder).rglob(f"*{ending}")):
            yield method, path


def said(name: str) -> dict[str, str]:
    """Text -> its plural, "" without one, of all that the pages, scripts or engine say."""
    if name == "engine":
        return dict.fromkeys(engine_texts.found(), "")
    found: dict[str, str] = {}
    for method, path in sources():
        if (method == "javascript") != (name == "scripts"):
            continue
        options = OPTIONS.get(method, {})
        with contextlib.redirect_stderr(io.StringIO()):  # tells of f-strings among the values of a text
            texts = list(extract_from_file(method, path, KEYWORDS, options=options))
        for _line, message, _comments, _context in texts:
            one, many = (message[0], message[1]) if isinstance(message, tuple) else (message, "")
            found[one] = found.get(one) or many
    return {text: found[text] for text in sorted(found) if text}


def path_of(language: str, name: str) -> Path:
    """The catalogue."""
    return LOCALE / language / f"{name}.po"


def translations(language: str, name: str) -> dict[str, Message]:
    """Text -> message, as the catalogue has it."""
    with path_of(language, name).open("rb") as file:
        catalogue = read_po(file)
    return {
        str(message.id[0] if isinstance(message.id, (list, tuple)) else message.id): message
        for message in catalogue
        if message.id
    }


def brought_up_to_date(language: str, name: str) -> str:
    """The catalogue's text with every text that is said, and no other."""
    known = translations(language, name)
    out = Catalog(locale=language, fuzzy=False)
    for text, many in said(name).items():
        before = known.get(text)
        string = before.string if before is not None else ""
        form = string if isinstance(string, str) else (string[0] if string else "")
        out.add((text, many) if many else text, (form,) if many else form)
        out[text].flags.clear()
    written = io.BytesIO()
    write_po(written, out, width=WIDTH, omit_header=True, no_location=True)
    return HEADER.format(language=language) + "\n" + written.getvalue().decode().lstrip("\n")


def main() -> int:
    """Rewrites all catalogues; says how many texts each still lacks."""
    for folder in sorted(LOCALE.iterdir()):
        for name in NAMES:
            text = brought_up_to_date(folder.name, name)
            path_of(folder.name, name).write_text(text, encoding="utf-8")
            found = translations(folder.name, name)
            lacking = sum(not message.string or not any(message.string) for message in found.values())
            print(f"{folder.name}/{name}.po: {len(found)} texts, {lacking} not translated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
