"""Names and numbers in a line of text: ``step 10: train loss 2.31, lr = 3e-4, time (ms): 160``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from floatscope_diagnostics.readers.names import normal
from floatscope_diagnostics.readers.numbers import to_float

MAX_PAIRS = 128  # of one line
# A number with its unit; what follows must not go on as a word, a version, a date or a clock time.
VALUE = (
    r"[-+]?(?:1\.#[A-Za-z]{3,4}\d{0,3}|\d{1,3}(?:,\d{3}){1,6}(?:\.\d{0,30})?"
    r"|\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?|\.\d{1,30}(?:[eE][-+]?\d{1,4})?|nan|inf(?:inity)?)"
)
END = r"(?!\w)(?!\.\w)(?!:\d)(?!-\d)"
_UNIT = r"(?:ms|us|s|%|[kKMGBT])?"
_WORD = r"[A-Za-z_][\w./@]{0,60}(?:-[A-Za-z]\w{0,40}){0,3}"
_NEXT = r"\(?[A-Za-z_%][\w./@%)-]{0,40}"
_PAIR = re.compile(
    rf"(?<![\w.\\])(?P<name>{_WORD}(?:[ ]{_NEXT}){{0,5}})[\"']?\s{{0,8}}(?P<sep>[:=]{{1,2}})?\s{{0,40}}"
    rf"(?:(?:tensor|array)\()?[\[(\"']{{0,2}}\s{{0,12}}(?P<value>{VALUE})(?P<unit>{_UNIT}){END}"
    r"(?:\s?(?:/|of)\s?(?P<total>\d{1,12})(?!\w))?",
    re.I,
)
_BRACKETS = re.compile(r"(?:^\W{0,4}|[\[(])\s{0,8}(?P<n>\d{1,12})\s?/\s?(?P<total>\d{1,12})(?=[\s\])])")
_EPOCH_BATCH = re.compile(
    r"(?:^|\[)\s{0,8}(?P<epoch>\d{1,9})\s?/\s?\d{1,9}\s{0,8}\]\s{0,4}"
    r"\[\s{0,8}(?P<n>\d{1,12})\s?/\s?(?P<total>\d{1,12})\s{0,8}\]"
)
_TWO = re.compile(r"^\[?\s{0,8}(?P<epoch>\d{1,9}),\s{1,8}(?P<n>\d{1,12})\s{0,4}\]")
_ONE = re.compile(r"^\[?\s{0,8}(?P<n>\d{1,12})\s{0,4}\]?:?\s")
# Times, levels and places in code that loggers put first.
_PREFIX = re.compile(
    r"^(?:[\s|:>\[\]()-]{1,20}|\d{4}[-/]\d\d[-/]\d\d[T ]?|\d\d?/\d\d?(?:/\d{2,4})? (?=\d\d:)"
    r"|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: ?[AP]M)?|[IWEF]\d{4} (?=\d\d:)"
    r"|(?:INFO|DEBUG|WARNING|WARN|NOTICE|ERROR)\b|\d{1,9} (?=[\w./-]{1,60}\.(?:py|cpp|cc):\d)"
    r"|[\w./-]{1,80}\.(?:py|cpp|cc):\d{1,6}(?::\w{1,60})?|[\w.]{1,60}:\w{1,60}:\d{1,6}(?= -)"
    r"|[a-zA-Z_][\w.]{0,60}(?= - )|[a-zA-Z_][\w.]{0,60}(?=: (?:epoch|step|iter)))",
    re.I,
)

STEP_WORDS = frozenset(
    ("step", "steps", "global_step", "globalstep", "iter", "iters", "iteration", "iterations", "it",
     "update", "updates", "num_updates", "train_step", "train_iter", "episode")
)  # fmt: skip
EPOCH_WORDS = frozenset(("epoch", "ep"))
BATCH_WORDS = frozenset(("batch", "batch_idx", "minibatch", "mb", "batches"))
EVAL_WORDS = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout"))
_LOSS_WORDS = frozenset(
    ("loss", "nll", "ppl", "perplexity", "bpb", "bpc", "xent", "crossentropy", "elbo", "mse", "mae", "rmse",
     "logloss", "losses", "cost")
)  # fmt: skip
_DEVICES = frozenset(("cuda", "gpu", "npu", "device", "xla"))
_FILLERS = frozenset(
    ("info", "debug", "warning", "average", "avg", "mean", "current", "running", "batch", "minibatch",
     "step", "iter", "iteration", "epoch", "set", "the", "and", "with", "is", "of", "trainer", "main", "log")
)  # fmt: skip
_NO_AXIS = frozenset(("per", "num", "total", "max", "last", "every", "time", "best", "at", "for", "after"))


@dataclass(frozen=True)
class Pair:
    """A name and the number after it. start, end: of the number in the line.  total: after a slash.

    told: a colon or an equals sign stands between them.
    """

    name: str
    value: str
    unit: str
    total: str | None
    told: bool
    start: int
    end: int
    total_span: tuple[int, int]


def prefix_end(text: str) -> int:
    """Where the line begins after times, levels and names of loggers."""
    at = 0
    for _ in range(16):
        match = _PREFIX.match(text[at : at + 200])
        if match is None or match.end() == 0:
            break
        at += match.end()
    return at


def pairs(text: str, begin: int) -> list[Pair]:
    """All names with numbers from ``begin`` on."""
    out: list[Pair] = []
    for match in _PAIR.finditer(text, begin):
        if match["name"].lower() in _DEVICES:
            continue
        out.append(
            Pair(
                " ".join(match["name"].split()),
                match["value"],
                match["unit"] or "",
                match["total"],
                match["sep"] is not None,
                *match.span("value"),
                match.span("total"),
            )
        )
        if len(out) >= MAX_PAIRS:
            break
    return out


def is_loss(name: str) -> bool:
    """Whether a name is one of a loss or of another measure that falls."""
    parts = normal(name).split("_")
    return parts[-1] in _LOSS_WORDS or (parts[0] == "loss" and len(parts) == 2)


def axis_word(pair: Pair) -> str | None:
    """``step``, ``epoch`` or ``batch``, if the pair says where the line stands."""
    parts = normal(pair.name).split("_")
    value = to_float(pair.value)
    if value is None or value != value or value < 0 or abs(value) >= 2**53 or pair.unit:
        return None
    if _NO_AXIS.intersection(parts) and pair.total is None:
        return None
    last = parts[-1]
    if last in EPOCH_WORDS:
        return "epoch"
    if value != int(value):
        return None
    if last in STEP_WORDS or "_".join(parts[-2:]) in STEP_WORDS:
        return "step"
    if last in BATCH_WORDS or "_".join(parts[-2:]) in BATCH_WORDS:
        return "batch"
    return None


def axis_of(text: str, begin: int, found: list[Pair]) -> dict[str, tuple[int, int]]:
    """Where the line stands: spans of its ``step``, ``epoch``, ``batch``, ``batches``.

    From its words, or from a bare ``[3/100]``, ``[0/25][3/782]``, ``[1, 2000]`` or ``100:``.
    """
    spans: dict[str, tuple[int, int]] = {}
    step: Pair | None = None
    for pair in found:
        word = axis_word(pair)
        if word is None or word in spans:
            continue
        if word == "step":
            step = pair if step is None else step
        elif word == "batch" and pair.total is not None:
            spans["batches"] = pair.total_span
        spans[word] = (pair.start, pair.end)
    if step is not None and "epoch" in spans and step.total is not None and "batch" not in spans:
        del spans["step"]
        spans["batch"], spans["batches"] = (step.start, step.end), step.total_span
    if "step" not in spans and "batch" not in spans:
        _bare(text, begin, spans, found)
    return spans


def _bare(text: str, begin: int, spans: dict[str, tuple[int, int]], found: list[Pair]) -> None:
    taken = [(p.start, p.total_span[1] if p.total else p.end) for p in found]
    match = _TWO.match(text[begin:]) if "epoch" not in spans else None
    if match is not None:
        spans["epoch"] = _moved(match.span("epoch"), begin)
        spans["batch"] = _moved(match.span("n"), begin)
        return
    match = _EPOCH_BATCH.search(text[begin : begin + 512]) if "epoch" not in spans else None
    if match is not None:
        spans["epoch"] = _moved(match.span("epoch"), begin)
        spans["batch"] = _moved(match.span("n"), begin)
        spans["batches"] = _moved(match.span("total"), begin)
        return
    for match in _BRACKETS.finditer(text[begin : begin + 512]):
        n = _moved(match.span("n"), begin)
        if any(low <= n[0] < high for low, high in taken):
            continue
        spans["batch"], spans["batches"] = n, _moved(match.span("total"), begin)
        return
    match = _ONE.match(text[begin : begin + 64]) if "epoch" not in spans else None
    if match is not None:
        spans["step"] = _moved(match.span("n"), begin)


def _moved(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def short_name(name: str) -> str:
    """A name without what does not tell series apart: levels, and words of a mean."""
    words = name.split()
    while len(words) > 1 and normal(words[0]) in _FILLERS:
        words.pop(0)
    return " ".join(words)


def section(text: str) -> str | None:
    """``val`` or ``test`` where the line begins as one of an evaluation."""
    word = normal(re.split(r"[:\]|]", text[:40])[0]).split("_")[0]
    if word == "test":
        return "test"
    return "val" if word in EVAL_WORDS else None


def is_eval(name: str) -> bool:
    """Whether a name is one of an evaluation."""
    parts = normal(name).split("_")
    return parts[0] in EVAL_WORDS or parts[-1] in EVAL_WORDS
