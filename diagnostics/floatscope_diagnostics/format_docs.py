"""Writes the table of formats into a page: ``python -m floatscope_diagnostics.format_docs FILE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from floatscope_diagnostics.readers.formats import readers

BEGIN = "<!-- formats: written by python -m floatscope_diagnostics.format_docs -->"
END = "<!-- end of formats -->"


def table() -> str:
    """A Markdown table of all formats, by name."""
    titles = sorted((r.name, r.title.replace("|", "\\|")) for r in readers())
    rows = [f"| `{name}` | {title} |" for name, title in titles]
    return "\n".join(["| `--format` | what it is |", "|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table as it is now. Raises ValueError if it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(argv: Sequence[str]) -> int:
    """Rewrites each page named."""
    for name in argv:
        path = Path(name)
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
