"""`floatscope replay`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from floatscope.protocol.strict_json import dumps
from floatscope_trainer.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from floatscope_trainer.cli import EXIT_FINISHED, EXIT_USAGE, build
from floatscope_trainer.data import DataError
from floatscope_trainer.faults.injection import InjectionError
from floatscope_trainer.options import UsageError, make_parser, run_options
from floatscope_trainer.replay.answer import AS_IT_WAS, BF16, FP8_OFF, LAYER_BF16, Answer, answer, to_json
from floatscope_trainer.replay.captured import CapturedBatch, CaptureError
from floatscope_trainer.replay.findings_file import VerdictError, VerdictFile, read_verdict
from floatscope_trainer.replay.report import table
from floatscope_trainer.replay.variants import Build, GradError, Outcome, Variant, error_of, run_step
from floatscope_trainer.te_backend import BackendUnavailable
from floatscope_trainer.training import Training

EXAMPLES = """examples:
  floatscope train --recipe delayed --inject 'stale_scale@150:blocks.1.mlp.fc1/input*64' --steps 200
  --checkpoint-every 50 --log run.jsonl
  floatscope replay floatscope-checkpoints --verdict run.verdict.json
  floatscope replay floatscope-checkpoints --step 150 --layer blocks.1.mlp.fc1
  floatscope replay floatscope-checkpoints --capture captures/step150-rank0

The last checkpoint before the step is taken; the steps in between are trained again as they were.
"""


@dataclass(frozen=True)
class Order:
    """What is replayed.  is_layer_asked: named by the user, not by a finding.  inject: the run's faults."""

    checkpoint: Checkpoint
    step: int
    layer: str | None
    is_layer_asked: bool
    inject: tuple[str, ...]
    capture: Path | None
    verdict: VerdictFile | None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the step again. Returns 0, 2 for wrong usage or input."""
    args = _parser().parse_args(argv)
    try:
        order = _order(args)
        outcomes, found, clean, is_same = _replay(order, threads=args.threads, say=_say)
    except (
        UsageError,
        InjectionError,
        CheckpointError,
        CaptureError,
        DataError,
        VerdictError,
        BackendUnavailable,
    ) as error:
        print(f"floatscope replay: {error}\n(all options: floatscope replay --help)", file=sys.stderr)
        return EXIT_USAGE
    result = to_json(found, outcomes, step=order.step, layer=order.layer, clean=clean)
    result["same_batch"] = is_same
    if order.verdict is not None and not args.dry_run:
        try:
            order.verdict.write(result)
        except OSError as error:
            print(
                f"floatscope replay: {order.verdict.path} cannot be written ({error.strerror})",
                file=sys.stderr,
            )
            return EXIT_USAGE
        _say(f"the answer is in {order.verdict.path}")
    if args.json:
        print(dumps(result))
    else:
        print(table(outcomes, found, step=order.step, layer=order.layer, is_same_batch=is_same))
    return EXIT_FINISHED


def _say(text: str) -> None:
    print(f"floatscope replay: {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="floatscope replay",
        description="Run a step of a run of floatscope train again: as it was, in bf16, with the suspect "
        "layer in bf16, and with FP8 off; say which of them makes the fault go away.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a checkpoint of floatscope train, or the directory of them"
    )
    parser.add_argument(
        "--verdict",
        type=Path,
        metavar="FILE",
        help="verdict (JSON): its worst finding says step and layer, and gets the answer",
    )
    parser.add_argument("--finding", metavar="ID", help="another finding of the verdict")
    parser.add_argument(
        "--capture", type=Path, metavar="DIR", help="captured step: its batch and random state are used"
    )
    parser.add_argument("--step", type=int, help="the step (that of the finding or capture)")
    parser.add_argument("--layer", help="the suspect layer (that of the finding)")
    parser.add_argument(
        "--inject",
        action="append",
        metavar="FAULT@STEP[:TENSOR][*STRENGTH]",
        help="faults of the run (those that the capture names)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="leave the verdict as it is")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser


def _order(args: argparse.Namespace) -> Order:
    verdict = None if args.verdict is None else read_verdict(args.verdict, finding_id=args.finding)
    if args.finding is not None and verdict is None:
        raise UsageError("--finding names a finding of a verdict: give --verdict as well")
    if args.threads < 1:
        raise UsageError(f"--threads {args.threads}: expected at least 1")
    captured = None if args.capture is None else CapturedBatch(args.capture).info
    finding: Any = (
        verdict.finding if verdict is not None else captured.finding if captured is not None else None
    )
    step = args.step
    if step is None:
        step = captured.step if captured is not None else None if finding is None else finding["onset_step"]
    if step is None:
        raise UsageError("which step? give --verdict, --capture or --step")
    if captured is not None and captured.step != step:
        raise UsageError(f"--step {step}: the capture holds step {captured.step}")
    inject = args.inject
    if inject is None and captured is not None:
        named = captured.run.get("config", {}).get("inject", [])
        inject = [text for text in named if isinstance(text, str)] if isinstance(named, list) else []
    layer = args.layer if args.layer is not None else None if finding is None else finding.get("layer")
    checkpoint = _checkpoint_before(args.checkpoint, step)
    is_asked = args.layer is not None
    return Order(checkpoint, step, layer, is_asked, tuple(inject or ()), args.capture, verdict)


def _checkpoint_before(path: Path, step: int) -> Checkpoint:
    """The newest checkpoint of a directory from which ``step`` can be reached, with a step before it if
    there is one."""
    if not path.is_dir():
        found = load_checkpoint(path)
        if found.next_step > step:
            raise UsageError(
                f"{path}: begins at step {found.next_step}, after step {step}; give an older one"
            )
        return found
    numbered = {
        int(file.stem.rpartition("-")[2]): file
        for file in path.glob("step-*.safetensors")
        if file.stem.rpartition("-")[2].isdecimal()
    }
    before = sorted(number for number in numbered if number < step) or [n for n in numbered if n == step]
    if not before:
        have = ", ".join(map(str, sorted(numbered))) or "none"
        raise UsageError(f"{path}: no checkpoint at or before step {step}; there are: {have}")
    return load_checkpoint(numbered[before[-1]])


def _replay(
    order: Order, *, threads: int, say: Any
) -> tuple[list[Outcome], Answer, GradError | None, bool | None]:
    captures: list[CapturedBatch] = []

    def make() -> Training:
        training = _build(order, threads=threads)
        if order.capture is not None:
            captured = CapturedBatch(order.capture)
            captures.append(captured)
            training.faults = [*training.faults, captured]
        return training

    first = make()
    layer = order.layer
    if layer is not None and layer not in first.backend.layers:
        known = ", ".join(list(first.backend.layers)[:4])
        told = f"the layer {layer!r} is none of the model's linear layers ({known}, ...)"
        if order.is_layer_asked:
            raise UsageError(told)
        say(f"{told}: it has no FP8 of its own, the variants without it remain")
        layer = None
    if first.config.precision.precision != "fp8":
        raise UsageError(
            f"this run trains in {first.config.precision.precision}: there is no FP8 to switch off"
        )
    off = Variant(FP8_OFF, "fp32" if first.backend.name == "emulated" else "bf16")
    variants = [Variant(AS_IT_WAS), Variant(BF16, "bf16"), off]
    if layer is not None:
        variants.insert(1, Variant(LAYER_BF16, "bf16", (layer,)))
    found = []
    for variant in variants:
        say(f"step {order.step}, {variant.name} (from step {order.checkpoint.next_step})")
        found.append(run_step(make, variant, step=order.step))
    reference = found[-1][1]
    outcomes = [replace(outcome, error=error_of(gradients, reference)) for outcome, gradients in found]
    clean = _clean_error(make, off, step=order.checkpoint.next_step, before=order.step)
    is_same = next((captured.is_same for captured in captures if captured.is_same is not None), None)
    return outcomes, answer(outcomes, layer=layer, clean=clean), clean, is_same


def _clean_error(make: Build, off: Variant, *, step: int, before: int) -> GradError | None:
    """The error that FP8 makes in the gradients of the first step after the checkpoint, before the fault."""
    if step >= before:
        return None
    _, was = run_step(make, Variant(AS_IT_WAS), step=step)
    _, reference = run_step(make, off, step=step)
    return error_of(was, reference)


def _build(order: Order, *, threads: int) -> Training:
    options = run_options(make_parser().parse_args([]), order.checkpoint.config)
    options = replace(options, inject=order.inject, threads=threads)
    config = order.checkpoint.config
    config = replace(config, steps=max(config.steps, order.step + 1), eval_every=0)
    return build(config, options, checkpoint=order.checkpoint)


if __name__ == "__main__":
    sys.exit(main())
