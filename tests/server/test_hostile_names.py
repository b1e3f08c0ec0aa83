"""Names are hostile: markup, template syntax, direction marks, a kilobyte. On every page and in every problem
they are text and nothing else.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from floatscope_server.errors import Problem
from floatscope_server.reference import reference
from tests.server.live import Client
from tests.server.samples import body, faulty_run, rows, send

HTML = {"Accept": "text/html"}
MARK = "MARK"
ADDRESSES = {"href", "src", "action", "formaction", "data", "xlink:href"}
HOSTILE = {
    "script": f"<script>{MARK}()</script>",
    "attribute": f'" onmouseover="{MARK}()" x=\'',
    "image": f"<img src=x onerror={MARK}()>",
    "data block": f"</script><!--<svg onload={MARK}()>",
    "address": f"javascript:{MARK}()//https://evil.example",
    "template": "{{7*191}}{% include 'login.html' %}${7*191}",
    "entity": f"&lt;b&gt;&#60;script&#62;{MARK}",
    "direction": f"\u202e{MARK}\u2066\u200f",
    "long": f"<b {MARK}" + "x" * (1023 - 10),
}


class Found(HTMLParser):
    """What a browser would make of a page: its elements, handlers and addresses."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts = 0
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ADDRESSES:
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def judged(html: str) -> Found:
    """The page, after a look for what only a name that was not escaped could have put there."""
    found = Found(html)
    assert found.handlers == []
    assert found.tags.isdisjoint({"img", "iframe", "object", "embed", "base", "b0", "style"}), found.tags
    for address in found.addresses:
        assert address.startswith(("/", "#")), address
        assert not address.startswith("//"), address
    assert "1337" not in html
    return found


@pytest.fixture(params=list(HOSTILE))
def named(request: pytest.FixtureRequest, client: Client) -> tuple[Client, str]:
    """A server with a faulty run in which everything that can have a name has this one."""
    name = HOSTILE[request.param]
    described, steps = faulty_run(96, fault_at=64)
    tensor = next(iter(steps[0]["tensors"]))
    renamed = [
        {
            **step,
            "tensors": {
                f"{name[:900]}/input" if key == tensor else key: value
                for key, value in step["tensors"].items()
            },
        }
        for step in steps
    ]
    fields = {key: value for key, value in described.items() if key not in ("name", "project", "tensors")}
    recipe = {"name": name}
    assert client.open_run("h", **{**fields, "name": name, "project": name, "recipe": recipe}).status == 201
    send(client, "h", renamed, size=48)
    client.call("POST", "/api/v1/runs/h/finish", {"status": "failed", "reason": name})
    return client, name


def test_every_page_shows_a_hostile_name_as_text(named: tuple[Client, str]) -> None:
    client, name = named
    client.open_run("plain")
    plain = judged(client.call("GET", "/runs/plain", headers=HTML).text)
    overview = judged(client.call("GET", "/", headers=HTML).text)
    page = judged(client.call("GET", "/runs/h", headers=HTML).text)
    assert page.scripts == plain.scripts
    assert any(name in text for text in ("".join(overview.text), "".join(page.text)))
    filtered = client.call("GET", f"/?project={quote(name)}", headers=HTML)
    assert filtered.status == 200
    judged(filtered.text)
    html = client.call("GET", "/runs/h", headers=HTML).text
    block = html.partition('id="page-data">')[2].partition("</script>")[0]
    json.loads(block)
    assert "<" not in block


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_problems_and_messages_hold_it_as_text(client: Client, name: str) -> None:
    path = f"/nothing/{quote(name, safe='')}"
    judged(client.call("GET", path, headers=HTML).text)
    judged(client.call("GET", f"/login?next=/{quote(name)}&failed=1", headers=HTML).text)
    for machine in (f"/api/v1/runs?status={quote(name)}", f"/api/v1/{quote(name, safe='')}"):
        answer = client.get(machine)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json["detail"]


def test_a_page_of_a_problem_escapes_it() -> None:
    text = HOSTILE["image"]
    document = {
        "info": {"version": text},
        "paths": {f"/{text}": {"get": {"description": text, "parameters": [{"name": text, "in": "query"}]}}},
    }
    judged(reference(document))
    assert Problem(404, "t", text).body()["detail"] == text


def test_direction_marks_stay_inside_the_element_of_the_name(client: Client) -> None:
    css = client.get("/static/app.css").text
    assert "unicode-bidi: isolate" in css


@pytest.mark.parametrize(
    "name", ["a\x00b", "a\nb", "a\x1b[31mb", "a\u2028b", "a\x85b", "n" * 1025, "\u00e9" * 513]
)
def test_control_characters_and_longer_names_are_refused(client: Client, name: str) -> None:
    answer = client.open_run("c", name=name)
    assert (answer.status, answer.json["field"]) == (422, "run.name")
    client.open_run("c")
    steps = [{"step": 1, "tensors": {f"{name}/input": {"amax": 1.0}}}]
    assert client.put("c", 0, {"steps": steps}).status == 422
    assert client.put("c", 0, body(rows(0, 1))).status == 200
