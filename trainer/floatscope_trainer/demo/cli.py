"""`floatscope demo`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from floatscope_trainer.demo.bars import RunBars
from floatscope_trainer.demo.judge import Outcome, judge, read_losses
from floatscope_trainer.demo.plan import HEALTHY_TWIN, STEPS, DemoRun, checkpoint_dir, fork_checkpoint, plan
from floatscope_trainer.demo.pool import Job, PoolError, train_all
from floatscope_trainer.demo.server import Server, ServerError, running_server
from floatscope_trainer.demo.table import LEGEND, WIDE_COLUMNS, result_json, result_tables, summary

EXIT_RIGHT, EXIT_MISJUDGED, EXIT_BROKEN, EXIT_INTERRUPTED = 0, 1, 3, 130
PROJECT = "demo"
WORKERS = 2  # the demo is made for two cores
NONFINITE_STEPS = 24  # a run with a NaN loss goes on this long; nothing new happens in it
SCHEDULE = ("--min-lr", "0.02", "--decay-steps", "240")
"""The learning rate is nearly down when the faults come: late in training, where updates are small."""
VERDICT_TIMEOUT_S = 30.0
POLL_S = 0.2
NARROW_COLUMNS = 80  # a narrower terminal wraps

EXAMPLES = """examples:
  floatscope demo                     train, show what was found, go on serving the dashboard
  floatscope demo --exit              end after the table
  floatscope demo --seed 7 --json     other initialisation, data, fault steps and layers; one JSON document

With FLOATSCOPE_URL (and FLOATSCOPE_TOKEN) set, the runs go to that server instead of one of the demo's
own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo. Returns 0, 1 if a run was misjudged, 3 if something broke, 130 after Ctrl-C."""
    args = _parser().parse_args(argv)
    console = Console(stderr=args.json)
    started = time.monotonic()
    try:
        with (
            _interrupted_by(signal.SIGTERM),
            running_server(port=args.port, data_dir=args.data_dir, env=os.environ) as server,
            tempfile.TemporaryDirectory(prefix="floatscope-demo-") as scratch,
        ):
            runs = plan(args.seed)
            outcomes = run_demo(
                runs,
                seed=args.seed,
                server=server,
                data_dir=args.data_dir,
                scratch=Path(scratch),
                console=console,
            )
            seconds = time.monotonic() - started
            if args.json:
                document = result_json(outcomes, seed=args.seed, url=server.url, seconds=seconds)
                print(json.dumps(document, indent=1))
            else:
                show(outcomes, server=server, seconds=seconds, console=console)
                if not args.exit and server.process is not None:
                    _keep_serving(server, console)
                elif server.process is not None:
                    again = f"floatscope serve --data-dir {args.data_dir}"
                    console.print(
                        f"The server ends now; to look later: {again}", highlight=False, markup=False
                    )
    except (ServerError, PoolError) as error:
        print(f"floatscope demo: {error}", file=sys.stderr)
        return EXIT_BROKEN
    except KeyboardInterrupt:
        print("\nfloatscope demo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_RIGHT if all(outcome.why_wrong is None for outcome in outcomes) else EXIT_MISJUDGED


def run_demo(
    runs: Sequence[DemoRun], *, seed: int, server: Server, data_dir: Path, scratch: Path, console: Console
) -> list[Outcome]:
    """Trains all runs against the server and judges its verdicts. Raises ServerError, PoolError."""
    suffix = secrets.token_hex(3)  # another demo in the same data directory adds runs of its own
    ids = {run.name: f"{run.name}-{suffix}" for run in runs}
    console.print(
        f"floatscope demo    {len(runs)} runs up to step {STEPS}, emulated FP8, {WORKERS} at a time, "
        f"seed {seed}\n"
        f"live at {server.link()}",
        style="dim",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    data_dir.mkdir(parents=True, exist_ok=True)
    with RunBars(console, names=[run.name for run in runs], steps=STEPS) as bars:
        train_all(
            [make_job(run, ids=ids, seed=seed, scratch=scratch) for run in runs],
            workers=WORKERS,
            env=_worker_env(server, data_dir),
            log=data_dir / "demo.log",
            watcher=bars,
        )
    losses = {run.name: read_losses(server.get_text(f"/runs/{ids[run.name]}/steps")) for run in runs}
    return [
        judge(
            run,
            await_verdict(server, ids[run.name], last_step=max(losses[run.name], default=-1)),
            run_id=ids[run.name],
            loss=losses[run.name],
            twin=losses[HEALTHY_TWIN] if run.is_fork else {},
        )
        for run in runs
    ]


def make_job(run: DemoRun, *, ids: Mapping[str, str], seed: int, scratch: Path) -> Job:
    """The run's command lines. Forks start from the healthy run's checkpoint, after it is over."""
    common = ["--run", run.name, "--run-id", ids[run.name], "--project", PROJECT, "--quiet"]
    common += ["--max-nonfinite", str(NONFINITE_STEPS)]
    if run.baseline is not None:
        common += ["--baseline", ids[run.baseline]]
    whole = (*common, "--steps", str(STEPS), *run.options)
    if not run.is_fork:
        start = ("--seed", str(seed), *SCHEDULE, "--checkpoint-dir", str(checkpoint_dir(scratch)))
        return Job(run.name, ((*whole, *start),))
    fork = ("--fork", str(fork_checkpoint(scratch)))
    if not run.resumes:
        return Job(run.name, ((*whole, *fork),), after=HEALTHY_TWIN)
    stop, keep = str(run.fault_step), str(scratch / run.name)
    before = (*common, "--steps", stop, *fork, "--checkpoint-every", stop, "--checkpoint-dir", keep)
    return Job(run.name, (before, (*whole, "--resume", keep)), after=HEALTHY_TWIN)


def await_verdict(server: Server, run_id: str, *, last_step: int) -> Mapping[str, Any]:
    """The verdict once it covers the run's last step. Raises ServerError if it never does."""
    deadline = time.monotonic() + VERDICT_TIMEOUT_S
    while True:
        verdict: Mapping[str, Any] = server.get(f"/runs/{run_id}/verdict")
        judged = verdict["source"].get("last_step")
        if last_step < 0 or (judged is not None and judged >= last_step):
            return verdict
        if time.monotonic() > deadline:
            raise ServerError(
                f"the verdict about {run_id} stops at step {judged}, the run at step {last_step}"
            )
        time.sleep(POLL_S)


def show(outcomes: Sequence[Outcome], *, server: Server, seconds: float, console: Console) -> None:
    """The table, what it adds up to, and where to look."""
    console.print()
    width = console.width if console.is_terminal else WIDE_COLUMNS
    for table in result_tables(outcomes, width=width):
        Console(file=console.file, width=max(width, NARROW_COLUMNS)).print(table)
        console.print()
    found = next((o for o in outcomes if o.finding is not None), outcomes[0])
    lines = [
        LEGEND,
        "",
        *summary(outcomes, seconds=seconds),
        f"Open {server.link()}",
        f"or   {server.url}/runs/{found.run_id}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _keep_serving(server: Server, console: Console) -> None:
    """Until Ctrl-C. Raises ServerError if the server ends by itself."""
    assert server.process is not None
    console.print("Serving on; Ctrl-C ends it.", highlight=False)
    try:
        server.process.wait()
    except KeyboardInterrupt:
        console.print()
        return
    raise ServerError(f"floatscope serve ended with code {server.process.returncode}")


@contextmanager
def _interrupted_by(number: int) -> Iterator[None]:
    """Treats a signal like Ctrl-C, so that the server and the workers are stopped before the demo ends."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _worker_env(server: Server, data_dir: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLOATSCOPE_URL": server.url,
        "FLOATSCOPE_TOKEN": server.token,
        "FLOATSCOPE_SPOOL_DIR": str(data_dir / "spool"),
        "OMP_NUM_THREADS": "1",  # two processes on two cores: more threads only wait for each other
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floatscope demo",
        description="Train healthy and faulty FP8 runs against a server and show what it found.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data_dir = Path(os.environ.get("FLOATSCOPE_DATA_DIR", "floatscope-data"))
    parser.add_argument("--seed", type=_seed, default=0, help="initialisation, data, fault steps, layers (0)")
    parser.add_argument("--port", type=_port, help="port of the server (8321, or a free one)")
    parser.add_argument("--data-dir", type=Path, default=data_dir, help="where data is kept (%(default)s)")
    parser.add_argument("--exit", action="store_true", help="end after the table instead of serving on")
    parser.add_argument("--json", action="store_true", help="print one JSON document and end")
    return parser


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
