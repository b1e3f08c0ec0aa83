"""Finds the logs of runs in a folder, and the files that belong to one run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from floatscope_diagnostics.readers.formats import claimed
from floatscope_diagnostics.readers.tensorboard import BESIDE

MAX_DEPTH = 12
MAX_ENTRIES = 200_000
MAX_SECONDS = 20.0  # of walking and looking into files; a look takes up to 0.2 s
MAX_PARTS = 2_000  # files of one run
TOO_LARGE = "the folder is too large to be searched to its end: name a part of it"
MAX_OTHERS = 200  # files looked at where no name is a log's
LIKELY = 0.2  # certainty with which a file that is named like a log is taken for one: a step with a loss
RECORDS = 0.3  # certainty of some records with a step and a loss: enough where nothing better is there
CLEAR = 0.6  # certainty with which a file that is not named like a log is taken for one
TENSORBOARD, MLFLOW, TE_DEBUG = "tensorboard", "mlflow", "te_debug"

_EVENTS = re.compile(r"\.tfevents\.|^events\.out\.")
_RANK = re.compile(r"_globalrank-(\d{1,6})\.log$")
_CHECKPOINT = re.compile(r"(?:checkpoint|tmp-checkpoint)-(\d{1,15})$")
_STATE = "trainer_state.json"
_PACKED = r"(?:\.(?:gz|zst|xz|bz2))?$"
_RECORDER = re.compile(r"\.recorder(\.\d)?$")
_NAMED = re.compile(r"\.(?:jsonl|ndjson|log|csv|tsv|out|err|db|sqlite3?|wandb|recorder)" + _PACKED, re.I)
_PERHAPS = re.compile(
    r"(?:log|loss|train|metric|history|progress|result|scalar|stdout|golden)[^/]{0,80}"
    r"\.(?:json|txt)" + _PACKED,
    re.I,
)
_TEXT = re.compile(r"\.txt" + _PACKED, re.I)
_BARE = frozenset(("log", "stdout", "stderr", "nohup.out"))
_NEVER = frozenset(
    ("node_modules", "__pycache__", "site-packages", "artifacts", "venv", "media", "code", "src")
)
_NEVER_FILE = re.compile(
    r"(?:debug(?:-.{0,80})?\.log|requirements\.txt|.{0,200}(?:vocab|tokenizer|config|_args).{0,200}|train\.txt)$",
    re.I,
)


@dataclass(frozen=True)
class Found:
    """Files that are one run. label: what the report calls it.  kind: how several parts are read."""

    label: str
    parts: tuple[str, ...]
    kind: str | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Search:
    """What a walk has met."""

    files: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # with a name that no log has
    left: list[str] = field(default_factory=list)  # notes
    entries: int = 0


def search(folder: str) -> tuple[list[Found], list[str]]:
    """The runs in a folder and below it, and notes on what was left out. Nothing outside is followed."""
    walk = _Search()
    ends = time.monotonic() + MAX_SECONDS
    for path, files in _walk(folder, walk, ends):
        _take(path, files, walk)
    states, taken = _newest_states(walk)
    guessed = [f for f in walk.files if not _inside(f, taken)]
    if len(guessed) < len(walk.files):
        walk.left.append(f"{len(walk.files) - len(guessed):,} other logs beside {_STATE} were left: same run")
    kept = _logs_among(guessed, walk, ends, at_least=LIKELY)
    texts = [f for f in walk.others if _TEXT.search(f) and not _inside(f, taken)]
    if states or kept:
        kept += _logs_among(texts, walk, ends, at_least=CLEAR, tell=False)
    else:
        left = list(walk.left)
        kept = _logs_among(walk.others, walk, ends, at_least=CLEAR)
        if not kept and (kept := _logs_among(texts, walk, ends, at_least=RECORDS, tell=False)):
            walk.left = left
    found = together([*states, *kept])
    if found and (len(found) > 1 or walk.left):
        walk.left.insert(0, f"found in the folder: {len(found):,} {'run' if len(found) == 1 else 'runs'}")
    return found, walk.left


def _logs_among(
    paths: Sequence[str], walk: _Search, ends: float, *, at_least: float, tell: bool = True
) -> list[str]:
    """The files that are logs by their content, so surely. tell: note how many are not."""
    kept, strange = [], 0
    for number, path in enumerate(paths):
        if _EVENTS.search(os.path.basename(path)) or _metric(path):
            kept.append(path)
        elif time.monotonic() > ends:
            walk.left.append(f"{len(paths) - number:,} files were not looked at: name the logs among them")
            break
        elif claimed(path, at_least=at_least):
            kept.append(path)
        else:
            strange += 1
    if strange and tell:
        walk.left.append(f"{strange:,} files that are no training log were left")
    return kept


def together(paths: Sequence[str]) -> list[Found]:
    """The files put together to runs, in the order of their first file: event files and MLflow metrics of a
    folder, and the files of ranks."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        groups.setdefault(_group(path), []).append(path)
    return [_found(kind, members) for (kind, _), members in groups.items()]


def _group(path: str) -> tuple[str, str]:
    """Kind and folder of the run that a file is part of; a file that stands alone is its own."""
    folder, name = os.path.split(path)
    if _EVENTS.search(name):
        beside = os.path.basename(folder) in BESIDE
        return TENSORBOARD, os.path.dirname(folder) if beside else folder
    metric = _metric(path)
    if metric is not None:
        return MLFLOW, metric
    rank = _RANK.search(name)
    if rank is not None:
        return TE_DEBUG, path[: -len(rank[0])]
    return "", path


def _found(kind: str, members: list[str]) -> Found:
    if len(members) == 1:
        return Found(members[0], tuple(members))
    if kind == TE_DEBUG:
        members = sorted(members, key=lambda p: int((_RANK.search(p) or ["", "0"])[1]))
    else:
        members = sorted(members)  # event files carry the time of their beginning in front
    notes = [f"{len(members):,} files read as one run"]
    if len(members) > MAX_PARTS:
        notes.append(f"only the first {MAX_PARTS:,} of them")
    label = _metric(members[0]) if kind == MLFLOW else os.path.dirname(members[0])
    return Found(label or members[0], tuple(members[:MAX_PARTS]), kind, tuple(notes))


def _metric(path: str) -> str | None:
    """The run's folder, if this is a metric in MLflow's file store: RUN/metrics/NAME beside RUN/meta.yaml."""
    words = os.path.dirname(path).split(os.sep)
    if "metrics" not in words or os.path.splitext(path)[1] in (".json", ".csv", ".jsonl"):
        return None
    run = os.sep.join(words[: len(words) - 1 - words[::-1].index("metrics")])
    return run if os.path.isfile(os.path.join(run, "meta.yaml")) else None


def _walk(folder: str, walk: _Search, ends: float) -> Iterator[tuple[str, list[str]]]:
    """Each folder with its regular files, sorted; hidden and foreign ones and links are passed over."""
    waiting = [(folder, 0)]
    while waiting:
        path, depth = waiting.pop()
        files: list[str] = []
        below: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    walk.entries += 1
                    if walk.entries > MAX_ENTRIES or time.monotonic() > ends:
                        walk.left.append(TOO_LARGE)
                        waiting.clear()
                        break
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file(follow_symlinks=not _leads_to_device(entry)):
                        files.append(entry.name)
        except OSError as error:
            walk.left.append(f"{os.path.basename(path)}: {error.strerror or error}")
            continue
        yield path, sorted(files)
        if depth >= MAX_DEPTH and below:
            walk.left.append(f"folders deeper than {MAX_DEPTH} were left")
            continue
        inner = (n for n in sorted(below, reverse=True) if n not in _NEVER and not _no_logs(path, n))
        waiting += [(os.path.join(path, n), depth + 1) for n in inner]


def _leads_to_device(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.isfile(entry.path)


def _no_logs(path: str, name: str) -> bool:
    """Whether a folder inside a run of MLflow holds its parameters and not its metrics."""
    return name in ("params", "tags", "models") and os.path.isfile(os.path.join(path, "meta.yaml"))


def _take(path: str, files: list[str], walk: _Search) -> None:
    """Takes the logs among the files of one folder."""
    offline = [f for f in files if f.endswith(".wandb") and os.path.getsize(os.path.join(path, f))]
    parent = os.path.dirname(path)
    if os.path.basename(path) == "files" and any(n.endswith(".wandb") for n in _names(parent)):
        walk.left.append("files/output.log beside a .wandb file was left: same run")
        return
    for name in offline or _without_doubles(files, walk):
        full = os.path.join(path, name)
        if name == _STATE:
            walk.states.append(full)
        elif _metric(full) is not None or _is_log(name):
            walk.files.append(full)
        elif len(walk.others) < MAX_OTHERS and not _NEVER_FILE.match(name):
            walk.others.append(full)


def _without_doubles(files: list[str], walk: _Search) -> list[str]:
    """The files without flight recorders whose steps a log beside them holds, and those of earlier lives."""
    kept = []
    for name in files:
        match = _RECORDER.search(name)
        if match is None or not (match[1] or name[: match.start()] + ".jsonl" in files):
            kept.append(name)
    if len(kept) < len(files):
        left = len(files) - len(kept)
        walk.left.append(f"{left:,} flight recorders beside a log or of earlier lives were left")
    return kept


def _names(path: str) -> Iterable[str]:
    try:
        return [n for n in os.listdir(path) if os.path.getsize(os.path.join(path, n))]
    except OSError:
        return ()


def _is_log(name: str) -> bool:
    """Whether a file may be a log by its name; its content decides."""
    if _EVENTS.search(name) or _RANK.search(name):
        return True
    if _NEVER_FILE.match(name):
        return False
    return name in _BARE or bool(_NAMED.search(name)) or bool(_PERHAPS.search(name))


def _newest_states(walk: _Search) -> tuple[list[str], list[str]]:
    """Of the trainer states of one output folder the newest, and these folders."""
    by_run: dict[str, list[tuple[int, str]]] = {}
    for path in walk.states:
        folder = os.path.dirname(path)
        match = _CHECKPOINT.match(os.path.basename(folder))
        run = os.path.dirname(folder) if match else folder
        by_run.setdefault(run, []).append((int(match[1]) if match else 1 << 62, path))
    out = []
    for members in by_run.values():
        newest = max(members)[1]
        out.append(newest)
        if len(members) > 1:
            name = os.path.basename(os.path.dirname(newest))
            walk.left.append(f"of {len(members):,} trainer states the newest was taken: {name}/{_STATE}")
    return out, list(by_run)


def _inside(path: str, folders: Iterable[str]) -> bool:
    """Whether a file is another log of the run whose output folder is among ``folders``."""
    for folder in folders:
        if path.startswith(folder + os.sep):
            first, _, below = path[len(folder) + 1 :].partition(os.sep)
            if not below or first in ("runs", "logs", "wandb") or _CHECKPOINT.match(first):
                return True
    return False
