"""The verdict of a run on disk: which finding is replayed, and the answer written into it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.protocol.judgement import SEVERITIES
from floatscope.protocol.strict_json import dumps, loads

MAX_BYTES = 64 * 2**20


class VerdictError(ValueError):
    """A verdict that cannot be used; the message names the file and what is wrong."""


@dataclass(frozen=True)
class VerdictFile:
    """A read verdict.  document: the whole of it.  finding: the one that is replayed, a part of it."""

    path: Path
    document: dict[str, Any]
    finding: dict[str, Any]

    def write(self, replay: dict[str, Any]) -> None:
        """Puts the answer into the finding and replaces the file. Raises OSError."""
        self.finding["replay"] = replay
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        new.write_text(dumps(self.document) + "\n", encoding="utf-8")
        os.replace(new, self.path)


def read_verdict(path: Path, *, finding_id: str | None) -> VerdictFile:
    """A verdict and its finding: the one with the id, else the worst with a step. Raises VerdictError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise VerdictError(f"{path}: larger than {MAX_BYTES:,} bytes; not a verdict")
        document = loads(path.read_bytes())
    except OSError as error:
        raise VerdictError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise VerdictError(f"{path}: not a verdict as `floatscope diagnose --json` writes it") from error
    findings = document.get("findings") if isinstance(document, dict) else None
    if not isinstance(findings, list):
        raise VerdictError(f"{path}: a document without findings; expected the verdict of one run")
    able = [
        one
        for one in findings
        if isinstance(one, dict)
        and type(one.get("onset_step")) is int
        and (finding_id is None or one.get("id") == finding_id)
    ]
    if not able:
        ids = ", ".join(str(one.get("id")) for one in findings if isinstance(one, dict)) or "none"
        wanted = "a finding with a step" if finding_id is None else f"the finding {finding_id}"
        raise VerdictError(f"{path}: expected {wanted}; it has: {ids}")
    worst = max(able, key=lambda one: _rank(one.get("severity")))
    return VerdictFile(path, document, worst)


def _rank(severity: object) -> int:
    return SEVERITIES.index(severity) if isinstance(severity, str) and severity in SEVERITIES else -1
