"""Static files: the plotly.js that is served, colours that match between CSS and figures, size of the
scripts."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs_version

from floatscope_dashboards import assets
from floatscope_dashboards.theme import THEMES

# npm package plotly.js-cartesian-dist-min 4.1.1, file plotly-cartesian.min.js
VENDORED_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
SCRIPT_BUDGET_GZ_BYTES = 25_000
RUN_PAGE_BUDGET_GZ_BYTES = 31_000


def test_the_vendored_plotly_is_the_published_file_and_of_the_wheels_version() -> None:
    vendored = assets.static_dir() / "vendor" / assets.PLOTLY_FILE
    assert hashlib.sha256(vendored.read_bytes()).hexdigest() == VENDORED_SHA256
    assert assets.script_version(vendored) == assets.PLOTLY_VERSION == get_plotlyjs_version()


def test_its_licence_is_beside_it() -> None:
    text = (assets.static_dir() / "vendor" / "plotly-cartesian-LICENSE.txt").read_text()
    assert "MIT License" in text
    assert "Plotly" in text


def test_the_vendored_file_is_used_when_the_versions_agree_or_there_is_no_wheel() -> None:
    for wheel in (assets.wheel_script(), None):
        script = assets.plotly_script(wheel)
        assert script.url == f"/static/vendor/plotly-cartesian-{get_plotlyjs_version()}.min.js"
        assert script.path.is_file()
    assert assets.outside_files() == {}


def test_another_wheel_brings_its_own_file(tmp_path: Path) -> None:
    wheel = tmp_path / "plotly.min.js"
    wheel.write_text("/**\n* plotly.js v9.9.9\n*/")
    script = assets.plotly_script(wheel)
    assert (script.url, script.path, script.version) == ("/static/vendor/plotly-9.9.9.min.js", wheel, "9.9.9")


def test_a_file_without_a_version_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "plotly.min.js"
    wheel.write_text("hello")
    with pytest.raises(ValueError, match=r"plotly\.min\.js: expected a plotly\.js header"):
        assets.plotly_script(wheel)


def test_the_fingerprint_is_stable() -> None:
    assert re.fullmatch(r"[0-9a-f]{10}", assets.fingerprint())
    assert assets.fingerprint() == assets.fingerprint()


@pytest.mark.parametrize(("theme", "group"), [("light", 1), ("dark", 2)])
def test_figures_and_stylesheet_have_the_same_colours(theme: str, group: int) -> None:
    css = (assets.static_dir() / "app.css").read_text()
    colours = {
        found.group(1): (found.group(2), found.group(3))
        for found in re.finditer(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]+), (#[0-9a-f]+)\)", css)
    }
    for name, colour in THEMES[theme].items():
        if name in colours:
            assert colours[name][group - 1] == colour, name
        else:
            assert name.endswith(("-band", "-raw")), f"{name} is no token of app.css"


def test_a_page_names_all_modules_that_it_loads() -> None:
    named = assets.modules(("run.js", "pictures.js"))
    assert named[:2] == ("run.js", "pictures.js")
    assert len(set(named)) == len(named)
    assert set(named) == loaded("run.js", loaded("pictures.js", set()))
    assert assets.modules(("theme.js", "gone.js")) == ("theme.js",)


def test_the_fingerprint_is_part_of_an_address() -> None:
    own = assets.fingerprint()
    assert assets.without_fingerprint(f"/static/{own}/js/run.js") == ("/static/js/run.js", own)
    for without in ("/static/js/run.js", "/static/vendor/x.js", f"/static/{own}", f"/static/{own}/"):
        assert assets.without_fingerprint(without) == (without, None)


def loaded(entry: str, seen: set[str]) -> set[str]:
    """The module and all that it imports."""
    if entry not in seen:
        seen.add(entry)
        text = (assets.static_dir() / "js" / entry).read_text()
        for name in re.findall(r"from '\./([a-z_]+\.js)'", text):
            loaded(name, seen)
    return seen


ENTRIES = (
    "advice.js",
    "alerts.js",
    "compare.js",
    "compare_choose.js",
    "run.js",
    "runs.js",
    "plain.js",
    "rules.js",
    "settings.js",
    "tensor.js",
    "tensors.js",
)
"""The module of each page."""
ON_REQUEST = (
    "alert_count.js",
    "copy.js",
    "alerts_asks.js",
    "palette.js",
    "keys_help.js",
    "rule_editor.js",
    "channel_form.js",
    "silence_dialog.js",
    "dialog_form.js",
    "pictures.js",
    "chart_files.js",
    "loss_table.js",
    "verdict_acts.js",
    "tensor_panels.js",
    "histogram_view.js",
    "time_ticks.js",
    "zoom.js",
    "compare_baseline.js",
    "difference_table.js",
)
"""What a page loads when the reader asks for it."""


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_scripts_of_a_page_stay_small(entry: str) -> None:
    names = loaded(entry, {"theme.js"})
    folder = assets.static_dir() / "js"
    assert sum(len(gzip.compress((folder / name).read_bytes())) for name in names) < (
        RUN_PAGE_BUDGET_GZ_BYTES if entry == "run.js" else SCRIPT_BUDGET_GZ_BYTES
    )


def test_no_script_is_left_over() -> None:
    used = set.union(*(loaded(entry, {"theme.js"}) for entry in (*ENTRIES, *ON_REQUEST)))
    assert used == {path.name for path in (assets.static_dir() / "js").glob("*.js")}


def test_styles_and_scripts_name_no_other_host() -> None:
    for path in assets.static_dir().rglob("*"):
        if path.suffix in (".css", ".js") and path.parent.name != "vendor":
            assert not re.search(r"https?://", path.read_text()), path
