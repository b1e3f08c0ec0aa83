"""The pages as HTML: escaping, status in three ways, nothing inline, only links that lead somewhere."""

from __future__ import annotations

import gettext
import gzip
import json
import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from jinja2 import Environment

from floatscope_dashboards import pages as pages_module
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.runs_query import RunsQuery
from floatscope_dashboards.say import Say
from floatscope_dashboards.views import RunView
from tests.dashboards import sample
from tests.dashboards.sample import HOSTILE, NOW, finding, info, run_view, runs_view, verdict
from tests.dashboards.showing import Shown

VOID = {"meta", "link", "input", "br", "img", "wbr"}


@pytest.fixture(scope="module")
def pages() -> Shown:
    return Shown()


class Reader(HTMLParser):
    """Collects tags and text, and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def hostile_view() -> RunView:
    return run_view(
        verdict(
            finding(
                id=HOSTILE,
                summary=HOSTILE,
                tensor=HOSTILE,
                layer=HOSTILE,
                rule=HOSTILE,
                evidence=[
                    {"signal": HOSTILE, "tensor": HOSTILE, "step": 3, "value": HOSTILE, "expected": HOSTILE}
                ],
                alternatives=[{"cause": HOSTILE, "confidence": 0.1, "against": HOSTILE}],
                remedy={"text": HOSTILE, "settings": {HOSTILE: HOSTILE, "torchao": HOSTILE}},
                decisive_test=HOSTILE,
            )
        ),
        name=HOSTILE * 12,
        project=HOSTILE,
        recipe=HOSTILE,
        headline=HOSTILE,
        baseline="x",
        info=info(reason=HOSTILE, tensors={HOSTILE + "/input": {"format": HOSTILE, "call_order": 1}}),
        status="crashed",
        heat_stats=("headroom_log2", HOSTILE),
    )


def all_pages(pages: Shown) -> dict[str, str]:
    hostile_row = sample.row(name=HOSTILE, project=HOSTILE, recipe=HOSTILE, headline=HOSTILE, remedy=HOSTILE)
    return {
        "run": pages.run(run_view()),
        "healthy run": pages.run(run_view(verdict(), health="healthy", onset_step=None)),
        "hostile run": pages.run(hostile_view()),
        "runs": pages.runs(runs_view(sample.row(), sample.healthy_row())),
        "hostile runs": pages.runs(runs_view(hostile_row)),
        "empty": pages.runs(runs_view()),
        "login": pages.login(HOSTILE, "/runs/x?y=" + HOSTILE),
        "message": pages.message(404, HOSTILE, HOSTILE),
    }


def test_every_page_is_well_formed_and_has_no_inline_script_or_handler(pages: Shown) -> None:
    for name, html in all_pages(pages).items():
        reader = read(html)
        for tag, attributes in reader.tags:
            assert not any(key.startswith("on") for key in attributes), (name, tag, attributes)
            if tag == "script":
                assert attributes.get("src") or attributes.get("type") == "application/json", name


def test_names_from_outside_stay_text(pages: Shown) -> None:
    for name, html in all_pages(pages).items():
        tags = [tag for tag, _ in read(html).tags]
        assert "img" not in tags, name
        assert "<script>window" not in html, name
        if name.startswith("hostile"):
            assert "&lt;script&gt;window.stolen=1" in html, name


def test_the_data_block_is_json_and_cannot_end_its_element(pages: Shown) -> None:
    html = pages.run(hostile_view())
    block = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', html, re.DOTALL)
    assert block is not None
    data = json.loads(block.group(1))
    assert data["headline"] == HOSTILE
    assert data["order"] == {HOSTILE: 1}


def test_addresses_lead_only_to_pages_that_exist(pages: Shown) -> None:
    known = re.compile(
        r"^(/|/\?.*|/(runs|alerts)/[^?#]+.*|/(compare|alerts|rules|settings|login)([?#].*)?|#[\w-]+)$"
    )
    for name, html in all_pages(pages).items():
        for tag, attributes in read(html).tags:
            if tag == "a":
                assert known.match(attributes["href"] or ""), (name, attributes)
            if tag == "form":
                assert attributes["action"] in ("/login", "/")
            for key in ("src", "href"):
                value = attributes.get(key) or ""
                assert "//" not in value, (name, value)


@pytest.mark.parametrize(
    ("health", "sign", "word"),
    [
        ("critical", "\u25b2", "Critical"),
        ("warning", "\u25c6", "Warning"),
        ("healthy", "\u2713", "Healthy"),
    ],
)
def test_status_is_in_the_title_as_a_sign_and_on_the_page_as_shape_and_word(
    pages: Shown, health: str, sign: str, word: str
) -> None:
    found = verdict(finding(severity=health)) if health != "healthy" else verdict()
    cause = None if health == "healthy" else "stale_scale_saturation"
    html = pages.run(run_view(found, health=health, cause=cause))
    title = re.search(r"<title>(.*?)</title>", html)
    assert title is not None
    assert title.group(1).startswith(f"{sign} llama-7b-e4m3-r3")
    kind = {"critical": "crit", "warning": "warn", "healthy": "ok"}[health]
    assert f'<span class="chip {kind}"><svg' in html
    assert f"</svg>{word}</span>" in html


def test_a_silent_run_wears_its_silence_in_the_title(pages: Shown) -> None:
    html = pages.run(run_view(verdict(), health="healthy", status="stalled", onset_step=None))
    assert "<title>\u2016 llama-7b-e4m3-r3" in html


def test_a_recovered_run_says_so_in_its_head_while_its_health_is_what_the_finding_was(pages: Shown) -> None:
    back = verdict(finding(state="recovered", resolved_step=380), status="healthy")
    html = pages.run(run_view(back, health="critical"))
    assert "<title>\u21ba llama-7b-e4m3-r3" in html
    chips = html[html.index('class="chips"') : html.index('class="headacts"')]
    assert "Recovered" in chips
    assert "Critical" not in chips


def test_a_run_without_a_step_is_not_called_healthy_and_names_no_recipe_it_does_not_know(
    pages: Shown,
) -> None:
    waiting = run_view(verdict(), health="healthy", cause=None, onset_step=None, recipe="",
                       first_step=None, last_step=None, last_seen=None)  # fmt: skip
    html = pages.run(waiting)
    chips = html[html.index('class="chips"') : html.index('class="headacts"')]
    assert "Running" in chips
    assert "Healthy" not in chips
    assert "Recipe" not in html
    assert "<title>\u25b6 llama" in html


def test_a_resumed_run_tells_what_the_faint_curve_is_and_hands_its_segments_to_the_script(
    pages: Shown,
) -> None:
    went = [{"segment": 0, "first_step": 0}, {"segment": 1, "first_step": 80}]
    view = run_view()
    html = pages.run(run_view({**verdict(), "source": {"segments": went}}))
    assert '"segments": [[0, 0], [1, 80]]' in html
    assert "before a resume" in html
    assert "before a resume" not in pages.run(view)


def test_a_rule_that_lacks_several_things_is_counted_once(pages: Shown) -> None:
    lacks = [{"rule": "FS404", "needs": [name], "why": "not logged"} for name in ("a", "b", "c")]
    html = pages.run(run_view({**verdict(), "not_checked": lacks}))
    assert "1 check could not look" in html


def test_the_verdict_is_readable_without_scripts(pages: Shown) -> None:
    text = " ".join("".join(read(pages.run(run_view())).text).split())
    for part in (
        "Activations of blocks.8.mlp.fc2 clip",
        "Step 300",
        "blocks.8.mlp.fc2/input",
        "Roll back to a checkpoint",
        "Float8CurrentScaling()",
        "Values clipped 4.1 %",
        "expected below 0.5 %",
        "Activation outliers grow",
        "FS301",
        "not logged",
        "93 %",
    ):
        assert part in text, part


def test_nan_inf_and_missing_are_three_words(pages: Shown) -> None:
    evidence = [
        {"signal": "loss", "step": 1, "value": value, "expected": ""}
        for value in ("NaN", "Infinity", None, 0.0)
    ]
    text = " ".join("".join(read(pages.run(run_view(verdict(finding(evidence=evidence))))).text).split())
    for part in ("Loss NaN", "Loss Inf", "Loss missing", "Loss 0 nats"):
        assert part in text


def test_the_empty_overview_shows_the_lines_to_embed(pages: Shown) -> None:
    text = "".join(read(pages.runs(runs_view())).text)
    for line in (
        "import floatscope",
        "floatscope.watch(model, optimizer",
        "monitor.step(",
        "floatscope demo",
    ):
        assert line in text


def test_an_empty_project_says_so_and_leads_back(pages: Shown) -> None:
    html = pages.runs(runs_view(total=3, query=RunsQuery(project="a<b")))
    assert "No run in project a&lt;b" in html


def test_login_says_what_was_wrong_and_where_to_go_next(pages: Shown) -> None:
    html = pages.login("This token is not valid.", "/runs/a?at=3")
    assert 'role="alert"' in html
    assert "This token is not valid." in html
    assert 'name="next" value="/runs/a?at=3"' in html
    assert 'role="alert"' not in pages.login(None, "/")


def test_message_says_what_is_the_matter(pages: Shown) -> None:
    html = pages.message(404, "No such run", "It may have been deleted.")
    assert "404" in html
    assert "It may have been deleted." in html


def test_only_something_to_copy_has_a_copy_button(pages: Shown) -> None:
    sentence = {"text": "Skip the batch.", "settings": {"transformer_engine": "not a scale problem"}}
    html = pages.run(run_view(verdict(finding(remedy=sentence))))
    assert "not a scale problem" in html
    assert "copy-setting" not in html
    assert "copy-setting" in pages.run(run_view())


def test_pages_are_small(pages: Shown) -> None:
    assert len(gzip.compress(pages.run(run_view()).encode())) < 15_000
    rows = [
        sample.row(run_id=f"run-{index}", last_seen=NOW - timedelta(seconds=index)) for index in range(200)
    ]
    assert len(gzip.compress(pages.runs(runs_view(*rows)).encode())) < 60_000


def test_a_run_with_100_000_tensors_keeps_the_page_small(pages: Shown) -> None:
    tensors = {f"layers.{n}.fc/input": {"format": "e4m3", "call_order": n} for n in range(100_000)}
    html = pages.run(run_view(info=info(tensors=tensors)))
    assert len(html) < 60_000
    assert "100,000 FP8 tensors" in pages.run(
        run_view(verdict(), info=info(tensors=tensors), health="healthy", onset_step=None)
    )


class Shouted(gettext.NullTranslations):
    """A language that says everything louder."""

    def gettext(self, message: str) -> str:
        return f"!{message}"


def test_templates_are_compiled_once_for_all_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    Pages().prepare()

    def compiled(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Environment, "_generate", compiled)
    say = {"en": Say("en", gettext.NullTranslations(), {}), "zh-CN": Say("zh-CN", Shouted(), {})}
    monkeypatch.setattr(pages_module, "catalogues", lambda: say)
    shown = Pages()
    shown.prepare()
    texts = [Shown(shown, language).login(None, "/") for language in ("en", "zh-CN")]
    assert ">Skip to content<" in texts[0]
    assert ">!Skip to content<" in texts[1]


def test_the_code_of_the_cause_stands_beside_its_rule(pages: Shown) -> None:
    text = " ".join("".join(read(pages.run(run_view())).text).split())
    assert re.search(r"Rule FS\d{3} \w+_\w+", text)
