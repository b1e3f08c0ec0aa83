"""``floatscope preflight``: can this machine and this model train in FP8, before the run is paid for?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from floatscope.jsonable import printable
from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import ModelConfigError, Parallelism
from floatscope.preflight.against import against_checks
from floatscope.preflight.document import Preflight
from floatscope.preflight.facts import Wanted
from floatscope.preflight.given import PreflightRefused, read_preflight
from floatscope.preflight.parts import all_parts
from floatscope.preflight.recipe_names import recipe_of
from floatscope.preflight.report import report
from floatscope.preflight.run import run_preflight

NAME = "floatscope preflight"
OK, FAILS, OPEN = 0, 1, 2
FAIL_ON = ("fail", "unknown", "warn")
LIBRARIES = ("transformer_engine", "torchao", "megatron", "accelerate", "torch")
_LIBRARY_ALIASES = {"te": "transformer_engine", "ao": "torchao", "mlm": "megatron"}
_MOST = 2**31 - 1
_EXAMPLES = """examples:
  floatscope preflight                                  # every recipe on this machine
  floatscope preflight --recipe delayed --model llama-3-8b --sequence 8192
  floatscope preflight --recipe mxfp8 --library te --model ./config.json --tp 8 --sequence-parallel
  floatscope preflight --recipe current --resume checkpoints/step-12000
  floatscope preflight --json > preflight.json          # for FLOATSCOPE_PREFLIGHT, or for --against
  floatscope preflight --recipe delayed --against rank0-preflight.json
  floatscope preflight --recipe delayed --model ./config.json --fail-on fail   # in CI, without a GPU

MODEL is a Hugging Face config.json or the folder it is in, Megatron arguments, or the name of a known model.
It asks nothing of the network and writes nothing. A machine without a GPU is checked as far as it goes.

exit codes: 0 it can train (pass or warn), 1 something fails, 2 wrong usage, an input that cannot be read, or
no answer: without a GPU, or where what decides could not be read, "unknown" is not "pass".
--fail-on fail ends with 0 on no answer (CI without a GPU), --fail-on warn with 1 on a warning."""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope preflight``."""
    p = argparse.ArgumentParser(
        prog=NAME,
        description="Checks GPU, software, environment, model shapes and casts against an FP8 recipe.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--model", metavar="MODEL", help="configuration or name of the model")
    p.add_argument(
        "--recipe",
        type=_recipe,
        metavar="NAME",
        help="delayed, current, block, mxfp8, nvfp4, tensorwise, rowwise or a name of the protocol",
    )
    p.add_argument("--library", type=_library, metavar="NAME", help=", ".join(LIBRARIES))
    p.add_argument("--micro-batch", type=_count, default=0, metavar="N", help="sequences of a micro-batch")
    p.add_argument("--sequence", type=_count, default=0, metavar="N", help="tokens of a sequence")
    for option, what in (
        ("tp", "tensor"),
        ("pp", "pipeline"),
        ("cp", "context"),
        ("ep", "expert"),
        ("dp", "data"),
    ):
        p.add_argument(f"--{option}", type=_count, default=1, metavar="N", help=f"{what} parallel size")
    p.add_argument("--sequence-parallel", action="store_true", help="with --tp: activations are cut too")
    p.add_argument("--resume", default="", metavar="CKPT", help="a checkpoint that is to be continued")
    p.add_argument("--no-smoke", action="store_true", help="run no GEMM")
    p.add_argument("--compiled", action="store_true", help="try casts under torch.compile too (slow)")
    p.add_argument("--against", metavar="FILE", help="an earlier --json, or that of another rank")
    p.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="unknown",
        help="what does not end with 0: fail; fail and unknown (the default); warn, too",
    )
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument("--verbose", action="store_true", help="also show what passes or does not apply")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    try:
        args = parser().parse_args(list(argv))
    except SystemExit as stop:
        return OK if stop.code in (0, None) else OPEN
    try:
        other = None if args.against is None else read_preflight(Path(args.against))
        wanted = _wanted(args)
    except (ModelConfigError, PreflightRefused) as error:
        print(f"{NAME}: {printable(str(error))}", file=sys.stderr)
        return OPEN
    found = run_preflight(wanted, all_parts(smoke=not args.no_smoke, compiled=args.compiled))
    if other is not None:
        more = against_checks(found.to_json(), other, name=Path(args.against).name)
        found = replace(found, checks=(*found.checks, *more))
    if args.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        print(report(found, verbose=args.verbose), end="")
        print(f"Exit code {exit_code(found, args.fail_on)}. As JSON: --json.")
    sys.stdout.flush()
    return exit_code(found, args.fail_on)


def exit_code(found: Preflight, fail_on: str = "unknown") -> int:
    """0 for pass and warn, 1 for fail, 2 where the answer is open; fail_on: one of FAIL_ON."""
    warned = FAILS if fail_on == "warn" else OK
    unknown = OK if fail_on == "fail" else OPEN
    return {"pass": OK, "warn": warned, "fail": FAILS}.get(found.decision, unknown)


def _wanted(args: argparse.Namespace) -> Wanted:
    model = None if args.model is None else read_model(args.model)
    return Wanted(
        recipe=args.recipe or "",
        library=args.library or "",
        model=model,
        micro_batch=args.micro_batch,
        sequence=args.sequence,
        parallelism=Parallelism(
            tensor=args.tp,
            pipeline=args.pp,
            context=args.cp,
            expert=args.ep,
            data=args.dp,
            sequence=args.sequence_parallel,
        ),
        resume=args.resume,
    )


def _recipe(text: str) -> str:
    try:
        return recipe_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _library(text: str) -> str:
    key = text.strip().lower().replace("-", "_")
    found = _LIBRARY_ALIASES.get(key, key)
    if found not in LIBRARIES:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join((*_LIBRARY_ALIASES, *LIBRARIES))}, got {text!r}"
        )
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {_MOST:,}, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
