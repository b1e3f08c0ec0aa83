"""Characters to learn from: Python's own help texts or the user's files, cut into batches that depend on seed
and step alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HELD_OUT = 0.1  # share of the text, at its end, that only evaluation reads
MAX_TEXT_BYTES = 256 * 2**20
MAX_VOCABULARY = 4096  # distinct characters; more would make the head the largest layer by far
IGNORED_LABEL = -100  # torch's default ignore_index
_EVAL_STREAM = 2**32 - 1  # a step no training reaches: the evaluation batch has its own random stream


class DataError(ValueError):
    """A text that cannot be used; the message names the file and what to do."""


@dataclass(frozen=True)
class TokenBatch:
    """One micro-batch.  ids, labels: (batch, time) int64, labels one character ahead.  data_id: the same for
    the same excerpts.
    """

    ids: Tensor
    labels: Tensor
    data_id: int


class CharText:
    """A text as character ids, with the vocabulary sorted by code point."""

    def __init__(self, text: str) -> None:
        characters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        points, tokens = np.unique(characters, return_inverse=True)
        self.vocab_size = len(points)
        self._fingerprint = zlib.crc32(points.tobytes(), len(text))
        split = int(len(tokens) * (1 - HELD_OUT))
        self._train: NDArray[np.int64] = tokens[:split].astype(np.int64)
        self._held_out: NDArray[np.int64] = tokens[split:].astype(np.int64)

    def batch(self, step: int, *, seed: int, micro: int = 0, size: int, context: int) -> TokenBatch:
        """The micro-batch that every run with this seed sees at this step.

        data_id: CRC-32 of the excerpts' positions and the text's size and vocabulary: whole, below 2^32, so a
        float64 holds it.
        """
        random = np.random.default_rng([seed, step, micro])
        return self._cut(self._train, random, size=size, context=context)

    def eval_batch(self, *, size: int, context: int) -> TokenBatch:
        """The same excerpts of the held-out part in every run, whatever the seed."""
        random = np.random.default_rng([0, _EVAL_STREAM, 0])
        return self._cut(self._held_out, random, size=size, context=context)

    def _cut(
        self, tokens: NDArray[np.int64], random: np.random.Generator, *, size: int, context: int
    ) -> TokenBatch:
        starts = random.integers(0, len(tokens) - context, size=size)
        window = torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)])
        data_id = zlib.crc32(starts.astype("<i8").tobytes(), self._fingerprint)
        return TokenBatch(ids=window[:, :-1].contiguous(), labels=window[:, 1:].contiguous(), data_id=data_id)


def load_text(paths: Sequence[str], *, context: int) -> CharText:
    """The text of the files, one after the other, or without any that of `pydoc_data.topics`.

    Raises DataError for a file that is missing, too large, not UTF-8, or a text too short or too rich in
    characters.
    """
    if paths:
        text = "\n".join(_read(Path(path)) for path in paths)
        source = ", ".join(paths)
    else:
        text = bundled_text()
        source = "pydoc_data.topics"
    needed = int((context + 2) / HELD_OUT) + 1
    if len(text) < needed:
        raise DataError(
            f"--data {source}: {len(text):,} characters are too few, "
            f"a context of {context} needs at least {needed:,}; give more text or a shorter --context"
        )
    made = CharText(text)
    if made.vocab_size > MAX_VOCABULARY:
        raise DataError(
            f"--data {source}: {made.vocab_size:,} distinct characters, "
            f"at most {MAX_VOCABULARY:,} fit a character model; give text in an alphabetic script"
        )
    return made


def bundled_text() -> str:
    """Python's help topics, about 0.5 million characters; they differ a little between Python versions."""
    from pydoc_data.topics import topics  # noqa: PLC0415  half a megabyte that only this text needs

    return "\n\n".join(topics[name] for name in sorted(topics))


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise DataError(
                f"--data {path}: {size:,} bytes, at most {MAX_TEXT_BYTES:,} are read; give a smaller file"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"--data {path}: not UTF-8 text (byte {error.start:,}); give a plain text file"
        ) from error
    except OSError as error:
        raise DataError(
            f"--data {path}: cannot be read ({error.strerror}); give the path of a text file"
        ) from error
