"""The agent's own processor time in the training thread, as a share of the step's.

Differences of whole steps drown in the noise of a shared machine: one per cent of a step is less than two
bare steps differ. So this counts from inside: a profiler on the thread's CPU clock adds up the calls that
enter the agent from outside it, with all that they call. It makes Python calls dearer, so the share is an
upper bound. What the agent's other threads use beside (sending, local diagnosis) is printed as well.

    python -m benchmarks.agent.own_time [--shape tiny|large] [--steps N] [--batch SEQUENCES]
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import floatscope
from benchmarks.agent.step_latency import hanging_server
from benchmarks.agent.step_time import CADENCE, SHAPES, Job
from benchmarks.agent.tools import Tool, agent
from floatscope_trainer.data import load_text

AGENT = str(Path(floatscope.__file__).parent)
PASSES_ON = "wrapper"  # name of the functions that stand in for those they call


def own_seconds(profile: cProfile.Profile) -> float:
    """CPU seconds of calls into the agent from outside it, with what they call.

    What the agent has wrapped and only passes on (the user's own clipping) is taken out again.
    """
    seconds = 0.0
    for (file, _, _), (_, _, _, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for (caller, _, name), (_, _, _, cumulative) in callers.items():
            if file.startswith(AGENT) and not caller.startswith(AGENT):
                seconds += cumulative
            elif caller.startswith(AGENT) and name == PASSES_ON and not file.startswith(AGENT):
                seconds -= cumulative
    return seconds


def measure(job: Job, tool: Tool, steps: int) -> tuple[float, float, float]:
    """Seconds a step: of the training thread, of it the agent's own, and of the other threads."""
    tool.attach(job.model, job.optimizer)
    job.step(tool)
    profile = cProfile.Profile(time.thread_time)
    whole, thread = time.process_time(), time.thread_time()
    for _ in range(steps):
        profile.runcall(job.step, tool)
    thread = time.thread_time() - thread
    others = time.process_time() - whole - thread
    tool.detach()
    return thread / steps, own_seconds(profile) / steps, others / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: both")
    parser.add_argument("--steps", type=int, help="default: tiny 200, large 4")
    parser.add_argument("--batch", type=int, help="sequences a step; default: tiny 4, large 16")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, hanging_server() as url:
        for name in args.shape or SHAPES:
            shape = replace(SHAPES[name], batch=args.batch or SHAPES[name].batch)
            job = Job(shape, load_text((), context=shape.model.context), "bf16")
            steps = args.steps or (200 if name == "tiny" else 4)
            there = {"url": url, "spool_dir": Path(folder) / name}
            step, always, beside = measure(job, agent(stats_every=10**6, **there), steps)
            _, sampled, _ = measure(job, agent(stats_every=1, **there), max(steps // 4, 1))
            bare = step - always
            mixed = always + (sampled - always) / CADENCE
            count = sum(p.numel() for p in job.model.parameters())
            print(
                f"{name}: {count / 1e6:.1f} M parameters, {shape.batch * shape.model.context} tokens, "
                f"bare step {1e3 * bare:.0f} ms of CPU\n"
                f"  always on               {1e3 * always:8.2f} ms  {100 * always / bare:6.2f} %\n"
                f"  a sampled step          {1e3 * sampled:8.2f} ms  {100 * sampled / bare:6.2f} %\n"
                f"  a sample in {CADENCE} steps     {1e3 * mixed:8.2f} ms  {100 * mixed / bare:6.2f} %\n"
                f"  beside, other threads   {1e3 * beside:8.2f} ms"
            )


if __name__ == "__main__":
    main()
