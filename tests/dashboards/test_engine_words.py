"""What the engine says is shown in the reader's language, whole or not at all."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from markupsafe import escape

from floatscope_dashboards.banner import banner
from floatscope_dashboards.engine_words import MOST_CHARACTERS, EngineWords, InEnglish
from floatscope_dashboards.evidence import evidence_card
from floatscope_dashboards.findings import read_findings
from floatscope_dashboards.say import catalogues
from tests.dashboards.sample import finding, run_view, verdict
from tests.diagnostics.case import diagnose
from tests.repo import engine_texts, messages

LANGUAGES = [folder.name for folder in sorted(messages.LOCALE.iterdir())]
SAY = catalogues()["zh-CN"]
PLACE = re.compile(r"\{(\d+)(?:!s)?\}")
ENDING = re.compile(r"[a-z]\{(\d+)(?:!s)?\}")
"""The s of a plural, or another ending, which a language may not have."""
TWO_WORDS = re.compile(r"(?<![\w./(])[a-z]{2,} [a-z]{2,}(?![\w/)])")


def texts(language: str) -> dict[str, str]:
    return {text: str(message.string) for text, message in messages.translations(language, "engine").items()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_of_the_engine_is_translated_with_the_places_it_has(language: str) -> None:
    written = messages.path_of(language, "engine").read_text(encoding="utf-8")
    assert written == messages.brought_up_to_date(language, "engine"), "run `make messages`"
    known = texts(language)
    assert [text for text, form in known.items() if not form] == []
    wrong = [
        text
        for text, form in known.items()
        if not set(PLACE.findall(text)) - set(ENDING.findall(text))
        <= set(PLACE.findall(form))
        <= set(PLACE.findall(text))
    ]
    assert wrong == []


def test_texts_are_found_in_a_rule_that_marks_nothing() -> None:
    source = '''"""FS999 a new rule.

What it checks
    Nothing that anybody is told.
"""
REMEDY = Remedy("Turn it off and on. Then look.", {"megatron": "--off-and-on", "torchao": "leave it off"})

def check(s, run):
    """Nothing that is said."""
    if s.name == "not a text":
        raise ValueError("nor is this")
    what = "grows" if s.up else f"falls by {s.by:.2g}"
    where = f", first in {s.first}" if s.first else ""
    yield about(s, summary=f"The thing {what} in {s.n} layer{'s' if s.n > 1 else ''}{where}{s.tail}.",
                evidence=[Evidence("amax near the end", s.step, s.peak, f"below {s.level:.3g}")])
'''
    assert engine_texts.texts_of(source) == [
        "a new rule",
        "Turn it off and on. Then look.",
        "leave it off",
        "grows",
        "falls by {0}",
        ", first in {0}",
        "The thing {0} in {1} layer{2!s}.",
        "amax near the end",
        "below {0}",
    ]


def test_every_text_is_understood_with_names_and_numbers_in_its_places() -> None:
    lost = []
    for text in texts("zh_CN"):
        said = re.sub(r"(?<=\.)\{\d+(!s)?\}", "", text)  # a sentence more, or none
        said = PLACE.sub(lambda place: f"x.{place[1]}/weight", said)
        if text.strip() and " " in text.strip() and isinstance(SAY.engine(said), InEnglish):
            lost.append(text)
    assert lost == []


def said(document: Mapping[str, Any]) -> Iterator[str]:
    """All that pages show of a verdict in the engine's words."""
    yield document["summary"]
    for item in document["not_checked"]:
        yield item["why"]
    for found in document["findings"]:
        yield from (
            found["summary"],
            found["remedy"]["text"],
            found["decisive_test"],
            found["confidence_basis"],
        )
        for evidence in found["evidence"]:
            yield from (evidence["signal"], evidence["expected"])
        yield from (other["against"] for other in found["alternatives"])
        yield from (wish["text"] for wish in found["log_next"])


@pytest.mark.parametrize(
    "rule",
    ["amax_history_poisoning", "scale_state_fault", "invalid_input", "masked_nonfinite", "corrupted_weight",
     "rank_divergence"],
)  # fmt: skip
def test_a_verdict_is_chinese_throughout(rule: str) -> None:
    document = diagnose(importlib.import_module(f"tests.diagnostics.cases.{rule}").CASES[0])
    assert document["findings"]
    for text in said(document):
        shown = SAY.engine(text)
        assert not isinstance(shown, InEnglish), text
        assert not TWO_WORDS.search(shown), shown


def test_names_and_numbers_stay_as_they_are() -> None:
    text = "blocks.8.mlp.fc2/input reaches 66,246, the limit of fp16 is 65,504: NaN from step 1,200 on."
    assert (
        SAY.engine(text)
        == "blocks.8.mlp.fc2/input 达到 66,246，fp16 的上限为 65,504：自第 1,200 步起出现 NaN。"
    )
    assert SAY.engine("The scale of Blocks.0/weight is NaN at step 5.") == (
        "Blocks.0/weight 的缩放因子为 NaN，位于步骤 5。"
    )


def test_texts_that_follow_one_another_are_all_translated() -> None:
    text = (
        "Rank 3 no longer holds the same weights as the others since step 1,000, first in blocks.0/weight. "
        "The last step on which they were equal to the bit is 990. 2 more findings."
    )
    assert SAY.engine(text) == (
        "rank 3 不再持有与其他 rank 相同的权重，始于步骤 1,000，首先出现在 blocks.0/weight。"
        "逐位相同的最后一步为第 990 步。另有 2 个问题。"
    )


def test_each_part_of_a_sentence_keeps_its_place() -> None:
    text = "No fault found in steps 1 to 419, with 2 notes, but 3 points of the loss are too few to judge it."
    assert SAY.engine(text) == "未发现故障：第 1 到 419 步，有 2 条备注，但损失的 3 个点太少，无法判断。"
    text = (
        "The loss rose from 2.1 to 3.4 at step 1,200 and was back after step 1,205. The cause is not "
        "certain: bad_batch or lr_divergence."
    )
    assert SAY.engine(text) == (
        "损失从 2.1 升到 3.4，位于步骤 1,200，第 1,205 步之后恢复。原因尚不确定：异常批次或学习率过高。"
    )
    assert SAY.engine("only every 1,002nd step") == "仅每 1,002 步记录一次"
    assert SAY.engine("*/input|weight amax") == "*/input|weight amax"
    assert not isinstance(SAY.engine("*/input|weight amax"), InEnglish)


def test_a_sentence_that_is_not_understood_stays_english_and_says_so() -> None:
    text = "The moon of blocks.0/weight is <b>full</b> since step 5."
    found = SAY.engine(text)
    assert found == text
    assert escape(found) == (
        '<span lang="en">The moon of blocks.0/weight is &lt;b&gt;full&lt;/b&gt; since step 5.</span>'
    )
    assert catalogues()["en"].engine(text) is text


def test_markup_in_a_name_is_escaped_where_the_sentence_is_shown() -> None:
    found = SAY.engine("<script>x</script>/input reaches 66,246, the limit of fp16 is 65,504.")
    assert found.startswith("<script>x</script>/input 达到")
    assert "<script>" not in escape(found)


def test_no_text_is_looked_at_for_long() -> None:
    words = EngineWords(texts("zh_CN"))
    for hostile in (
        "The scale of " * 100,
        "a step " * 200,
        ", first in x" * 120,
        "{0} more " * 150,
        ". " * 700,
    ):
        look = words.look()
        assert look.said(hostile) is None or look.left > 0
        assert look.left > -1_000
    assert words("The loss " + "x" * MOST_CHARACTERS) is None


def test_the_banner_and_its_evidence_are_in_the_readers_language() -> None:
    found = verdict(
        finding(
            summary="blocks.8.mlp.fc2/input clips at step 300: its values are up to 3.1 times what the scale "
            "from earlier steps can hold.",
            remedy={
                "text": "Check the schedule: total steps, resumed position, minimum rate.",
                "settings": {},
            },
            decisive_test="Run the same steps at the old rate: the loss goes on falling.",
        )
    )
    lead = read_findings(found, SAY)[0]
    assert lead.title == (
        "blocks.8.mlp.fc2/input 在第 300 步被截断：其值至多为此前各步得出的缩放因子所能容纳的 3.1 倍"
    )
    assert lead.remedy == ("检查学习率调度：总步数、恢复位置、最小学习率。",)
    assert banner(run_view(found), SAY).decisive == "用原来的学习率运行相同的步：损失继续下降。"
    unchecked = [{"rule": "FS101", "needs": ["*/input amax"], "why": "missing on 3 of 9 tensors"}]
    card = evidence_card({**found, "not_checked": unchecked}, SAY, rules={"FS101": "invalid input"})
    assert [(item.why, item.title, item.partly) for item in card.unchecked] == [
        ("9 个张量中有 3 个缺失", "输入数据无效", True)
    ]
