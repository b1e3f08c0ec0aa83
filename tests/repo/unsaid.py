"""Finds English that pages show without going through ``say``, so that no catalogue can hold it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

NAMES = frozenset({
    "floatscope", "FP8", "FP16", "BF16", "FP32", "MXFP8", "NVFP4", "E4M3", "E5M2", "UTC", "CSV", "PNG",
    "JSON", "API", "GPU", "NaN", "Inf", "Slack", "GitHub", "OpenAPI", "Apache", "SQLite", "PostgreSQL",
    "nats", "dB",
})  # fmt: skip
"""Names, formats and units that are the same in every language."""
LITERALS = frozenset({
    "Transformer Engine", "floatscope train", "torchao tensorwise FP8", "torchao rowwise FP8",  # names
    "x unified", "y domain",  # words of plotly.js
    "missing on ", "run curves", "layers.23 fc2",  # of the diagnosis; a key; a name as an example
})  # fmt: skip
"""What reads like text and is none of the pages' own."""
SHOWN_ATTRIBUTES = ("aria-label", "aria-description", "title", "placeholder", "alt", "data-label")
NOT_TEXT = ("script", "style", "code", "pre", "kbd", "samp")
SAID_BY = ("say", "later", "plural")
_WORD = re.compile(r"[A-Za-z][\w'-]+")
_SENTENCE = re.compile(r"^[\W\d]*[A-Z]?[a-z']+ [a-zA-Z{]|[a-z] [a-z]+[.?!]$")


_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)
    |(?P<pattern>(?<=[(,=:!&|?{};\[])\s*/(?![*/])(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n\[])+/)
    |(?P<name>[\w$]+)|(?P<other>[^\s\w$])""",
    re.DOTALL | re.VERBOSE,
)
"""Pieces of a script; nested templates are taken apart at their quotes."""


def words(text: str) -> list[str]:
    """The words of a text that are of a language."""
    return [word for word in _WORD.findall(text) if word not in NAMES]


class _Shown(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in NOT_TEXT:
            self._inside.append(tag)
        for name, value in attrs:
            if name in SHOWN_ATTRIBUTES and value and value not in LITERALS and words(value):
                self.found.append(value)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside and words(data):
            self.found.append(" ".join(data.split()))


def in_template(source: str) -> list[str]:
    """Texts that a template holds itself."""
    bare = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
    bare = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", " ", bare, flags=re.DOTALL)
    parser = _Shown()
    parser.feed(bare)
    return parser.found


def in_python(source: str) -> list[str]:
    """String literals that read like text for people and are not said; formatted ones that are said."""
    tree = ast.parse(source)
    return list(_unsaid(tree))


def _unsaid(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SAID_BY:
            texts = node.args[: 2 if name == "plural" else 1]
            yield from (ast.unparse(text) for text in texts if isinstance(text, ast.JoinedStr))
            for other in (*node.args[len(texts) :], *(word.value for word in node.keywords)):
                yield from _unsaid(other)
            return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _reads_like_text(node.value):
        yield node.value
    body = getattr(node, "body", None)
    for child in ast.iter_child_nodes(node):
        if isinstance(body, list) and child in body and _is_docstring(child):
            continue
        yield from _unsaid(child)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _reads_like_text(text: str) -> bool:
    if text in LITERALS:
        return False
    return bool(_SENTENCE.search(text.strip())) and bool(words(text)) and "<" not in text and "=" not in text


def in_script(source: str) -> list[str]:
    """The same for a script."""
    found: list[str] = []
    calls: list[str] = []
    before, thrown = "", False
    for token in _TOKEN.finditer(source):
        text = token.group()
        if token.lastgroup == "comment":
            continue
        if text == "(":
            calls.append(before)
        elif text == ")" and calls:
            calls.pop()
        elif text in (";", "throw"):
            thrown = text == "throw"
        elif token.lastgroup == "string" and not thrown and not (calls and calls[-1] in SAID_BY):
            inner = text[1:-1]
            if inner[:1].isupper() and " " in inner and _reads_like_text(inner):
                found.append(inner)
        before = text
    return found


def files(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """(file, texts) of every file of the pages that holds some."""
    pages = root / "dashboards/floatscope_dashboards"
    server = root / "server/floatscope_server"
    kinds = (
        (in_template, sorted((pages / "templates").glob("*.html"))),
        (in_script, sorted((pages / "static/js").glob("*.js"))),
        (
            in_python,
            [
                *sorted(pages.glob("*.py")),
                *sorted((server / "views").glob("*.py")),
                *sorted((server / "routes/pages").glob("*.py")),
            ],
        ),
    )
    for look, paths in kinds:
        for path in paths:
            found = look(path.read_text(encoding="utf-8"))
            if found:
                yield path, found
