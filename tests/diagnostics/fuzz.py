"""Damaged logs for every reader: fixtures with bytes, lines and numbers changed, mixed, repeated and cut.

``python -m tests.diagnostics.fuzz --seconds 600`` runs for longer than the tests do and prints what it finds;
it leaves the inputs in a folder.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np

from floatscope.protocol.names import check_name
from floatscope_diagnostics.readers.formats import open_runs, readers
from floatscope_diagnostics.readers.run_log import UnreadableLog

FIXTURES = Path(__file__).parent / "logs"
LIMIT_S = 5  # CPU seconds for one input of at most a few hundred kilobytes
MAX_BYTES = 400_000
MEMORY_BYTES = 3 << 30
WORDS = (
    b"nan", b"NaN", b"-inf", b"1e999", b"-1", b"0", b"99999999999999999999", b"9007199254740993",
    b"1,234,567", b"", b"\x00", b"\r", b"\r\n", b"\x1b[31m", b'"', b"'", b"{", b"}", b"[", b"]", b"(", b"|",
    b":", b"=", b",", b"\t", b"loss", b"step", b"epoch 1/3", b"\xff\xfe", b"\xc3\x28", b"\xe2\x80\xa8",
    b"null", b"Infinity", b"Traceback (most recent call last):", b"import os\n", b" " * 3000, b"9" * 3000,
    b"OVERFLOW! Attempted loss scale: 2, reducing to 1", b"a" * 70_000, b"[" * 2000, b"{" * 2000,
    b"loss: " * 500, b"1/" * 500, b"- " * 2000,
)  # fmt: skip
NUMBERS = WORDS[:9]


class TooSlow(Exception):
    """An input took more than LIMIT_S."""


def fixtures() -> list[bytes]:
    """The bytes of all fixtures."""
    return [p.read_bytes()[:MAX_BYTES] for p in sorted(FIXTURES.rglob("*")) if p.is_file()]


def mangled(rng: random.Random, logs: list[bytes]) -> bytes:
    """One damaged log."""
    data = rng.choice(logs)
    for _ in range(rng.choice((1, 1, 2, 4, 12))):
        data = rng.choice(_WAYS)(rng, data, logs)[:MAX_BYTES]
    return data


def _flip(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 3, 30))):
        if out:
            out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def _cut(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    low, high = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:low] + data[high:] if rng.random() < 0.5 else data[low:high]


def _word(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    for _ in range(rng.choice((1, 5, 40))):
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice(WORDS) + data[at + rng.choice((0, 0, 1, 5)) :]
        if len(data) > MAX_BYTES:
            break
    return data


def _numbers(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    """Puts other numbers in place of some."""
    parts: list[bytes] = []
    for part in data.split(b" "):
        number = part.strip(b",:|]").replace(b".", b"").isdigit()
        parts.append(rng.choice(NUMBERS) if number and rng.random() < 0.1 else part)
    return b" ".join(parts)


def _lines(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    way = rng.randrange(5)
    if way == 0:
        rng.shuffle(lines)
    elif way == 1:
        lines = [x for x in lines for _ in range(rng.choice((1, 1, 2, 8)))]
    elif way == 2:
        lines = [x for x in lines if rng.random() < 0.7]
    elif way == 3:
        other = rng.choice(logs).split(b"\n")
        lines = [x for pair in zip(lines, other, strict=False) for x in pair]
    else:
        lines = lines * rng.choice((2, 20))
    return b"\n".join(lines)


def _glue(rng: random.Random, data: bytes, logs: list[bytes]) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r", b"", b"\r\n", b" ")), rng.choice((1, 5, -1)))


_WAYS: tuple[Callable[[random.Random, bytes, list[bytes]], bytes], ...] = (
    _flip, _cut, _word, _word, _numbers, _lines, _lines, _glue,
)  # fmt: skip


def noise(rng: random.Random) -> bytes:
    """Bytes or words in no order."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.choice((0, 1, 7, 300, 70_000)))
    return b" ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 10, 300))))[:MAX_BYTES]


def read(path: Path, format_name: str | None = None) -> int:
    """Reads an input to its end. Returns the number of rows, 0 if it is refused; all else is an error."""
    rows = 0
    try:
        with open_runs(str(path), format_name=format_name) as runs:
            for log in runs:
                for rank, batch in log.batches:
                    assert 0 <= rank < 1 << 16
                    assert (np.diff(batch.step) >= -(2**53)).all()
                    assert ((batch.step >= 0) & (batch.step < 2**53)).all()
                    for name in batch.scalar_names:
                        check_name(name, field="scalar")
                    rows += len(batch)
                assert all(isinstance(note, str) for note in log.tally.notes)
    except UnreadableLog:
        return 0
    return rows


@contextmanager
def limited(seconds: float = LIMIT_S) -> Iterator[None]:
    """Raises TooSlow in what runs inside for more than so many CPU seconds."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def main() -> int:
    """Runs until the time is over; returns 1 if something was found."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", default=None, help="folder for the inputs that were found")
    args = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    keep = Path(args.keep or tempfile.mkdtemp(prefix="fuzz-"))
    keep.mkdir(parents=True, exist_ok=True)
    names = [None, None, None, *[r.name for r in readers()]]
    rng = random.Random(args.seed)
    logs = fixtures()
    end = time.monotonic() + args.seconds
    seen: set[str] = set()
    count = rows = 0
    path = keep / "input"
    while time.monotonic() < end:
        data = noise(rng) if rng.random() < 0.05 else mangled(rng, logs)
        path.write_bytes(data)
        name = rng.choice(names)
        count += 1
        try:
            with limited():
                rows += read(path, name)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            inside = [f for f in where if "/floatscope" in f.filename] or list(where)
            key = f"{type(error).__name__} {Path(inside[-1].filename).name}:{inside[-1].lineno}"
            if key not in seen:
                seen.add(key)
                kept = keep / f"found-{len(seen)}"
                kept.write_bytes(data)
                print(f"{key} format={name} {str(error)[:200]} ({kept})", flush=True)
    print(f"{count:,} inputs, {rows:,} rows, {len(seen)} kinds of errors")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
