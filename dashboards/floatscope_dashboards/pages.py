"""Pages as HTML text. Jinja2 with autoescape on: whatever a name holds stays text.

    pages = Pages()
    html = pages.show(run_page(view, say), shell)

The verdict, the evidence and the key numbers are in the HTML; scripts only add the charts and keep the page
live. A Content-Security-Policy that suits every page is `CONTENT_SECURITY_POLICY`: no inline script, no other
host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatscope_dashboards import assets
from floatscope_dashboards.compiled import COMPILED
from floatscope_dashboards.page import Page, Shell
from floatscope_dashboards.say import ENGLISH, Say, catalogues
from floatscope_dashboards.wording import number_text

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; object-src 'none'"
)
"""No inline script and no inline stylesheet. plotly.js writes style attributes, so these are allowed; its PNG
button needs data: and blob: images."""

SEEN_FIRST = ("base.html", "login.html", "runs.html", "run.html")
"""Templates that a reader of a server just started is likely to want; the others are compiled after them."""

_BREAK_AFTER = re.compile(r"(?<=[./_-])")


class Pages:
    """All pages in all languages. Make one and keep it: templates are compiled once."""

    def __init__(self) -> None:
        self._say = catalogues()
        self._shared = {
            "static": f"{assets.STATIC_URL}/{assets.fingerprint()}",
            "modules": cache(assets.modules),
            "plotly_url": assets.plotly_script(assets.wheel_script()).url,
            "plotly_style_url": f"{assets.STATIC_URL}/vendor/{assets.PLOTLY_STYLE}",
        }
        self._environments: Mapping[str, Environment] = {
            language: _environment(say) for language, say in self._say.items()
        }

    def prepare(self) -> None:
        """Compiles every template, so that the first reader of a page does not wait for that."""
        for environment in self._environments.values():
            for name in sorted(environment.list_templates(), key=lambda name: (name not in SEEN_FIRST, name)):
                environment.get_template(name)

    def say(self, language: str) -> Say:
        """What says things in that language; English if it is not known."""
        return self._say.get(language, self._say[ENGLISH])

    def show(self, page: Page, shell: Shell) -> str:
        """The whole document."""
        return self._render(page.template, page, shell)

    def part(self, template: str, shell: Shell, **values: object) -> str:
        """A piece of a page by itself, for a script that puts it in place."""
        return self._render(template, Page(template, "", values=values), shell)

    def _render(self, template: str, page: Page, shell: Shell) -> str:
        environment = self._environments[shell.say.language]
        return environment.get_template(template).render(
            **self._shared, **page.values, page=page, shell=shell
        )


def _environment(say: Say) -> Environment:
    made = Environment(
        loader=PackageLoader("floatscope_dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=False,
        lstrip_blocks=True,
        optimized=False,  # a filter of constants would be worked out in one language and shown in all
        auto_reload=False,
        bytecode_cache=COMPILED,
    )
    made.filters["breakable"] = breakable
    made.filters["step"] = say.step
    made.filters["when"] = when
    made.filters["number"] = number_text
    made.globals["say"] = say
    made.globals["plural"] = say.plural
    return made


def breakable(text: str) -> Markup:
    """`text` escaped, with line breaks allowed after its dots, slashes, underscores and hyphens."""
    return Markup("<wbr>").join(_BREAK_AFTER.split(text))


def when(moment: datetime, shape: str = "time") -> Markup:
    """A `<time>` that reads in UTC; a script writes it in the reader's zone and keeps UTC on hover.

    shape: "time" (hours and minutes), "date" (day and time) or "day".
    """
    shapes = {"time": "%H:%M", "date": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d"}
    utc = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time data-when="{}" datetime="{}" title="{}">{} UTC</time>').format(
        shape, moment.isoformat(), utc, moment.strftime(shapes[shape])
    )
