"""Writes the page of the server's settings from their docstrings.

``python -m tests.repo.server_settings_docs FILE``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from floatscope_server import settings
from floatscope_server.settings import Settings
from tests.repo.settings_docs import docstrings_of

GENERATED = (
    "<!-- written by tests.repo.server_settings_docs from floatscope_server/settings.py; do not edit -->"
)
INTRO = """# Settings of the server

What `floatscope serve` works with. An argument (`--host`, `--port`, `--data-dir`, ...) wins over the
environment, that over a TOML file given by `--config FILE`, in which names are in lower case without
`FLOATSCOPE_`. A wrong setting, or an unknown one in the file, stops the start with a message that names it; a
variable that looks like a misspelt one is warned of. Names that end in `_s` are in seconds.
What is secret is never shown or logged. Settings of the agent: [settings.md](settings.md)."""
SECTIONS = {
    "host": "Where it listens and keeps its data",
    "slack_webhook_url": "Telling people",
    "sqlite_synchronous": "Safety",
    "workers": "Several processes and machines",
    "retention_days": "What is deleted when",
    "tiles_url": "Tiles in an object store",
    "log_level": "Logs and limits",
}
"""First field of a section -> its title."""


def page() -> str:
    """The whole page. Raises ValueError for a setting without a docstring."""
    said = docstrings_of(settings, Settings.__name__)
    lines = [GENERATED, INTRO]
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", "", "| variable | default | meaning |", "|---|---|---|"]
        if name not in said:
            raise ValueError(f"Settings.{name} has no docstring")
        text = said[name].replace("``", "`").replace("|", "\\|")
        lines.append(f"| `FLOATSCOPE_{name.upper()}` | {_default(field)} | {text}{_choices(field)} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}):
        return "none"
    return {True: "1", False: "0"}[value] if isinstance(value, bool) else f"`{value}`"


def _choices(field: FieldInfo) -> str:
    kinds = [field.annotation, *get_args(field.annotation)]
    secret = " Secret." if SecretStr in kinds else ""
    options = get_args(field.annotation) if str(get_origin(field.annotation)) == "typing.Literal" else ()
    return secret + (f" One of {', '.join(options)}." if options else "")


def main(argv: Sequence[str]) -> int:
    """Writes the page to each file named."""
    for name in argv:
        Path(name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
