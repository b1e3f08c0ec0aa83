"""Versions compared as numbers: 12.10 is newer than 12.9, which neither a float nor a text knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from floatscope.preflight.facts import Facts, Version

_RELEASE = re.compile(r"\s*[vV]?(?:\d+!)?(\d{1,9}(?:\.\d{1,9}){0,7})")
_PACKED_CUDNN_MAJOR_9 = 90000

TRANSFORMER_ENGINE = ("transformer-engine", "transformer-engine-torch")


def parse_version(text: object) -> Version:
    """Release numbers of a version: (2, 13, 0) of "2.13.0+cpu", (2, 7, 0) of "2.7.0.dev0"; () if it has none.

    Pre-release, local and epoch parts are left out.
    """
    found = _RELEASE.match(text) if isinstance(text, str) else None
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def is_below(version: Version, minimum: Version) -> bool:
    """Whether it is older, with missing numbers as zeros: 12.8 is not below 12.8.0."""
    width = max(len(version), len(minimum))
    return _padded(version, width) < _padded(minimum, width)


def is_same(version: Version, other: Version) -> bool:
    """Whether both are the same release, with missing numbers as zeros."""
    return not is_below(version, other) and not is_below(other, version)


def dotted(version: Version) -> str:
    """As people write it, "12.9"; "" of ()."""
    return ".".join(str(number) for number in version)


def cudnn_text(packed: int) -> str:
    """Dotted form of cuDNN's packed version: 91200 is 9.12.0, 8907 is 8.9.7.

    From 9.0 on it is major*10000 + minor*100 + patch, before it major*1000 (cudnn_version.h).
    """
    scale = 10000 if packed >= _PACKED_CUDNN_MAJOR_9 else 1000
    return f"{packed // scale}.{packed % scale // 100}.{packed % 100}"


def text_of(facts: Facts, name: str) -> str | None:
    """Version of a distribution or of "python", "torch", "cuda", "rocm", "cudnn", "nccl" (as torch has them),
    "driver", "cuda_driver", "cublaslt", as text; "" where it is known to be absent, None where not read.
    """
    if name == "python":
        return facts.python or None
    if name == "driver":
        return facts.driver or None
    if name == "cuda_driver":
        return dotted(facts.cuda_driver) or None
    if name == "cublaslt":
        return _text(facts.libraries, "cublaslt")
    if name in ("cuda", "rocm", "cudnn", "nccl"):
        return _of_torch(facts, "hip" if name == "rocm" else name)
    if name == "torch" and "torch" not in facts.versions:
        return _text(facts.torch, "version") or _absent(facts)
    if name == "transformer-engine":
        found = next((facts.versions[n] for n in TRANSFORMER_ENGINE if n in facts.versions), None)
        return _absent(facts, *TRANSFORMER_ENGINE) if found is None else found
    return facts.versions.get(name, _absent(facts, name))


def version_of(facts: Facts, name: str) -> Version | None:
    """As ``text_of``, as numbers: () where it is known to be absent, None where unread or unreadable."""
    text = text_of(facts, name)
    if text is None:
        return None
    return parse_version(text) or (() if text == "" else None)


def _of_torch(facts: Facts, key: str) -> str | None:
    if key not in facts.torch:
        return _text(facts.libraries, key)
    return "" if facts.torch[key] is None else str(facts.torch[key])


def _absent(facts: Facts, *names: str) -> str | None:
    """Not there, unless its metadata, or that of all, could not be read."""
    return None if any(name in facts.failed for name in ("versions", *names)) else ""


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None


def _padded(version: Version, width: int) -> Version:
    return version + (0,) * (width - len(version))
