"""Where the static files are, and which plotly.js a page loads.

`static_dir()` is mounted at /static. plotly.js is the small cartesian bundle in static/vendor (npm package
plotly.js-cartesian-dist-min, MIT): lines and heat maps in 1.5 MB instead of 4.8 MB. It must be of the version
that the plotly wheel was made for, since figures are validated with the wheel in tests; where another wheel
is installed, that wheel's own full bundle is used, at an address with its version in it.

Files under static/vendor have their version in the name and never change. The others change with the release:
serve them with `Cache-Control: no-cache` and an ETag, because the modules import each other without a
version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

STATIC_URL = "/static"
PLOTLY_VERSION = "4.1.1"
PLOTLY_FILE = f"plotly-cartesian-{PLOTLY_VERSION}.min.js"
PLOTLY_STYLE = f"plotly-cartesian-{PLOTLY_VERSION}.css"
"""The rules that plotly.js would otherwise add by script, which a policy without inline styles forbids."""
_HEADER_BYTES = 400
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


def fingerprint() -> str:
    """Ten hex digits over our own CSS and JS: added to addresses so that a new release is never mixed with an
    old."""
    digest = hashlib.sha256()
    for path in sorted(static_dir().rglob("*")):
        if path.suffix in (".css", ".js", ".svg") and path.parent.name != "vendor":
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:10]
