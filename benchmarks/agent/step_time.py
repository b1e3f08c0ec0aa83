"""Step time with and without the agent, per tier, beside other tools on the same model in the same run.

The bundled trainer's model trains in blocks of steps, one bare, one with a tool, one bare, and so on; a
block's ratio is to the mean of the bare ones before and after it. Tools are attached to the same model and
taken off again. Shown are medians over the rounds, with the smallest and the largest, of wall time and of the
process's CPU time (all threads), which is the steadier one on a machine with other work to do.

    python -m benchmarks.agent.step_time [--shape tiny|large] [--rounds N] [--steps N] [--alone]

The agent delivers to a server that accepts connections and never answers, the worst there is; one row is
without a server, with the diagnosis in a thread. trainscope, torchmortem and wandb take part where they are
installed (``pip install trainscope==1.8.1 torchmortem==0.1.1 wandb==0.31.0``).
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.agent.step_latency import hanging_server
from benchmarks.agent.tools import Tool, agent, other_tools
from floatscope_trainer.config import ModelConfig, OptimConfig, Precision, PrecisionConfig, TrainConfig
from floatscope_trainer.data import CharText, load_text
from floatscope_trainer.emulated.backend import EmulatedBackend

CADENCE = 50  # the agent's default, and what sampled steps of others are weighed with


@dataclass(frozen=True)
class Shape:
    """model: the GPT.  batch: sequences a step.  steps: of a block.  rounds: by default."""

    model: ModelConfig
    batch: int
    steps: int
    rounds: int


SHAPES = {
    "tiny": Shape(ModelConfig(), batch=4, steps=25, rounds=11),
    "large": Shape(
        ModelConfig(layers=8, width=1024, heads=16, hidden=2752, context=64), batch=16, steps=1, rounds=5
    ),
}


class Job:
    """A model that trains; the loop is the trainer's, laid open for tools that stand inside it."""

    def __init__(self, shape: Shape, text: CharText, precision: Precision) -> None:
        model = replace(shape.model, vocab_size=text.vocab_size)
        self.config = TrainConfig(model, PrecisionConfig(precision), OptimConfig(), batch=shape.batch)
        self.backend = EmulatedBackend(self.config)
        self.model = self.backend.model
        self.optimizer = self.backend.make_optimizer(self.config.optim, scaled_gradients=False)
        self._text = text
        self._done = 0

    def step(self, tool: Tool) -> None:
        """One step, with what the tool does in it."""
        config = self.config
        batch = self._text.batch(self._done, seed=0, micro=0, size=config.batch, context=config.model.context)
        self._done += 1
        tool.begin({"input_ids": batch.ids, "labels": batch.labels})
        self.optimizer.zero_grad(set_to_none=True)
        with self.backend.autocast():
            logits = self.model(batch.ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        torch.autograd.backward(loss)
        value = loss.item()
        tool.before_update(value)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.optim.clip).item()
        self.optimizer.step()
        tool.end({"loss": value, "grad_norm": norm, "lr": config.optim.lr})


@dataclass(frozen=True)
class Cost:
    """Seconds of a block of steps."""

    wall: float
    cpu: float


def block(job: Job, tool: Tool, steps: int) -> Cost:
    """Attaches, takes a step that is not counted (first calls), measures, takes the tool off."""
    gc.collect()
    tool.attach(job.model, job.optimizer)
    if type(tool) is not Tool:
        job.step(tool)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        job.step(tool)
    cost = Cost(time.perf_counter() - wall, time.process_time() - cpu)
    tool.detach()
    return cost


@dataclass
class Ratios:
    """Of the rounds of one tool, to the bare blocks around each."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def weighed(self, sampled: Ratios) -> Ratios:
        """One step in CADENCE is a sampled one."""

        def mix(often: Sequence[float], seldom: Sequence[float]) -> list[float]:
            return [a + (b - a) / CADENCE for a, b in zip(often, seldom, strict=True)]

        return Ratios(mix(self.wall, sampled.wall), mix(self.cpu, sampled.cpu))

    def shown(self) -> str:
        """Median and range of both, as additions in percent."""
        return "   ".join(_shown(values) for values in (self.wall, self.cpu))


def _shown(values: Sequence[float]) -> str:
    low, middle, high = (100 * (v - 1) for v in (min(values), statistics.median(values), max(values)))
    return f"{middle:+8.2f} % ({low:+.1f} to {high:+.1f})".ljust(32)


def compare(job: Job, tools: dict[str, Tool], *, steps: int, rounds: int) -> tuple[dict[str, Ratios], float]:
    """Ratios by tool, and seconds of a bare step; the order turns around from round to round."""
    ratios = {name: Ratios() for name in tools}
    bare_steps: list[float] = []
    for tool in (*tools.values(), Tool()):  # imports and first calls are not part of a step
        block(job, tool, 1)
    for number in range(rounds):
        before = block(job, Tool(), steps)
        for name in list(tools)[:: 1 if number % 2 else -1]:
            found = block(job, tools[name], steps)
            after = block(job, Tool(), steps)
            bare_steps.append(after.wall / steps)
            ratios[name].wall.append(2 * found.wall / (before.wall + after.wall))
            ratios[name].cpu.append(2 * found.cpu / (before.cpu + after.cpu))
            before = after
    return ratios, statistics.median(bare_steps)


def report(ratios: dict[str, Ratios]) -> None:
    """Prints the table: what every step costs, and what that is at the default cadence."""
    often, always = ratios["tier 0"], ratios["every step"]
    rows = {
        "floatscope: tier 0 (always on)": often,
        f"floatscope: default, a sample in {CADENCE} steps": often.weighed(always),
        "floatscope: everything at every step": always,
        "floatscope: tier 0, no server, local diagnosis": ratios["local"],
    }
    for name, found in ratios.items():
        if name.endswith(", sampled"):
            plain = name.removesuffix(", sampled")
            rows[f"{plain}, a sample in {CADENCE} steps"] = ratios[f"{plain}, not sampled"].weighed(found)
            rows[f"{plain}, a sample at every step"] = found
        elif name not in ("tier 0", "every step", "local") and not name.endswith(", not sampled"):
            rows[name] = found
    print(f"{'':<48}{'wall time of a step':^32}   {'CPU time of a step':^32}")
    for name, found in rows.items():
        print(f"{name:<48}{found.shown()}")
    ours = rows[f"floatscope: default, a sample in {CADENCE} steps"].cpu
    if min(ours) <= 1.0:
        print(
            "some rounds show the default as free: the noise is larger; take more rounds or a quieter machine"
        )
    elif "trainscope" in rows:
        times = (statistics.median(rows["trainscope"].cpu) - 1) / (statistics.median(ours) - 1)
        print(f"trainscope adds {times:.1f} times the CPU time that floatscope adds by default")


def run(name: str, args: argparse.Namespace, url: str, folder: Path) -> None:
    """One shape: a line about it, and its table."""
    shape = SHAPES[name]
    shape = replace(shape, batch=args.batch or shape.batch)
    text = load_text((), context=shape.model.context)
    job = Job(shape, text, args.precision)
    there = {"url": url, "spool_dir": folder / name}
    tools: dict[str, Tool] = {
        "tier 0": agent(stats_every=10**6, **there),
        "every step": agent(stats_every=1, **there),
        "local": agent(stats_every=10**6, mode="local", spool_dir=folder / name),
    }
    with ExitStack() as stack:
        for tool_name, make in (other_tools() if not args.alone else {}).items():
            tools[tool_name] = stack.enter_context(make(folder / name))
        steps, rounds = args.steps or shape.steps, args.rounds or shape.rounds
        ratios, seconds = compare(job, tools, steps=steps, rounds=rounds)
    count = sum(p.numel() for p in job.model.parameters())
    print(
        f"\n{name}: {count / 1e6:.1f} M parameters, {shape.batch * shape.model.context} tokens a step, "
        f"{args.precision}, {rounds} rounds of {steps} steps, a bare step {1e3 * seconds:.0f} ms"
    )
    report(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: both")
    parser.add_argument("--rounds", type=int, help="default: tiny 11, large 5")
    parser.add_argument("--steps", type=int, help="of a block; default: tiny 25, large 1")
    parser.add_argument("--alone", action="store_true", help="leave the other tools out")
    parser.add_argument("--batch", type=int, help="sequences a step; default: tiny 4, large 16")
    parser.add_argument("--threads", type=int, default=1, help="of torch; default: 1")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp8"), default="bf16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.getLogger("floatscope").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, hanging_server() as url:
        for name in args.shape or SHAPES:
            run(name, args, url, Path(folder))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
