"""The page of rules on the real server: a rule is tried, saved and undone, a channel is added and told,
alerts are silenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.dashboards.axe import violations
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.sample import HOSTILE
from tests.dashboards.watched import Watched, watched_page
from tests.server.ruled_runs import SPIKE, rows_of
from tests.server.slack import slack

ROWS_A_BATCH = 16  # where what comes in live counts; else all at once, which is judged once
CARD = f"#{SPIKE}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """With two runs: in one the rule fires, in the other it leaves a note."""
    found = RealServer(tmp_path_factory.mktemp("server"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FLOATSCOPE_ALLOW_PRIVATE_WEBHOOKS", "1")
        patched.setenv("FLOATSCOPE_ALERT_GROUP_S", "0")
        found.start()
    for kind in ("garbled", "hard"):
        trained(found, kind, kind)
    yield found
    found.kill()


def trained(server: RealServer, run: str, kind: str, *, size: int | None = None) -> None:
    """A run whose steps have arrived, in batches of so many."""
    described, rows = rows_of(kind)
    size = size or len(rows)
    server.call("POST", "/api/v1/runs", {"run_id": run, **described, "name": HOSTILE, "project": HOSTILE})
    for seq, at in enumerate(range(0, len(rows), size)):
        server.send(run, seq, rows[at : at + size])


@pytest.fixture
def rules(context: BrowserContext, server: RealServer) -> Iterator[Watched]:
    """The page, signed in with every scope."""
    with watched_page(context, server.url) as watched:
        watched.page.goto(f"{server.url}/?token={TOKEN}")
        watched.page.goto(f"{server.url}/rules")
        yield watched


def setting(server: RealServer, project: str = "*") -> object:
    """What is set for the rule in a project, as the API tells it."""
    settings = server.call("GET", f"/api/v1/rules/{SPIKE}", {})["settings"]
    return next((found for found in settings if found["project"] == project), None)


def test_a_threshold_is_tried_saved_and_undone(rules: Watched, server: RealServer) -> None:
    page = rules.page
    page.goto(f"{server.url}/rules#{SPIKE}")
    card = page.locator(CARD)
    expect(card).to_be_focused()
    expect(card.get_by_text("The loss jumps far above its level")).to_be_visible()
    expect(card.get_by_text("fired once")).to_be_visible()
    page.locator(f"{CARD}-edit").focus()
    page.keyboard.press("Enter")
    field = card.get_by_label("spike_nats")
    expect(field).to_be_focused()
    save = card.get_by_role("button", name="Save")
    expect(save).to_be_disabled()
    field.fill("0.1")
    expect(card.locator(".err").get_by_text("A number from 0.4 to 100 nats")).to_be_visible()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(save).to_be_disabled()
    field.fill("1.5")
    expect(card.locator(".diff")).to_contain_text("- spike_nats = 3")
    expect(card.locator(".diff")).to_contain_text("+ spike_nats = 1.5")
    card.get_by_role("button", name="Back-test").click()
    expect(card.locator(".bt tr.new")).to_have_text(re.compile(r"new\s*2\s*0\s*0\s*0"), timeout=30_000)
    expect(card.locator(".bt tr.now")).to_have_text(re.compile(r"now\s*1\s*0\s*0"))
    missed = card.locator(".bt tr.now td").nth(4)
    expect(missed).to_have_attribute("title", re.compile("cannot have missed any"))
    expect(card.locator(".bt").get_by_text("2 runs judged")).to_be_visible()
    expect(card.locator(".bt li")).to_contain_text(f"{HOSTILE}: a new alarm at step")
    assert page.evaluate("window.stolen") is None
    assert violations(page, CARD) == []
    field.fill("1.6")
    expect(card.locator(".bt .stale")).to_be_visible()
    trained(server, "meanwhile", "garbled")
    expect(card.get_by_text("fired 2 times")).to_be_visible(timeout=20_000)
    expect(field).to_have_value("1.6")
    field.fill("1.5")
    save.click()
    expect(page.locator(".notice.status")).to_contain_text(f"{SPIKE} is saved for every project.")
    expect(card.locator(".editor")).to_have_count(0)
    expect(page.locator(f"{CARD}-edit")).to_be_focused()
    expect(card.locator(".limits .moved")).to_contain_text("spike_nats 1.5 nats default 3")
    expect(card.locator(".chip.info")).to_have_text("Changed")
    expect(page.locator("#changes .change").first).to_contain_text("spike_nats")
    assert setting(server) is not None
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".notice.status")).to_contain_text("Undone")
    expect(card.locator(".limits .moved")).to_have_count(0)
    assert setting(server) is None


def test_what_somebody_else_saved_meanwhile_is_told(rules: Watched, server: RealServer) -> None:
    page = rules.page
    card = page.locator(CARD)
    page.locator(f"{CARD}-edit").click()
    card.get_by_label("Project").select_option(HOSTILE)
    card.get_by_label("Severity of its alarms").select_option("critical")
    server.call(
        "PUT", f"/api/v1/rules/{SPIKE}/settings", {"project": HOSTILE, "thresholds": {"spike_nats": 9}}
    )
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_role("alert").filter(has_text="saved another setting")).to_be_visible()
    expect(card.get_by_label("Severity of its alarms")).to_have_value("critical")
    expect(card.locator(".diff")).to_contain_text("- spike_nats = 9")
    card.get_by_role("button", name="Save").click()
    expect(page.locator(".notice.status")).to_contain_text(f"{SPIKE} is saved for {HOSTILE}.")
    assert setting(server, HOSTILE)["severity"] == "critical"  # type: ignore[index]
    page.locator("#project").select_option(HOSTILE)
    page.wait_for_url("**/rules?project=*")
    expect(card.get_by_text("Scope this project")).to_be_visible()
    page.locator(f"{CARD}-edit").click()
    card.get_by_role("button", name="Reset to default").click()
    expect(page.locator(".notice.status")).to_contain_text("is as it was written again")
    assert setting(server, HOSTILE) is None


def test_a_rule_is_switched_off_and_found_again(rules: Watched, server: RealServer) -> None:
    page = rules.page
    page.locator(f"{CARD}-on").press("Space")
    expect(page.locator(".notice.status")).to_contain_text(f"{SPIKE} is off")
    expect(page.locator(f"{CARD} .chip.idle")).to_have_text("Off")
    page.locator('[data-filter="off"]').click()
    expect(page.locator(".rule:visible")).to_have_count(1)
    assert "show=off" in page.url
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#none")).to_be_visible()
    page.get_by_role("button", name="Show all rules").click()
    page.locator("#q").fill("loss spike")
    expect(page.locator(".rule:visible")).to_have_count(1)
    page.reload()
    expect(page.locator("#q")).to_have_value("loss spike")
    expect(page.locator("#shown")).to_contain_text("1 of ")
    page.goto(f"{server.url}/rules?show=nonsense&family=x&project=nobody%00#FS999")
    expect(page.locator("#unknown")).to_have_text("There is no rule FS999. All rules there are follow.")
    expect(page.locator(".told-strange")).to_contain_text("No run and no setting names the project nobody")
    assert page.locator(".rule:visible").count() > 20
    assert setting(server)["enabled"] is True if setting(server) else True  # type: ignore[index]


def test_a_channel_is_added_told_and_deleted(rules: Watched, server: RealServer) -> None:
    page = rules.page
    rules.expected += ["422", "409"]
    with slack((200, {}), (403, {})) as receiver:
        expect(page.get_by_text("Nobody is told of alerts yet.")).to_be_visible()
        page.locator("#add-channel").click()
        page.get_by_role("button", name="Webhook Signed JSON").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill(HOSTILE)
        dialog.get_by_label("Address").fill("http://127.0.0.1:22/")
        dialog.get_by_label("Quiet from").fill("20:00")
        dialog.get_by_role("button", name="Add").click()
        expect(dialog.get_by_role("alert")).to_contain_text("both times")
        dialog.get_by_label("Quiet until").fill("07:00")
        dialog.get_by_role("button", name="Add").click()
        expect(dialog.get_by_role("alert")).to_contain_text("422")
        dialog.get_by_label("Address").fill(receiver.url)
        assert violations(page, "dialog[open]") == []
        dialog.get_by_role("button", name="Add").click()
        secret = page.locator("#channel-secret")
        expect(secret).to_be_visible()
        made = secret.inner_text()
        page.get_by_role("button", name="I have it").click()
        card = page.locator("[data-channel]")
        expect(card).to_contain_text(HOSTILE)
        expect(card.get_by_role("img", name="Quiet from 20:00 to 07:00 every day")).to_be_visible()
        assert made not in page.content()
        assert "/T0/B0/secret" not in page.content()
        card.get_by_role("button", name="Send test").click()
        expect(card.locator(".tested")).to_contain_text("HTTP 200")
        assert receiver.got[-1]["event"] == "test"
        card.locator("summary").click()
        expect(card.get_by_text("Nothing was sent yet. Tests are not listed.")).to_be_visible()
        card.get_by_role("button", name="Switch off").click()
        expect(card.locator(".chip.idle")).to_have_text("Off")
        page.get_by_role("button", name="Undo").click()
        expect(card.locator(".chip.idle")).to_have_count(0)
        card.get_by_role("button", name="Change").click()
        dialog.get_by_label("Quiet from").fill("")
        dialog.get_by_label("Quiet until").fill("")
        dialog.get_by_label("Told from which severity").select_option("info")
        (known,) = server.call("GET", "/api/v1/channels", {})["items"]
        server.call("PATCH", f"/api/v1/channels/{known['id']}", {"min_severity": "critical"})
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("environment changed this channel at ")
        expect(dialog.get_by_role("alert")).to_contain_text("Told from which severity. Your values are still")
        expect(dialog.get_by_label("Told from which severity")).to_have_value("info")
        dialog.get_by_role("button", name="Save").click()
        expect(card).to_contain_text("Notes and worse, every project.")
        trained(server, "told", "garbled", size=ROWS_A_BATCH)
        expect(card).to_contain_text("Does not arrive: ", timeout=20_000)
        card.locator("summary").click()
        card.locator("summary").click()
        card.get_by_role("button", name="Try now").click()
        expect(card).to_contain_text("Last message arrived", timeout=20_000)
        expect(card.locator(".deliveries")).to_contain_text("arrived")
        card.get_by_role("button", name="Delete").click()
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(card).to_have_count(1)
        card.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("Nobody is told of alerts yet.")).to_be_visible()
        assert page.evaluate("window.stolen") is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"state": "failed", "result": {"reason": HOSTILE}}, f"The back-test failed: {HOSTILE}."),
        (
            {
                "state": "done",
                "result": {"totals": {"runs": 0, "skipped": 1}, "skipped": [{"why": "it is gone"}]},
            },
            "No run of the last 30 days can be judged.",
        ),
    ],
    ids=["failed", "nothing to judge"],
)
def test_a_back_test_without_a_result_says_why(rules: Watched, answer: dict[str, Any], words: str) -> None:
    page = rules.page
    whole = {"created": "2026-11-30T12:00:00Z", "request": {"days": 30}, **answer}
    page.route("**/api/v1/backtests/*", lambda route: route.fulfill(json=whole))
    page.locator("#FS203-edit").click()
    card = page.locator("#FS203")
    expect(card.get_by_text("An invariant has no threshold")).to_be_visible()
    card.get_by_role("button", name="Back-test").click()
    expect(card.locator(".bt")).to_contain_text(words)
    page.keyboard.press("Escape")


def test_alerts_are_silenced_and_heard_again(rules: Watched, server: RealServer) -> None:
    page = rules.page
    page.locator("#add-silence").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Runs").select_option(f"project:{HOSTILE}")
    dialog.get_by_label("Findings").select_option("cause:plateau")
    dialog.get_by_label("Why").fill(HOSTILE)
    dialog.get_by_role("button", name="Silence").click()
    silence = page.locator("[data-silence]").first
    expect(silence).to_contain_text(HOSTILE)
    expect(silence).to_contain_text("4 h left")
    assert violations(page, "#silences") == []
    silence.get_by_role("button", name="End now").click()
    expect(page.locator(".ended summary")).to_have_text("1 ended lately")
    assert page.evaluate("window.stolen") is None


def test_who_may_only_read_sees_all_and_changes_nothing(
    browser: Browser, server: RealServer, tmp_path: Path
) -> None:
    given = server.call("POST", "/api/v1/tokens", {"name": "reader", "scopes": ["read"]})["token"]
    context = browser.new_context(viewport={"width": 1440, "height": 844})
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(f"{server.url}/?token={given}")
        page.goto(f"{server.url}/rules#{SPIKE}")
        expect(page.locator("#readonly")).to_contain_text("may only read")
        for name in (f"{CARD}-edit", f"{CARD}-on", "#add-channel", "#add-silence"):
            expect(page.locator(name)).to_be_disabled()
        expect(page.locator("#changes")).to_have_count(0)
        assert violations(page) == []
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.screenshot(path=tmp_path / "rules-dark.png")
        page.locator("#q").fill("loss spike")  # one card stands for all: axe looks at what is shown
        expect(page.locator(".rule:visible")).to_have_count(1)
        assert violations(page) == []
    context.close()
