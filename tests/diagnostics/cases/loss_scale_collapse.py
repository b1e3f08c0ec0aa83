from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Tensors, fp16_run


def halves(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= 30:
        scalars["loss_scale"] = 65536.0 / 2.0 ** (step - 29)


def search(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """From 2^32 down to 2^17, then steady, with one halving and one growth."""
    scalars["loss_scale"] = 2.0 ** max(32 - step, 17)
    if step >= 40:
        scalars["loss_scale"] = 2.0**16 if step < 50 else 2.0**17


INFO, ROWS = fp16_run(change=halves)
SEARCH_INFO, SEARCH = fp16_run(change=search)


def probing(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Every twentieth step the scale has grown too far: a gradient overflows, the step is skipped."""
    skips = step % 20 == 19
    scalars["skipped_steps"] = float((step + 1) // 20)
    scalars["loss_scale"] = 65536.0 if step % 40 < 20 else 32768.0
    for name, stats in tensors.items():
        if name.endswith("/weight"):
            stats["grad_norm"] = float("nan") if skips else 0.3
    if skips:
        scalars["update_norm"] = 0.0
        scalars["grad_norm"] = float("inf")
        tensors["blocks.0.attn.qkv/grad_output"]["inf_count"] = 9.0


def probing_without_update_norm(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    probing(step, tensors, scalars)
    del scalars["update_norm"], scalars["skipped_steps"]
    scalars["loss_scale"] = 65536.0 * 2.0 ** -(step // 20 % 2)


PROBING_INFO, PROBING = fp16_run(120, change=probing)
BARE_INFO, BARE = fp16_run(60, change=probing_without_update_norm)


CASES = [
    Case("the scale halves at every step", INFO, ROWS, (Want("loss_scale_collapse", (530, 530)),)),
    Case("the search at the start is normal", SEARCH_INFO, SEARCH),
    Case("overflows that a dynamic scale skips", PROBING_INFO, PROBING),
    Case("the same where the log has no update norm", BARE_INFO, BARE[:39]),
]
