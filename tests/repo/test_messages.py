"""Every text of the pages can be said in every language: none is left out of the catalogues, which hold no
other, and a translation has the same places to fill in.
"""

from __future__ import annotations

import re

import pytest

from tests.repo import messages, unsaid
from tests.repo.repository import ROOT, relative

CATALOGUES = [
    (folder.name, name) for folder in sorted(messages.LOCALE.iterdir()) for name in ("pages", "scripts")
]
PLACE = re.compile(r"\{(\w*)\}")


def test_no_page_holds_english_that_is_not_said() -> None:
    assert {relative(path): texts for path, texts in unsaid.files(ROOT)} == {}


@pytest.mark.parametrize(("language", "name"), CATALOGUES)
def test_a_catalogue_holds_exactly_what_is_said_in_the_form_the_tool_writes(language: str, name: str) -> None:
    written = messages.path_of(language, name).read_text(encoding="utf-8")
    assert written == messages.brought_up_to_date(language, name), "run `make messages`"


@pytest.mark.parametrize(("language", "name"), CATALOGUES)
def test_every_text_is_translated_with_the_same_places_to_fill_in(language: str, name: str) -> None:
    known = messages.translations(language, name)
    lacking, wrong = [], []
    for text, many in messages.said(name).items():
        message = known.get(text)
        forms = () if message is None else message.string
        for form in (forms,) if isinstance(forms, str) else forms or ("",):
            if not form:
                lacking.append(text)
            elif set(PLACE.findall(form)) - {"n"} != (set(PLACE.findall(text)) | set(PLACE.findall(many))) - {
                "n"
            }:
                wrong.append(text)
    assert lacking == []
    assert wrong == []


def test_english_is_found_where_it_is_not_said() -> None:
    template = (
        """<p title="Not said">{{ say("Said") }}<code>as it is</code><b>{% if x %}Here{% endif %}</b></p>"""
    )
    assert unsaid.in_template(template) == ["Not said", "Here"]
    assert unsaid.in_template('<i aria-label="{{ say("x") }}">FP8 448</i>') == []
    python = (
        'def f(say):\n    """Says."""\n    say("Said {x}", x="Is it? Not at all.")\n    return "No run yet"'
    )
    assert unsaid.in_python(python) == ["Is it? Not at all.", "No run yet"]
    assert unsaid.in_python('say(f"Half {x} said")') == ["f'Half {x} said'"]
    assert unsaid.in_python('raise ValueError("expected a number")\nkind = "card crit"') == ["card crit"]
    script = "notice(say('Said well')); throw new Error('Not for people'); label.title = 'Not said well';"
    assert unsaid.in_script(script) == ["Not said well"]


def test_the_tool_keeps_translations_and_drops_what_nobody_says(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("locale")
    (folder / "zh_CN").mkdir()
    monkeypatch.setattr(messages, "LOCALE", folder)
    monkeypatch.setattr(messages, "said", lambda name: {"Old {x}": "", "{n} run": "{n} runs", "New": ""})
    path = messages.path_of("zh_CN", "pages")
    head = messages.HEADER.format(language="zh_CN")
    path.write_text(
        head + '\nmsgid "Old {x}"\nmsgstr "x{x}"\n\nmsgid "Gone"\nmsgstr "y"\n\nmsgid "{n} run"\n'
        'msgid_plural "{n} runs"\nmsgstr[0] "z{n}"\n'
    )
    path.write_text(messages.brought_up_to_date("zh_CN", "pages"))
    known = messages.translations("zh_CN", "pages")
    assert {text: message.string for text, message in known.items()} == {
        "Old {x}": "x{x}",
        "{n} run": ("z{n}",),
        "New": "",
    }
    assert path.read_text() == messages.brought_up_to_date("zh_CN", "pages")
