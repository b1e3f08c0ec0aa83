"""The smoke GEMMs of preflight: each format against what it is known to give, and speed on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.smoke_gemm import matrices, measure
from floatscope.preflight.smoke_layer import layer_checks
from floatscope.preflight.smoke_load import load_checks
from floatscope.preflight.smoke_speed import speed
from floatscope.preflight.smoke_verdict import check_of, row_of
from floatscope.preflight.table_reading import read_table
from floatscope.preflight.time_limit import said

ON_CPU = ((96, 4096, 96),)
"""(M, K, N): K as on a GPU, since errors of U(0,1) depend on it; M and N as few as still average, since a
machine without a GPU has to be done within seconds.
"""
ON_GPU = ((256, 4096, 256), (256, 16384, 256))
"""Two lengths of the sum, which show fast accumulation."""
Rows = list[dict[str, Any]]


def smoke(
    facts: Facts,
    wanted: Wanted,
    *,
    formats: Sequence[str] | None = None,
    device: str | None = None,
    timed: Callable[..., tuple[Rows, list[Check]]] = speed,
) -> tuple[Rows, list[Check]]:
    """Rows of the document and checks.

    formats: of the table "gemm_errors"; None for those of the wanted recipe, or all without one.  device:
    None for the GPU if there is one, else the CPU, where formats without a kernel are emulated and said to
    be. A GPU is timed too and, where Transformer Engine or torchao is wanted and installed, one of its layers
    is run forward and backward.
    """
    try:
        import torch
    except Exception as error:  # a broken installation raises anything: ImportError, OSError of a library
        return [], [_impossible(f"torch cannot be imported: {said(error)}")]
    if not hasattr(torch, "float8_e4m3fn"):
        return [], [_impossible(f"torch {torch.__version__} has no float8")]
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    entries = _entries(formats, wanted)
    shapes = ON_CPU if where == "cpu" else ON_GPU
    with _small_exact_products(torch), torch.no_grad():
        rows, checks = _numerics(entries, shapes, where)
    if where != "cpu":
        more_rows, more_checks = timed(facts, wanted)
        rows, checks = rows + more_rows, checks + more_checks
        checks += [*load_checks(facts, wanted), *layer_checks(facts, wanted, device=where)]
    return rows, checks


def _entries(formats: Sequence[str] | None, wanted: Wanted) -> list[dict[str, Any]]:
    table = read_table("gemm_errors")
    names = formats or table["by_recipe"].get(wanted.recipe) or [one["format"] for one in table["formats"]]
    known = {one["format"]: one for one in table["formats"]}
    unknown = sorted(set(names) - known.keys())
    if unknown:
        raise ValueError(f"formats: no {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in names]


def _numerics(
    entries: Sequence[dict[str, Any]], shapes: Sequence[tuple[int, int, int]], device: str
) -> tuple[Rows, list[Check]]:
    found: dict[str, list[Any]] = {one["format"]: [] for one in entries}
    for shape in shapes:
        for distribution in ("normal", "uniform"):
            a, b = matrices(*shape, distribution, device)
            exact = a.cpu().double() @ b.cpu().double().t()
            for entry in entries:
                one = measure(entry, a, b, exact, distribution=distribution, device=device)
                found[entry["format"]].append(one)
    rows = [row_of(entry, one) for entry in entries for one in found[entry["format"]]]
    return rows, [check_of(entry, found[entry["format"]]) for entry in entries]


@contextmanager
def _small_exact_products(torch: Any) -> Iterator[None]:
    """float32 products without TF32, on one thread: starting threads for matrices this small takes ten times
    as long on a busy machine. Both settings are as they were afterwards.
    """
    matmul, threads = torch.backends.cuda.matmul, torch.get_num_threads()
    tf32 = matmul.allow_tf32
    try:
        matmul.allow_tf32 = False
        torch.set_num_threads(1)
        yield
    finally:
        matmul.allow_tf32 = tf32
        torch.set_num_threads(threads)


def _impossible(why: str) -> Check:
    return Check(
        "gemm.smoke",
        "gemm",
        "unknown",
        why,
        "only a real GEMM proves that a format works",
        "install a torch with float8 (2.1 or later)",
        read_table("gemm_errors")["source"],
    )
