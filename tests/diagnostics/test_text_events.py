"""Lines that any text log may hold: overflows, NaN told in words, failures, source code at the head."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from floatscope.protocol.runinfo import RunInfo
from floatscope_diagnostics.readers.events import Events
from floatscope_diagnostics.readers.formats import open_runs
from floatscope_diagnostics.readers.source_code import is_code, without_source

DEEPSPEED = (
    "[2024-05-01 10:00:{0:02d},{1:03d}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! "
    "Rank 0 Skipping step. Attempted loss scale: {2}, reducing to {3}"
)


def values(*lines: str) -> list[dict[str, float]]:
    """What the events of the lines carry."""
    events = Events()
    found = [events.line(n, text, known={})[0] for n, text in enumerate(lines, start=1)]
    return [dict(p.values) for p in found if p is not None]


@pytest.mark.parametrize(
    ("line", "scale"),
    [
        (DEEPSPEED.format(0, 0, 65536, 32768), 32768.0),
        ("[deepspeed] OVERFLOW! Rank 3 Skipping step. Attempted loss scale: 64, but hysteresis is 2.", 64.0),
        (
            "[deepscale] OVERFLOW! Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648.0",
            2.0**31,
        ),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", 16384.0),
        (
            "... | INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: 0.25",
            0.25,
        ),
        ("| WARNING: overflow detected, setting loss scale to: 64.0", 64.0),
        ("[INFO] [fused_optimizer.py:363] Reducing dynamic loss scale from 65536 to 32768.0", 32768.0),
        ("Increasing dynamic loss scale from 64 to 128", 128.0),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", 0.0001),
        ("Attempted loss scale: 65536, reducing to 327[2024-05-01 10:00:00,001] [INFO]", 32768.0),  # torn
    ],
)
def test_loss_scales(line: str, scale: float) -> None:
    assert values(line) == [{"loss_scale": scale}]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Loss is nan, stopping training", "loss"),
        ("ERROR:tensorflow:Model diverged with loss = NaN.", "loss"),
        ("NanLossDuringTrainingError: NaN loss during training.", "loss"),
        ("FloatingPointError: Loss became infinite or NaN at iteration=123!", "loss"),
        ("ValueError: The loss returned in `training_step` is nan.", "loss"),
        ("Batch 3: Invalid loss, terminating training", "loss"),
        ("AssertionError: Rank 12: found NaN in local forward loss calculation. Device: 4", "loss"),
        ("RuntimeError: found nan in local forward loss calculation", "loss"),
        ("WARNING: The grad norm is nan. Skipping updating the model.", "grad_norm"),
        ("rank 5: found NaN in local grad norm for bucket #0 in backward pass", "grad_norm"),
    ],
)
def test_nan_told_in_words(line: str, name: str) -> None:
    (found,) = values(line)
    assert list(found) == [name]
    assert math.isnan(found[name])


def test_the_step_in_the_words_is_taken() -> None:
    piece, _ = Events().line(1, "Loss became infinite or NaN at iteration=123!", known={})
    assert piece is not None
    assert piece.step == 123


@pytest.mark.parametrize(
    "line",
    [
        "  check_for_nan_in_loss_and_grad .................. True",
        "loss_scale: 65536",
        "using dynamic loss scaling with initial scale 65536",
        "the loss is not nan",
        "skip batches whose nan loss: False",
        "=> scaling learning rate",
    ],
)
def test_no_event(line: str) -> None:
    assert values(line) == []


def test_an_overflow_that_eight_ranks_print_is_one() -> None:
    lines = []
    for second, before in ((1, 65536), (3, 32768), (9, 16384)):
        lines += [DEEPSPEED.format(second, rank, before, before // 2) for rank in range(8)]
    lines[7], lines[8] = lines[8], lines[7]  # they overtake each other
    assert [v["loss_scale"] for v in values(*lines)] == [32768.0, 16384.0, 8192.0]


def test_a_scale_at_its_floor_is_told_each_time() -> None:
    lines = [DEEPSPEED.format(second, 0, 1, 1) for second in range(6)]
    assert len(values(*lines)) == 6


def test_a_scale_that_grew_and_fell_again_is_two_events() -> None:
    lines = [DEEPSPEED.format(1, 0, 64, 32), DEEPSPEED.format(50, 0, 64, 32)]
    assert len(values(*lines)) == 2


def ending(tmp_path: Path, *tail: str) -> RunInfo:
    path = tmp_path / "out.log"
    lines = [f"step {s}: loss {3 - s / 100:.3f}" for s in range(50)]
    path.write_text("\n".join([*lines, *tail]) + "\n")
    with open_runs(str(path)) as runs:
        log = next(runs)
        list(log.batches)
        return log.run


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (
            ["Traceback (most recent call last):", '  File "a.py", line 3', "ValueError: bad"],
            "line 53: ValueError: bad",
        ),
        (["torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"], "OutOfMemoryError"),
        (["[rank3]:[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout"], "Watchdog"),
        (["slurmstepd: error: *** JOB 1 CANCELLED AT 2024-01-01 DUE TO TIME LIMIT ***"], "TIME LIMIT"),
        (["Segmentation fault (core dumped)"], "Segmentation"),
        (["KeyboardInterrupt"], "KeyboardInterrupt"),
        (["RuntimeError: NCCL error in: ProcessGroupNCCL.cpp"], "NCCL"),
    ],
)
def test_a_log_that_ends_in_a_failure_says_crashed(tmp_path: Path, tail: list[str], reason: str) -> None:
    run = ending(tmp_path, *tail)
    assert run.status == "crashed"
    assert run.reason is not None
    assert reason in run.reason


def test_a_failure_in_the_middle_is_no_crash(tmp_path: Path) -> None:
    assert ending(tmp_path).status is None
    later = [f"step {s}: loss 2.4" for s in range(50, 90)]
    assert ending(tmp_path, "ConnectionError: wandb is not reachable", *later).status is None


SCRIPT = '''"""Trains a model.

step:0/100 train_loss:11.0 is what a line looks like
"""
import os
import sys
from dataclasses import dataclass

import torch


@dataclass
class Args:
    lr: float = 0.1  # step 5: loss 9.9
    steps: int = 100


def train(args: Args) -> None:
    """Prints lines such as

    step 7: loss 99.0, lr 1.0
    """
    model = torch.nn.Linear(3, 3)
    for step in range(args.steps):
        loss = model(torch.ones(3)).sum()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    # step 100: loss 0.001 would be nice
    print("step 100: loss 0.001")


if __name__ == "__main__":
    train(Args())
'''


@pytest.mark.parametrize("packed", [False, True])
def test_source_code_at_the_head_is_no_log(tmp_path: Path, packed: bool) -> None:
    many = SCRIPT * 90  # longer than what is looked at first
    log = "".join(f"step {s}: loss {3 - s / 100:.3f}\n" for s in range(0, 60))
    text = many + "=" * 100 + "\nRunning Python 3.11\nnvidia-smi\n" + log
    path = tmp_path / "out.txt"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with open_runs(str(path)) as runs:
        batch = next(next(runs).batches)[1]
    values, _ = batch.scalar("loss")
    assert batch.step.tolist() == list(range(60))
    assert values.max() < 3.1


def test_a_log_without_code_is_left_alone() -> None:
    lines = [(k, f"step {k}: loss {k}") for k in range(1000)]
    lines[3] = (3, "import of the data set took 3 s")
    lines[4] = (4, "  lr = 0.1")
    assert list(without_source(lines)) == lines


def test_code_and_log_lines() -> None:
    assert is_code("import numpy as np")
    assert is_code("    loss = model(x)")
    assert not is_code("step:10/3242 train_loss:9.9 train_time:100ms step_avg:10ms")
    assert not is_code("iter 10: loss 9.86, time 55.66ms, mfu 8.00%")
    assert not is_code(" iteration        1/    2500 | lm loss: 1.065542E+01 | loss scale: 32768.0 |")
