"""Whether delayed scaling finds its scales again in the checkpoint that is to be continued."""

from __future__ import annotations

from pathlib import Path

from floatscope.preflight.check import Check, Status
from floatscope.preflight.checkpoint_reading import CheckpointFacts, read_checkpoint
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.table_reading import read_table
from floatscope.preflight.versions import is_below, parse_version

ALLOW = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
DELAYED = "fp8_delayed_scaling"
_NAME = "checkpoint.extra_state"
_SHOWN = {"safetensors": "safetensors", "dcp": "torch.distributed.checkpoint", "torch": "torch.save"}


def checkpoint_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Checks of the checkpoint to resume, if one was given. Reads names in it, unpickles nothing."""
    if not wanted.resume:
        return []
    path = Path(wanted.resume).expanduser()
    found = read_checkpoint(path)
    read = _read(path, found)
    if found.error:
        status: Status = "fail" if "no such" in found.error else "unknown"
        return [_check(status, read, "unreadable")]
    if wanted.recipe not in (DELAYED, ""):
        return [_stateless(facts, found, read)]
    if not found.keys:
        return [_check("warn" if wanted.recipe == DELAYED else "unknown", read, "missing")]
    return [_kept(facts, read), *_loader(found, read)]


def _read(path: Path, found: CheckpointFacts) -> str:
    if found.error:
        return f"{path}: {found.error}"
    many = f"{found.files:,} file{'' if found.files == 1 else 's'}"
    return f"{path}: {many} of {_SHOWN[found.kind]}, {found.keys:,} names of extra state"


def _kept(facts: Facts, read: str) -> Check:
    """Extra state is there; since Transformer Engine 2.18 it is loaded only where unpickling is allowed."""
    version = facts.versions.get("transformer-engine", "")
    parsed = parse_version(version)
    allowed = facts.environment.get(ALLOW) == "1"
    read = (
        f"{read}; Transformer Engine {version or 'not installed here'}, {ALLOW}={'1' if allowed else 'unset'}"
    )
    if allowed or (parsed and is_below(parsed, (2, 18))):
        return _check("pass", read, "kept")
    return _check("fail" if parsed else "warn", read, "refused")


def _stateless(facts: Facts, found: CheckpointFacts, read: str) -> Check:
    return _check("pass", read, "stateless_with" if found.keys else "stateless")


def _loader(found: CheckpointFacts, read: str) -> list[Check]:
    """Formats whose usual loaders pass extra state by."""
    if found.kind == "torch":
        return []
    return [_check("warn", read, f"loader_{found.kind}", name="checkpoint.loader")]


def _check(status: Status, read: str, text: str, *, name: str = _NAME) -> Check:
    texts = read_table("checkpoints")["texts"][text]
    do = texts.get("do", "") if status != "pass" else ""
    return Check(name, "checkpoint", status, read, texts["why"], do, texts["source"])
