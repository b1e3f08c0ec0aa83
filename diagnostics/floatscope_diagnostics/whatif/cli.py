"""``floatscope what-if``: what another number format would do to a run's tensors."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence

from floatscope.protocol.names import MAX_STEP, ROLES
from floatscope_diagnostics.command import OK, refused, run_command
from floatscope_diagnostics.compare.sources import server_from
from floatscope_diagnostics.readers.run_log import UnreadableLog
from floatscope_diagnostics.whatif.document import what_if_document
from floatscope_diagnostics.whatif.grids import variant, variants
from floatscope_diagnostics.whatif.report import Limits, report
from floatscope_diagnostics.whatif.selecting import Selection
from floatscope_diagnostics.whatif.sources import Asked, ask
from floatscope_diagnostics.whatif.variant import Variant

PROG = "floatscope what-if"
DESCRIPTION = (
    "Predicts from stored histograms what other number formats would do to tensors: underflow, overflow and "
    "SQNR in BF16, E4M3, E5M2, MXFP8, MXFP6, MXFP4, NVFP4, INT8 and INT4, with one scale per tensor, row or "
    "block, each with the error that such predictions had. Stored values are cast instead, which is exact."
)
_EXAMPLES = """examples:
  floatscope what-if run.jsonl                                    # the whole run, worst tensors by format
  floatscope what-if run.jsonl --tensor 'blocks.1.mlp.fc2/input'  # every format for one tensor
  floatscope what-if run.jsonl --layer 'blocks.1.*' --role weight --step 500
  floatscope what-if qwen-fp8 --server http://host:8321 --format mxfp8_e4m3_up --format nvfp4
  floatscope what-if activations.safetensors --tensor 'h.*'       # casts of stored values
  floatscope what-if --list-formats

A name that is a file is read as one (a floatscope log, .npy, .safetensors or the folder of a capture); any
other is a run id on the server of --server or FLOATSCOPE_URL (token: --token or FLOATSCOPE_TOKEN). A
histogram is of the newest sampled step at or before --step, or else of the first after it.

exit codes: 0 answered, 2 an input could not be read, has no histograms or no such tensor, or wrong usage,
3 internal error"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope what-if``."""
    p = argparse.ArgumentParser(
        prog=PROG,
        description=DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("run", metavar="RUN", nargs="?", help="a log file, a run id, or a file of values")
    p.add_argument("--tensor", metavar="GLOB", help="tensors of this name or pattern (* and ?)")
    p.add_argument("--layer", metavar="GLOB", help="tensors of these layers, as 'blocks.*.mlp.*'")
    p.add_argument("--role", choices=ROLES, metavar="ROLE", help=f"one of {', '.join(ROLES)}")
    p.add_argument("--step", type=_step, metavar="N", help="default: the newest sampled one")
    p.add_argument(
        "--format",
        dest="formats",
        action="append",
        type=_variant,
        metavar="KEY",
        help="only this format, may be given several times (see --list-formats)",
    )
    p.add_argument("--list-formats", action="store_true", help="print the keys of the formats and stop")
    p.add_argument("--server", metavar="URL", help="server of the run id (default: FLOATSCOPE_URL)")
    p.add_argument("--token", metavar="T", help="its token (default: FLOATSCOPE_TOKEN)")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    p.add_argument(
        "--worst", type=_count, default=3, metavar="N", help="tensors named per format (default: 3)"
    )
    p.add_argument(
        "--underflow-limit", type=_share, default=1.0, metavar="PCT", help="of the count (default: 1)"
    )
    p.add_argument(
        "--overflow-limit", type=_share, default=1.0, metavar="PCT", help="of the count (default: 1)"
    )
    p.add_argument("--sqnr-limit", type=_db, metavar="DB", help="of the count (default: none)")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    if args.list_formats:
        for one in variants():
            print(f"{one.key:22} {one.bits:7.4g} bits  {one.label}")
        return OK
    if args.run is None:
        return refused(PROG, "name a run, a log or a file of values; see --help")
    wanted = tuple(dict.fromkeys(args.formats)) if args.formats else variants()
    try:
        selection = Selection(args.tensor, args.layer, args.role, args.step)
        server = server_from(os.environ, url=args.server, token=args.token)
        found = ask(Asked(args.run, selection, wanted, server, args.server is not None))
    except ValueError as error:
        return refused(PROG, str(error))
    except UnreadableLog as error:
        return refused(PROG, f"{args.run}: {error}")
    if args.json:
        steps = [one.step for one in found.tensors if one.step is not None]
        document = what_if_document(
            run=found.run,
            step=max(steps, default=None),
            tensors=found.tensors,
            source=found.source,
            notes=found.notes,
        )
        print(json.dumps(document, allow_nan=False))
    else:
        limits = Limits(args.underflow_limit, args.overflow_limit, args.sqnr_limit)
        print(report(found.run, found.tensors, limits, found.notes, args.worst), end="")
    sys.stdout.flush()
    return OK


def _variant(text: str) -> Variant:
    try:
        return variant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _step(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:20]) > MAX_STEP:
        raise argparse.ArgumentTypeError(f"expected a step from 0 on, got {text[:40]}")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text[:40]}")
    return int(text)


def _share(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value <= 100.0:
        raise argparse.ArgumentTypeError(f"expected per cent from 0 to 100, got {text[:40]}")
    return value


def _db(text: str) -> float:
    value = _number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected dB, got {text[:40]}")
    return value


def _number(text: str) -> float:
    """NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
