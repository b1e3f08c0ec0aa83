"""Whatever a run says of itself can be written: a text that no encoding takes must not stop its delivery."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.protocol.strict_json import dumps, plain

ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=8)
TREES = st.recursive(
    ANY_TEXT | st.none() | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_everything_can_be_written_as_utf8(tree: object) -> None:
    text = dumps(tree)
    assert json.loads(text.encode("utf-8")) == plain(tree)
    assert plain(plain(tree)) == plain(tree)


def test_lone_surrogates_become_question_marks_and_all_else_stays() -> None:
    assert plain({"NVTE_\udcff": ["a\udcfe", "ü 中 \U0001f642"]}) == {"NVTE_?": ["a?", "ü 中 \U0001f642"]}
