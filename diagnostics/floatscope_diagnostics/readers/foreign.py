"""Refuses what is no training log, with advice."""

from __future__ import annotations

from floatscope.protocol.ring import MAGIC
from floatscope_diagnostics.readers.run_log import UnreadableLog

_SQLITE = b"SQLite format 3\x00"
_WANDB = b":W&B"
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (also .npz and .pt files)", "unpack it and name the log in it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and name the log in it"),
    (b"Rar!", "a rar archive", "unpack it and name the log in it"),
    (b"\x04\x22\x4d\x18", "lz4 data", "unpack it first: lz4 -d FILE"),
    (b"\x1f\x9d", "compress data", "unpack it first: uncompress FILE"),
    (b"\x89PNG", "an image", "pass the log itself"),
    (b"\xff\xd8\xff", "an image", "pass the log itself"),
    (b"GIF8", "an image", "pass the log itself"),
    (b"%PDF", "a PDF", "pass the log itself"),
    (b"\x7fELF", "a program", "pass the log itself"),
    (b"MZ\x90\x00", "a program", "pass the log itself"),
    (b"\x89HDF", "an HDF5 file (weights)", "pass the training log, not the checkpoint"),
    (b"\x93NUMPY", "a numpy array", "write it as CSV with a header line"),
    (b"PAR1", "a parquet file", "export the log as CSV"),
    (b"ARROW1", "an Arrow file", "export the log as CSV"),
    (b"\x80\x02", "a pickle (checkpoint)", "pass the training log, not the checkpoint"),
    (b"\x80\x03", "a pickle (checkpoint)", "pass the training log, not the checkpoint"),
    (b"\x80\x04", "a pickle (checkpoint)", "pass the training log, not the checkpoint"),
    (b"\x80\x05", "a pickle (checkpoint)", "pass the training log, not the checkpoint"),
)
_TAR_AT = 257  # POSIX ustar header: magic behind name, mode, owner, size, time, checksum and link name
_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<head", b"<svg")
_SUPPORTED = "run `floatscope diagnose --help` for the formats that are read"


def refuse_foreign(head: bytes) -> None:
    """Raises UnreadableLog if the first bytes cannot begin a log."""
    if not head.strip(b"\x00 \t\r\n\xef\xbb\xbf"):
        raise UnreadableLog(
            "is empty. Check that the run has written its log"
            if not head
            else "holds only blanks or NUL bytes"
        )
    if is_binary_log(head):
        return
    for magic, what, advice in _MAGIC:
        if head.startswith(magic):
            raise UnreadableLog(f"is {what}, not a training log: {advice}")
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        raise UnreadableLog("is a tar archive, not a training log: tar xf FILE, then name the log in it")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:256].lower()
    if start.startswith(_PAGES):
        raise UnreadableLog(
            "is a web page, not a training log. Download the raw file (for example with ?raw=true)"
        )
    sample = head[:4096].rstrip(b"\x00")  # a crash leaves NUL bytes at the end of a file
    strange = sum(b < 7 or 13 < b < 27 or 27 < b < 32 for b in sample)
    if strange - sample.count(0) > len(sample) // 20 or sample.count(0) > len(sample) // 2:
        raise UnreadableLog(f"is binary, not a training log: {_SUPPORTED}")


def is_binary_log(head: bytes) -> bool:
    """Whether this begins one of the binary logs that are read: SQLite, W&B, TensorBoard events, ours."""
    return head.startswith((_SQLITE, _WANDB, MAGIC)) or is_event_file(head)


def is_event_file(head: bytes) -> bool:
    """A TFRecord whose first record is an event: length (uint64), its checksum, then the field wall_time.

    Format: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto.
    """
    length = int.from_bytes(head[:8], "little")
    return len(head) >= 13 and 9 <= length < 1 << 31 and head[12] == 0x09
