"""Where the static files are, and which plotly.js a page loads.

`static_dir()` is mounted at /static. plotly.js is the small cartesian bundle in static/vendor (npm package
plotly.js-cartesian-dist-min, MIT): lines and heat maps in 1.5 MB instead of 4.8 MB. It must be of the version
that the plotly wheel was made for, since figures are validated with the wheel in tests; where another wheel
is installed, that wheel's own full bundle is used, at an address with its version in it.

Files under static/vendor have their version in the name and never change. The others change with the release,
so pages load them from `/static/<fingerprint>/...`, where they never change either: the modules import each
other by relative addresses and stay in that folder. At an address without the present fingerprint a file must
be asked for each time (`Cache-Control: no-cache` and an ETag).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

STATIC_URL = "/static"
PLOTLY_VERSION = "4.1.1"
PLOTLY_FILE = f"plotly-cartesian-{PLOTLY_VERSION}.min.js"
PLOTLY_STYLE = f"plotly-cartesian-{PLOTLY_VERSION}.css"
"""The rules that plotly.js would otherwise add by script, which a policy without inline styles forbids."""
FINGERPRINT_DIGITS = 10
_HEADER_BYTES = 400
_IMPORT = re.compile(r"""^(?:import|export)\b[^'"(]*['"]\./([a-z_]+\.js)['"]""", re.MULTILINE)
_WITH_FINGERPRINT = re.compile(rf"{STATIC_URL}/([0-9a-f]{{{FINGERPRINT_DIGITS}}})(/.+)")
_VERSION = re.compile(rb"plotly\.js(?: \([^)]*\))? v(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class PlotlyScript:
    """One plotly.js: the address a page loads, the file behind it, its version."""

    url: str
    path: Path
    version: str


def static_dir() -> Path:
    """Folder with app.css, js/ and vendor/, to be served at /static."""
    return Path(__file__).parent / "static"


def script_version(path: Path) -> str:
    """Version in the header of a plotly.js file. Raises ValueError naming the file when there is none."""
    with path.open("rb") as file:
        found = _VERSION.search(file.read(_HEADER_BYTES))
    if found is None:
        raise ValueError(
            f"{path}: expected a plotly.js header with its version in the first {_HEADER_BYTES} bytes"
        )
    return found.group(1).decode()


def wheel_script() -> Path | None:
    """plotly.min.js of the installed plotly wheel, without importing it; None when it is not installed."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def plotly_script(wheel: Path | None) -> PlotlyScript:
    """The vendored bundle, or `wheel` (see `wheel_script`) when its version is another one."""
    vendored = PlotlyScript(
        f"{STATIC_URL}/vendor/{PLOTLY_FILE}", static_dir() / "vendor" / PLOTLY_FILE, PLOTLY_VERSION
    )
    if wheel is None:
        return vendored
    version = script_version(wheel)
    if version == PLOTLY_VERSION:
        return vendored
    return PlotlyScript(f"{STATIC_URL}/vendor/plotly-{version}.min.js", wheel, version)


def outside_files() -> Mapping[str, Path]:
    """Address -> file for what pages load from /static but `static_dir()` does not hold; usually empty."""
    script = plotly_script(wheel_script())
    return {} if script.path.is_relative_to(static_dir()) else {script.url: script.path}


def without_fingerprint(url: str) -> tuple[str, str | None]:
    """The address as if it had no fingerprint, and the one it has."""
    found = _WITH_FINGERPRINT.fullmatch(url)
    return (url, None) if found is None else (f"{STATIC_URL}{found.group(2)}", found.group(1))


def modules(entries: Sequence[str]) -> tuple[str, ...]:
    """Modules in static/js and all that they import, each once, as a browser comes upon them.

    One that is missing is left out: the browser says so, and the page is still read.
    """
    found: dict[str, None] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop(0)
        path = static_dir() / "js" / name
        if name not in found and path.is_file():
            found[name] = None
            waiting += _IMPORT.findall(path.read_text(encoding="utf-8"))
    return tuple(found)


def fingerprint() -> str:
    """Ten hex digits over our own CSS and JS: part of their addresses, so that a new release is never mixed
    with an old."""
    digest = hashlib.sha256()
    for path in sorted(static_dir().rglob("*")):
        if path.suffix in (".css", ".js", ".svg") and path.parent.name != "vendor":
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:FINGERPRINT_DIGITS]
