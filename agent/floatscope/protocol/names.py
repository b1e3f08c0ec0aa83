"""Words and limits of the protocol: roles, statistics, scalars, and how long a name may be."""

from __future__ import annotations

import re

from floatscope.protocol.errors import ProtocolError

ROLES = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")
"""Roles of a tensor, in PyTorch's words."""

FORWARD_ROLES = ("input", "weight", "output")
BACKWARD_ROLES = ("grad_output", "grad_input", "grad_weight")

STATS = (
    "amax", "amax_min_block", "rms", "scale", "sat", "nan_count", "inf_count", "overflow_pct",
    "underflow_pct", "zero_pct", "sqnr_db", "grad_norm", "update_ratio", "unchanged_pct",
)  # fmt: skip
"""Statistics with a fixed meaning, one number a step for a tensor.

Others are kept and plotted, not judged.
"""

SCALARS = (
    "loss", "eval_loss", "ref_loss", "grad_norm", "lr", "loss_scale", "skipped_steps", "update_norm",
    "param_norm", "zero_grad_pct", "label_tokens", "tokens", "passes", "step_time_s", "data_time_s",
    "gpu_util_pct", "gpu_mem_gib", "gpu_power_w", "gpu_temp_c", "gpu_sm_clock_mhz", "gpu_throttle", "resumed",
    "data_id",
)  # fmt: skip
"""Scalars with a fixed meaning, one number a step for a run or rank."""

RECIPES = (
    "fp8_delayed_scaling", "fp8_current_scaling", "fp8_block_scaling", "mxfp8", "nvfp4", "ao_tensorwise",
    "ao_rowwise", "fp16_amp", "bf16", "fp32", "custom",
)  # fmt: skip

RUN_ID_PATTERN = r"[A-Za-z0-9._-]{1,128}"
MAX_NAME_BYTES = 1024
MAX_STEPS = 4096
MAX_TENSORS = 100_000
MAX_SCALARS = 4096
MAX_STATS = 256
MAX_BODY_BYTES = 32 * 2**20
MAX_UNPACKED_BYTES = 256 * 2**20
MAX_JSON_VALUES = 2_000_000  # 64 steps of 3,000 tensors with 10 statistics; parsing them takes about a second
MAX_STEP = 2**53 - 1  # a step survives a trip through a JSON reader that knows only doubles
HIST_BINS = 64  # exponents -40 to 23, clamped at the ends

_RUN_ID = re.compile(RUN_ID_PATTERN)
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")


def split_tensor(name: str) -> tuple[str, str]:
    """Layer and role of a tensor:

    the last ``/`` splits them; a name without one is all layer, with role ``""``.
    """
    layer, slash, role = name.rpartition("/")
    return (layer, role) if slash else (name, "")


def check_name(name: object, *, field: str) -> str:
    """The name of a tensor, scalar, statistic or run as it came, or ProtocolError.

    At most 1,024 bytes of UTF-8, not empty, no control characters (C0, C1, line and paragraph separators) and
    no surrogates, so that it fits every table, log line and URL. Markup is allowed: whoever shows a name
    escapes it.
    """
    if not isinstance(name, str):
        raise ProtocolError(field, "a name (text)", name)
    if not name:
        raise ProtocolError(field, "a name of 1 to 1,024 bytes", "an empty name")
    if len(name) > MAX_NAME_BYTES:
        raise ProtocolError(field, "a name of 1 to 1,024 bytes", f"{len(name):,} characters: {name[:40]}...")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ProtocolError(field, "a name in valid UTF-8", name) from error
    if size > MAX_NAME_BYTES:
        raise ProtocolError(field, "a name of 1 to 1,024 bytes", f"{size:,} bytes: {name[:40]}...")
    if _CONTROL.search(name) is not None:
        raise ProtocolError(field, "a name without control characters", name)
    return name


def check_run_id(run_id: object, *, field: str = "run_id") -> str:
    """The run id as it came, or ProtocolError: letters, digits, ``.``, ``_`` and ``-``, 1 to 128 of them."""
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None or run_id in (".", ".."):
        raise ProtocolError(field, f"text matching {RUN_ID_PATTERN}", run_id)
    return run_id
