"""The id of a run: the same on every rank and after a requeue, different for two runs of one name."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading

from floatscope.config import MonitorConfig

THREAD_PREFIX = "floatscope-sender"
_SLUG_CHARS = 100  # leaves room for the suffix within a run id's 128


def choose_run_id(config: MonitorConfig) -> str:
    """The argument or FLOATSCOPE_RUN_ID; else name and launcher job hashed; else name and random letters."""
    if config.run_id is not None:
        return config.run_id
    slug = slug_of(config.run)
    if config.launch.job_id is not None:
        digest = hashlib.sha256(f"{config.run}\0{config.launch.job_id}".encode(errors="replace")).hexdigest()
        return f"{slug}-{digest[:12]}"
    return f"{slug}-{secrets.token_hex(4)}"


def slug_of(name: str) -> str:
    """A name reduced to what a run id may hold: lower case letters, digits, ``.``, ``_`` and ``-``."""
    slug = re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")
    return slug[:_SLUG_CHARS].rstrip("-.") or "run"


def thread_name(run_id: str, rank: int) -> str:
    """Name of the sender thread, which also marks the run id as taken in this process."""
    return f"{THREAD_PREFIX}:{rank}:{run_id}"


def unique_in_process(run_id: str, rank: int) -> str:
    """The id itself, or with a random suffix if another monitor of this process is sending under it now."""
    taken = {thread.name for thread in threading.enumerate()}
    if thread_name(run_id, rank) not in taken:
        return run_id
    return f"{run_id[:119]}-{secrets.token_hex(4)}"
