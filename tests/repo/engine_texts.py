"""Finds what the engine says to people in its source, for the catalogue that pages translate it with.

A text is a string, or an f-string with a place for each value: ``"{0} reaches {1}."``. Rules stay as they
are: nothing is marked in them. What a value can be is a text of its own where the source shows it: the parts
of a condition inside an f-string, and what is assigned to a name that stands in one.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from floatscope_diagnostics.rule import FAMILY_OF
from tests.repo.repository import ROOT

ENGINE = "diagnostics/floatscope_diagnostics"
SOURCES = (
    *(f"{ENGINE}/{name}.py" for name in (
        "arbiter", "calibration", "certainty", "differential", "engine", "log_next", "machine_hints",
        "not_checked", "operation_remedy", "placing", "rule", "summary", "zeroed_gradients",
    )),
    *(f"{ENGINE}/{folder}/*.py" for folder in ("rules", "curve_shapes")),
    *(f"{ENGINE}/compare/{name}.py" for name in (
        "casts", "drift", "equivalence", "evals", "gate", "go", "health", "health_gate", "held_out", "limits",
        "loss_gates", "quality", "refusals", "speed_gates", "stability", "throughput", "words", "pairing",
        "settled", "tensors",
    )),
    *(f"{ENGINE}/whatif/{name}.py" for name in (
        "document", "flags", "log_reading", "measure", "own_error", "predict", "server_reading", "sources",
    )),
    *(f"{ENGINE}/advisor/{name}.py" for name in (
        "advise", "choosing", "cost", "evidence", "everywhere", "experiment", "gap", "harm", "headroom",
        "hidden", "other_causes", "other_scalings", "problems", "scale_state", "shapes", "undecided", "words",
    )),
    "agent/floatscope/preflight/*_checks.py",
    "server/floatscope_server/rule_effects.py",
    *(f"agent/floatscope/preflight/{name}.py" for name in (
        "gpu_groups", "hardware_xids", "light", "recipe_matrix", "software_te",
    )),
)  # fmt: skip
"""Files that say what pages show."""
TABLES = ("agent/floatscope/preflight/tables/*.json", f"{ENGINE}/advisor/other_causes.json")
TOLD = frozenset({
    "why", "do", "meaning", "instead", "what", "refused", "recipes_why", "compile_why", "head_why", "label",
    *FAMILY_OF,
})  # fmt: skip
"""Tables, and the names of what in them is told to people."""
WORDS = (
    "loss", "worse", "better", "stability", "FP8 health", "speed", "cost", "anything", "lower", "higher",
    "vocabulary", "tokenizer", "model", "optimizer", "steps", "1 layer", "{0} layers", "1 step",
    " ({0})", "not asked inside a training process",
)  # fmt: skip
"""Single words that stand in places: the source has them where a code could be as well."""
NOT_SHOWN = frozenset({"signal", "cause", "symptom", "kind", "severity", "order", "settings", "code", "name"})
"""Arguments that hold codes, not texts."""
EXPECTED = 3
"""Place of what was expected among the arguments of an Evidence."""
CODE_SIGNS = ("(", "=", "--", "_", "{")
SILENT = frozenset({
    "Need", "Threshold", "get", "near", "of", "active", "startswith", "endswith", "replace", "removeprefix",
    "removesuffix", "split", "add_argument", "strip", "saw", "compile",
})  # fmt: skip
"""Calls whose strings nobody reads."""
SAME = frozenset({
    "NaN", "Inf", "BF16", "RUN", "BASELINE", "st", "nd", "rd", "th", "CUDA_VISIBLE_DEVICES", "FP8 {0}",
    "{0} ms", "{0} GiB", "id {0}", "SQNR {0} dB",
})  # fmt: skip
"""The same in every language."""
_NAME = re.compile(r"\{(\w+)\}")
_PLACE = re.compile(r"\{\d+(?:!s)?\}")
_CODE = re.compile(r"(?=.*[._/=\[])[\w.{}/=*\[\]-]+|[a-z]+_[a-z]+|\{0\}[a-z]+|warn|throttle|unset")
_SOURCE = re.compile(
    r"nvml[A-Z]|NVML[,_]|nvidia-ml-py|\.py\b|\.rst|gpus\.json|documentation of|, tried|torchao {0} or"
)
_TITLE = re.compile(r"FS\d+ (.+?)\.?(?:\n|$)")
_WORD = re.compile(r"[A-Za-z]{2}")
_SENTENCE = re.compile(r"[A-Za-z,;:]{2,} [A-Za-z(]|[A-Za-z]+ \d")


def found(sources: Sequence[str] = SOURCES, root: Path = ROOT) -> dict[str, list[str]]:
    """Text -> files that say it, sorted by text."""
    out: dict[str, list[str]] = {text: [] for text in (*FAMILY_OF, *WORDS)}
    out |= {cause.replace("_", " "): [] for cause in FAMILY_OF}
    out |= {text: [] for text in in_tables(root)}
    for pattern in sources:
        for path in sorted(root.glob(pattern)):
            for text in texts_of(path.read_text(encoding="utf-8")):
                files = out.setdefault(text, [])
                name = str(path.relative_to(root))
                if name not in files:
                    files.append(name)
    return {text: out[text] for text in sorted(out)}


def in_tables(root: Path = ROOT) -> Iterator[str]:
    """What tables say, with numbers for names in braces."""
    for pattern in TABLES:
        for path in sorted(root.glob(pattern)):
            for told in _told(json.loads(path.read_text(encoding="utf-8"))):
                text = told
                for place, name in enumerate(dict.fromkeys(_NAME.findall(text))):
                    text = text.replace(f"{{{name}}}", f"{{{place}}}")
                yield text


def _told(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _told(part, inner)
    elif isinstance(value, list):
        for part in value:
            yield from _told(part, name)
    elif isinstance(value, str) and name in TOLD and " " in value:
        yield value


def texts_of(source: str) -> list[str]:
    """Texts of one file, in its order."""
    tree = ast.parse(source)
    title = _TITLE.match(ast.get_docstring(tree) or "")
    said = [title[1]] if title else []
    return list(dict.fromkeys([*said, *(text for node in tree.body for text in _Reader(node).texts())]))


class _Reader:
    """One statement of a file, a function as a whole."""

    def __init__(self, root: ast.AST) -> None:
        self._root = root
        self._placed = {
            value.value.id
            for joined in ast.walk(root)
            if isinstance(joined, ast.JoinedStr)
            for value in joined.values
            if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Name)
        }

    def texts(self) -> Iterator[str]:
        yield from self._of(self._root, placed=False)

    def _of(self, node: ast.AST, *, placed: bool) -> Iterator[str]:
        """placed: the value stands in another text, where one word counts."""
        match node:
            case ast.Raise() | ast.Assert() | ast.Compare() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Constant(value=str() as text):
                if _WORD.search(text) and not _is_code(text) and (placed or _reads_like_text(text)):
                    yield text
            case ast.JoinedStr() | ast.BinOp(op=ast.Add()) if (parts := _parts(node)) is not None:
                template, values = _template(parts)
                if _WORD.search(_PLACE.sub("", template)) and not _is_code(template):
                    yield template
                for value in values:
                    yield from self._of(value, placed=True)
            case ast.IfExp(body=body, orelse=other):
                yield from self._of(body, placed=placed)
                yield from self._of(other, placed=placed)
            case ast.Dict(values=values):
                for value in values:
                    yield from self._of(value, placed=placed)
            case ast.Subscript(value=value):
                yield from self._of(value, placed=placed)
            case ast.Call():
                yield from self._of_call(node, placed=placed)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from self._of_assignment(node)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._of(value, placed=placed)
            case _:
                is_list = isinstance(node, ast.Tuple | ast.List | ast.Starred)
                for child in ast.iter_child_nodes(node):
                    yield from self._of(child, placed=placed and is_list)

    def _of_call(self, node: ast.Call, *, placed: bool) -> Iterator[str]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node.func, ast.Attribute):
            yield from self._of(node.func.value, placed=placed and name == "get")
        args = node.args
        if name in SILENT:
            args = args[1:] if name == "get" else []
        for place, value in enumerate(args):
            if name == "Remedy" and place == 1:
                yield from _sentences_of(value)
                continue
            is_expected = name == "Evidence" and place == EXPECTED
            yield from self._of(value, placed=is_expected or (placed and name == "get"))
        for word in node.keywords:
            if word.arg not in NOT_SHOWN:
                yield from self._of(word.value, placed=False)

    def _of_assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if node.value is not None:
            yield from self._of(node.value, placed=bool(names & self._placed))


def _sentences_of(settings: ast.expr) -> Iterator[str]:
    """Of settings those that are told, not pasted: as pages see it, what has no sign of code."""
    for value in settings.values if isinstance(settings, ast.Dict) else ():
        parts = _parts(value)
        text, values = ("", [None]) if parts is None else _template(parts)
        if not values and _WORD.search(text) and not any(sign in text for sign in CODE_SIGNS):
            yield text


def _parts(node: ast.AST) -> list[ast.expr] | None:
    """The pieces of a text that is put together with ``f""`` or ``+``; None if no piece is a string."""
    if isinstance(node, ast.JoinedStr):
        return list(node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _parts(node.left), _parts(node.right)
        if left is None and right is None:
            return None
        return [*(left or [node.left]), *(right or [node.right])]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node]
    return None


def _template(parts: Sequence[ast.expr]) -> tuple[str, list[ast.expr]]:
    """The text with its places, and what stands in them. Values side by side have one place, ``{0!s}``."""
    text, values = "", []
    places = 0
    for part, before in zip(parts, (None, *parts), strict=False):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            text += part.value.replace("{", "{{").replace("}", "}}")
            continue
        if before is None or isinstance(before, ast.Constant):
            text += f"{{{places}}}"
            places += 1
        else:
            text = text.removesuffix("!s}").removesuffix("}") + "!s}"
        values.append(part.value if isinstance(part, ast.FormattedValue) else part)
    return text, values


def _reads_like_text(text: str) -> bool:
    is_whole = text[:1].isupper() and text.endswith(".")  # names an option, but is no setting
    return bool(_SENTENCE.search(text)) and (is_whole or not re.search(r"--\w|\w=\w", text))


def _is_code(text: str) -> bool:
    """A name for programs, or a place to look something up: not for translation."""
    return bool(_CODE.fullmatch(text) or _SOURCE.search(text)) or text in SAME


if __name__ == "__main__":
    for said, where in found().items():
        print(repr(said), [Path(name).stem for name in where])
