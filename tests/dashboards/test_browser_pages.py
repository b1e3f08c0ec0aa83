"""Pages in a real Chromium: hostile names, phone width, no scripts."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from floatscope_dashboards.views import RunView
from tests.dashboards import sample
from tests.dashboards.sample import HOSTILE, healthy_row, row, runs_view
from tests.dashboards.site import Site
from tests.dashboards.test_pages import hostile_view
from tests.dashboards.watched import Watched

THREE = (
    row(run_id="bad", name="llama-bad"),
    row(run_id="meh", name="qwen-meh", health="warning"),
    healthy_row(run_id="good", name="gemma-good"),
)


def test_names_with_markup_are_shown_and_never_run(watched: Watched, site: Site) -> None:
    hostile_site(site)
    hostile = hostile_view()
    site.runs = lambda: runs_view(hostile.row)
    page = watched.page
    page.goto(site.url + "/")
    expect(page.locator(".runs .name")).to_contain_text("<script>window.stolen=1</script>")
    page.goto(site.url + "/runs/x")
    page.locator("#loss .main-svg").first.wait_for()
    expect(page.locator("h1")).to_contain_text("<script>")
    expect(page.locator("#verdict-h")).to_contain_text(HOSTILE)
    page.goto(site.url + "/login?next=" + "%22%3E%3Cscript%3Ewindow.stolen=3%3C/script%3E")
    assert page.evaluate("window.stolen") is None


def hostile_site(site: Site) -> None:
    hostile = hostile_view()
    views: dict[str, RunView | None] = {"k3f9q2": site.run("k3f9q2"), "x": hostile}
    site.run = lambda run: views.get(run)
    site.runs = lambda: runs_view(hostile.row, *THREE)
    curves = sample.faulty_curves()
    site.curves = lambda run: curves


def test_without_scripts_verdict_and_numbers_are_there_and_dead_controls_are_not(
    browser: Browser, site: Site
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.url + "/runs/k3f9q2")
    expect(page.get_by_text("Activations of blocks.8.mlp.fc2 clip").first).to_be_visible()
    expect(page.get_by_text("Float8CurrentScaling()")).to_be_visible()
    expect(page.locator(".kpi").first).to_be_visible()
    expect(page.locator(".ghost svg")).to_be_visible()
    expect(page.get_by_text("The charts need JavaScript")).to_be_visible()
    for control in page.locator(".needs-js").all():
        assert control.is_hidden()
    page.goto(site.url + "/")
    expect(page.locator("#runs tr[data-run]")).to_have_count(2)
    context.close()


def test_the_token_can_be_looked_at_before_it_is_sent(watched: Watched, site: Site) -> None:
    page = watched.page
    page.goto(site.url + "/login?next=/runs/x")
    field = page.locator("#token")
    assert field.get_attribute("type") == "password"
    page.get_by_role("button", name="Show").click()
    assert field.get_attribute("type") == "text"
    assert page.locator('input[name="next"]').get_attribute("value") == "/runs/x"
