"""Whether a checkpoint holds extra state of FP8 layers, found without unpickling anything.

Reads the headers of safetensors files, the index beside them, and the names in pickled tables of
torch.distributed.checkpoint (``.metadata``) and torch.save (``data.pkl``) as opcodes, none of which is run.
"""

from __future__ import annotations

import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

Kind = Literal["safetensors", "dcp", "torch", ""]
EXTRA_STATE = "_extra_state"
MOST_FILES = 2000
MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format itself."""
MOST_PICKLE_BYTES = 128 * 2**20
MOST_OPCODES = 20_000_000
LATEST = "latest_checkpointed_iteration.txt"
"""In the folder of all of Megatron's checkpoints: the number of the last."""
_UNREADABLE = (
    OSError, ValueError, struct.error, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, LookupError,
)  # fmt: skip
"""What damaged, encrypted and cut off files raise."""


@dataclass(frozen=True)
class CheckpointFacts:
    """What was read of a checkpoint.

    kind: of its files, "" if none was recognised.  keys: how many names end in ``_extra_state``.  files: how
    many were read.  error: why it could not be read, "" if it could.
    """

    kind: Kind = ""
    keys: int = 0
    files: int = 0
    error: str = ""


def read_checkpoint(path: Path) -> CheckpointFacts:
    """The extra state that a file or a folder holds. Raises nothing; ``error`` says what went wrong."""
    try:
        if not path.exists():
            return CheckpointFacts(error="there is no such file or folder")
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _files([path])
        return CheckpointFacts(error="it is neither a file nor a folder")
    except _UNREADABLE as error:
        return CheckpointFacts(error=" ".join(f"{type(error).__name__}: {error}".split())[:200])


def _folder(folder: Path) -> CheckpointFacts:
    inner = _latest(folder)
    if inner is not None:
        return _folder(inner)
    for name in (".metadata", "metadata"):
        if (folder / name).is_file():
            keys = _count(_strings((folder / name).open("rb"), (folder / name).stat().st_size))
            return CheckpointFacts("dcp", keys, 1)
    found = sorted(
        one
        for suffix in ("*.safetensors", "*.pt", "*.pth", "*.bin", "mp_rank_*/*.pt")
        for one in _first(folder.glob(suffix), MOST_FILES)
    )
    if not found:
        return CheckpointFacts(error="it holds no safetensors, torch or distributed checkpoint")
    if len(found) >= MOST_FILES:
        return CheckpointFacts(error=f"it holds {MOST_FILES:,} files or more")
    weights = [one for one in found if one.suffix == ".safetensors"]
    return _files(weights or found)


def _latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder of several: by Megatron's note, None in a folder of another kind."""
    note = folder / LATEST
    if not note.is_file() or note.stat().st_size > 100:
        return None
    text = note.read_text("ascii").strip()
    inner = folder / ("release" if text == "release" else f"iter_{int(text):07d}")
    if not inner.is_dir():
        raise ValueError(f"{LATEST} names {inner.name}, which is not there")
    return inner


def _first(paths: Iterator[Path], most: int) -> Iterator[Path]:
    for _, path in zip(range(most), paths, strict=False):
        yield path


def _files(paths: list[Path]) -> CheckpointFacts:
    keys, kind = 0, ""
    for path in paths:
        if path.suffix == ".safetensors":
            kind = "safetensors"
            keys += _count(_header(path))
        elif zipfile.is_zipfile(path):
            kind = kind or "torch"
            keys += _count(_saved(path))
    if not kind:
        return CheckpointFacts(
            files=len(paths), error="no file of a known kind (old torch.save files are not read)"
        )
    return CheckpointFacts("safetensors" if kind == "safetensors" else "torch", keys, len(paths))


def _count(names: Iterator[str]) -> int:
    return len({name for name in names if name.endswith(EXTRA_STATE) or f"{EXTRA_STATE}/" in name})


def _header(path: Path) -> Iterator[str]:
    """Names in a safetensors header: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(MOST_HEADER_BYTES, path.stat().st_size):
            raise ValueError(f"{path.name}: a header of {length:,} bytes, no safetensors file has one")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path.name}: its header is no table of names")
    yield from header


def _saved(path: Path) -> Iterator[str]:
    """Texts in the pickles of a torch.save file."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("data.pkl"):
                yield from _strings(archive.open(entry), entry.file_size)


def _strings(file: IO[bytes], size: int) -> Iterator[str]:
    """Texts in a pickle, by its opcodes; closes the file.

    Raises:
        ValueError: it is too large, or no pickle.
    """
    with file:
        if size > MOST_PICKLE_BYTES:
            raise ValueError(f"a table of {size:,} bytes, larger than {MOST_PICKLE_BYTES:,}")
        data = file.read(MOST_PICKLE_BYTES + 1)
    if EXTRA_STATE.encode() not in data:
        return  # most checkpoints; opcodes of a large table take seconds
    for number, (_, argument, _) in enumerate(pickletools.genops(data)):
        if number > MOST_OPCODES:
            raise ValueError(f"a table of more than {MOST_OPCODES:,} entries")
        if isinstance(argument, str):
            yield argument
