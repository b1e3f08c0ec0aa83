"""What two descriptions say against comparing the runs, each as a code with both values.

Only what both runs say is held against them: what one leaves out is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from floatscope.preflight.against import different_casts, different_versions
from floatscope.protocol.runinfo import RunInfo
from floatscope_server.store.runs import RunRecord

SAME_RUN, OTHER_PROJECT, OTHER_VOCABULARY, OTHER_BATCH, OTHER_VERSIONS, OTHER_CASTS = (
    "same_run", "other_project", "other_vocabulary", "other_batch", "other_versions", "other_casts",
)  # fmt: skip
BATCH_SETTINGS = ("global_batch_size", "batch_size", "batch", "seq_len", "sequence_length", "seq_length")
"""Settings that change what a step is, as training loops name them."""
MAX_TEXT = 80
MAX_VERSIONS = 4
"""Named in the note of different versions; the others are counted."""


@dataclass(frozen=True)
class PairNote:
    """code: one of this module's. setting: its name, "" for none. run, baseline: both values as text."""

    code: str
    setting: str
    run: str
    baseline: str

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "setting": self.setting, "run": self.run, "baseline": self.baseline}


def pair_notes(run: RunRecord, base: RunRecord, of_run: RunInfo, of_base: RunInfo) -> tuple[PairNote, ...]:
    """In the order in which they matter."""
    if run.id == base.id:
        return (PairNote(SAME_RUN, "", run.run_id, base.run_id),)
    found: list[PairNote] = []
    sizes = of_run.vocab_size, of_base.vocab_size
    if None not in sizes and sizes[0] != sizes[1]:
        found.append(PairNote(OTHER_VOCABULARY, "vocab_size", f"{sizes[0]:,}", f"{sizes[1]:,}"))
    for name in BATCH_SETTINGS:
        values = _setting(of_run.config, name), _setting(of_base.config, name)
        if None not in values and values[0] != values[1]:
            found.append(PairNote(OTHER_BATCH, name, str(values[0]), str(values[1])))
    found += _machines(of_run.preflight, of_base.preflight)
    if run.project != base.project:
        found.append(PairNote(OTHER_PROJECT, "", run.project[:MAX_TEXT], base.project[:MAX_TEXT]))
    return tuple(found)


def _machines(run: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[PairNote]:
    """What the preflights of both runs say of versions and casts. One that came without says nothing."""
    if not run.get("versions") or not base.get("versions"):
        return
    other = different_versions(run, base)
    if other:
        names = [name for name, _, _ in other]
        more = f" +{len(names) - MAX_VERSIONS}" if len(names) > MAX_VERSIONS else ""
        yield PairNote(
            OTHER_VERSIONS,
            ", ".join(names[:MAX_VERSIONS]) + more,
            ", ".join(mine or "-" for _, mine, _ in other[:MAX_VERSIONS])[:MAX_TEXT],
            ", ".join(its or "-" for _, _, its in other[:MAX_VERSIONS])[:MAX_TEXT],
        )
    casts = different_casts(run, base)
    if casts:
        mine, its = ({key: side["casts"][key] for key in casts} for side in (run, base))
        yield PairNote(OTHER_CASTS, ", ".join(casts)[:MAX_TEXT], str(mine)[:MAX_TEXT], str(its)[:MAX_TEXT])


def _setting(config: Mapping[str, Any], name: str) -> int | float | str | None:
    value = config.get(name)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
