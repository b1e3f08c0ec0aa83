"""Reads TensorBoard event files without TensorFlow: scalars of both versions.

Messages: tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers import te_curves
from floatscope_diagnostics.readers.curve_names import curve_names
from floatscope_diagnostics.readers.foreign import is_event_file
from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.opening import Opened
from floatscope_diagnostics.readers.protobuf_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    WireError,
    fields,
    numbers,
    signed,
    varint,
)
from floatscope_diagnostics.readers.run_log import RunLog, Tally, UnreadableLog
from floatscope_diagnostics.readers.series import Series
from floatscope_diagnostics.readers.tfrecord import records

FORMAT = "tensorboard"
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5  # Event
_VALUE = 1  # Summary
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8  # Summary.Value
_DTYPE, _CONTENT = 1, 4  # TensorProto
_LISTS = {5: "f", 6: "d", 7: "v", 10: "v", 11: "v", 16: "v", 17: "v"}  # TensorProto's *_val, half_val apart
_HALF_VAL = 13
_HALF, _BFLOAT16 = 19, 14
_CONTENT_TYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "?", 17: "<u2", _HALF: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip  # types.proto
HELD_OUT = frozenset(("validation", "val", "valid", "eval", "test"))
BESIDE = HELD_OUT | {"train"}  # folders in which Keras and TF estimators write two halves of one run
_OTHER_AXIS = (" vs samples", " vs tokens")  # Megatron-LM draws its curves over samples once more


# Nearly every event: wall_time, step, and one value of at most 116 bytes with tag and simple_value, in this
# order and with lengths of one byte.
_COMMON = re.compile(rb"\t(.{8})\x10([\x80-\xff]{0,8}[\x00-\x7f])\*(.)\n(.)\n(.)(.*)\x15(.{4})\Z", re.DOTALL)


def certainty(head: Head) -> float:
    """Sure of a first record that is an event."""
    return 1.0 if is_event_file(head.first) else 0.0


def read(opened: Opened) -> Iterator[RunLog]:
    """The one run of the file."""
    return read_parts((opened,))


def read_parts(parts: Iterable[Opened]) -> Iterator[RunLog]:
    """The one run whose event files these are, oldest first. Raises UnreadableLog without a scalar."""
    tally = Tally()
    series = Series(tally)
    counts: dict[str, int] = {}
    given: Mapping[str, str] = {}
    broken = 0
    for part in parts:
        given = part.mapping
        held_out = os.path.basename(os.path.dirname(os.path.abspath(part.name))) in HELD_OUT
        for record in records(part):
            try:
                _take(record, "val/" if held_out else "", series, counts, tally)
            except WireError:
                broken += 1
    if broken:
        tally.note(f"{broken:,} records are no events and were passed over")
    if not series.names:
        raise UnreadableLog("holds events but no scalar. Name the file that the training curves are in")
    statistics = te_curves.statistics(series)
    mapping = curve_names(series.names - set(statistics), tally, given)
    if statistics:
        rows = te_curves.batches(series, statistics, mapping, tally)
        yield RunLog(te_curves.info_of(statistics), FORMAT, rows, tally)
        return
    yield RunLog(RunInfo(), FORMAT, series.batches(mapping), tally)


def _take(record: bytes, prefix: str, series: Series, counts: dict[str, int], tally: Tally) -> None:
    """Adds the scalars of one event. prefix: in front of their names, which are the same in both halves."""
    common = _COMMON.match(record)
    if common is not None and _lengths_fit(common):
        name = common[6].decode("utf-8", "replace")
        (time,), (value,) = struct.unpack("<d", common[1]), struct.unpack("<f", common[7])
        if name:
            _add(prefix + name, signed(varint(common[2], 0)[0]), value, time, series, counts, tally)
        return
    time = float("nan")
    step: int | None = None
    for number, wire, value in fields(record):
        if number == _WALL_TIME and wire == FIXED64 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == _STEP and isinstance(value, int):
            step = signed(value)
        elif number == _SUMMARY and isinstance(value, bytes):
            for inner, _, summary in fields(value):
                if inner == _VALUE and isinstance(summary, bytes):
                    tag, found = _value(summary)
                    if tag and found is not None:
                        _add(prefix + tag, step, found, time, series, counts, tally)


def _lengths_fit(common: re.Match[bytes]) -> bool:
    """Whether the one-byte lengths of summary, value and tag are those of the text that was matched."""
    tag = len(common[6])
    return common[5][0] == tag and common[4][0] == tag + 7 and common[3][0] == tag + 9 and tag + 9 < 0x80


def _value(summary: bytes) -> tuple[str, float | None]:
    """Tag and scalar of a Summary.Value; None for pictures, text and whole tensors."""
    tag = ""
    found: float | None = None
    for number, wire, value in fields(summary):
        if number == _TAG and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == _SIMPLE_VALUE and wire == FIXED32 and isinstance(value, bytes):
            (found,) = struct.unpack("<f", value)
        elif number == _TENSOR and wire == BYTES and isinstance(value, bytes):
            found = scalar_of(value)
    return tag, found


def _add(
    tag: str,
    step: int | None,
    value: float,
    time: float,
    series: Series,
    counts: dict[str, int],
    tally: Tally,
) -> None:
    if tag.endswith(_OTHER_AXIS):
        tally.note("curves over samples or tokens instead of steps were left out")
        return
    # Step 0 is not written; a curve with a second point without a step has none, its points are counted.
    at = counts.get(tag, 0) if step is None else step
    if step is None:
        counts[tag] = at + 1
        if at == 1:
            tally.note(f"{tag[:60]} is logged without a step: its points are counted")
    series.add(tag, at, value, time)


def scalar_of(tensor: bytes) -> float | None:
    """The number of a TensorProto that holds one; None for text and for more than one element."""
    dtype = 0
    content = b""
    values: list[float] = []
    for number, _, value in fields(tensor):
        if number == _DTYPE and isinstance(value, int):
            dtype = value
        elif number == _CONTENT and isinstance(value, bytes):
            content = value
        elif number in _LISTS and (isinstance(value, int) or len(value) <= 8):
            values += numbers(value, _LISTS[number])
        elif number == _HALF_VAL and (isinstance(value, int) or len(value) <= 3):
            values += [_half(int(x), dtype) for x in numbers(value, "v")]
    if content:
        if dtype == _BFLOAT16 and len(content) == 2:
            return _half(int.from_bytes(content, "little"), dtype)
        code = _CONTENT_TYPES.get(dtype)
        if code is None or len(content) != np.dtype(code).itemsize:
            return None
        return float(np.frombuffer(content, code)[0])
    return values[0] if len(values) == 1 else None


def _half(bits: int, dtype: int) -> float:
    """A float16 or bfloat16 from its bits."""
    if dtype == _BFLOAT16:
        return float(np.frombuffer((bits << 16 & 0xFFFFFFFF).to_bytes(4, "little"), "<f4")[0])
    return float(np.frombuffer((bits & 0xFFFF).to_bytes(2, "little"), "<f2")[0])
