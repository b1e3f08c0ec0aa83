"""The options of the decision on the command line of ``floatscope compare``."""

from __future__ import annotations

import argparse
import re

from floatscope_diagnostics.compare.limits import Limits, presets, with_presets

_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_COUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]+)?)\s*([kKmMbBgGtT]?)\Z")


def add_options(p: argparse.ArgumentParser) -> None:
    """Adds them as a group."""
    names = ", ".join(p.name + (" (default)" if p.default else "") for p in presets().values())
    g = p.add_argument_group("the decision: go, no-go or not yet")
    g.add_argument(
        "--preset", action="append", default=[], metavar="NAME", help=f"limits in use: {names}; repeatable"
    )
    g.add_argument("--min-speedup", type=float, metavar="X", help="throughput over the baseline's, as 1.3")
    g.add_argument("--min-saving", type=float, metavar="PCT", help="cost per token less, in percent")
    g.add_argument("--min-net-saving", type=float, metavar="PCT", help="the same at equal loss")
    g.add_argument(
        "--price-ratio", type=float, metavar="X",
        help="price of an hour of RUN's GPUs over an hour of BASELINE's (default: 1)",
    )  # fmt: skip
    g.add_argument("--margin-pct", type=float, metavar="PCT", help="margin in percent of the baseline's loss")
    g.add_argument("--planned-steps", type=count, metavar="N", help="length of the real training, in steps")
    g.add_argument("--planned-tokens", type=count, metavar="N", help="the same in tokens, as 15T or 3e11")
    g.add_argument(
        "--evals", nargs=2, metavar=("RUN", "BASE"),
        help="results of lm-evaluation-harness of both (file, samples or folder), or {task: {correct: []}}",
    )  # fmt: skip
    g.add_argument("--eval-points", type=float, metavar="PT", help="points a task may lose (default: 1)")
    g.add_argument(
        "--pair", nargs=2, action="append", default=[], metavar=("RUN", "BASE"),
        help="another pair of the same recipes from another seed; three pairs are judged over seeds",
    )  # fmt: skip
    g.add_argument(
        "--null", nargs=2, action="append", default=[], metavar=("A", "B"),
        help="two baselines that differ by chance only (BF16 against BF16): the run-to-run spread",
    )  # fmt: skip
    g.add_argument(
        "--fail-on", choices=("no-go", "not-yet"),
        help="exit code 1 for no-go (with not-yet: for both), 0 otherwise, whatever the difference is",
    )  # fmt: skip
    g.add_argument("--html", metavar="FILE", help="write the decision as a page to print (- for stdout)")


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits that were asked for. Raises BadLimits."""
    given = {
        "margin_nats": args.margin,
        "margin_pct": args.margin_pct,
        "min_speedup": args.min_speedup,
        "min_saving_pct": args.min_saving,
        "min_net_saving_pct": args.min_net_saving,
        "price_ratio": args.price_ratio,
        "eval_points": args.eval_points,
        "planned_steps": args.planned_steps,
        "planned_tokens": args.planned_tokens,
    }
    return with_presets(args.preset, given)


def count(text: str) -> int:
    """A number of steps or tokens: 4000, 3e11, 15T."""
    found = _COUNT.match(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a number such as 20000, 3e11 or 15T, got {text!r}")
    value = float(found[1].replace("_", "").replace(",", "")) * _SIZES[found[2].lower()]
    if not 1.0 <= value < 2.0**63:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(value)
