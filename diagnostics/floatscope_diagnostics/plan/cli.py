"""``floatscope plan``: what a training run needs and takes, before it starts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from floatscope.hardware.gpu_lookup import UnknownGpuError, find_gpu
from floatscope.model_shapes.reading import read_model
from floatscope.model_shapes.shape import ModelConfigError
from floatscope_diagnostics.command import FOUND, OK, refused, run_command
from floatscope_diagnostics.plan.arguments import PROG, parser, setup_of, wish_of
from floatscope_diagnostics.plan.check_report import check_document, check_report
from floatscope_diagnostics.plan.checks import run_checks
from floatscope_diagnostics.plan.document import document
from floatscope_diagnostics.plan.planning import Plan, make_plan
from floatscope_diagnostics.plan.rates import rates_of
from floatscope_diagnostics.plan.report import report
from floatscope_diagnostics.plan.setup import PlanError
from floatscope_diagnostics.reports.terminal import style_of


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit code and never raises."""
    return run_command(parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    if args.check:
        return _check(args)
    missing = [name for name in ("model", "gpu") if not getattr(args, name)]
    if missing:
        return refused(PROG, f"needs {' and '.join('--' + name for name in missing)} (or --check)")
    try:
        plan = _plan(args)
    except (PlanError, UnknownGpuError, ModelConfigError) as error:
        return refused(PROG, str(error))
    if args.json:
        print(json.dumps(document(plan), allow_nan=False))
    else:
        print(report(plan, style_of(sys.stdout, os.environ)), end="")
    sys.stdout.flush()
    return FOUND if all(one.memory.fits == "does not fit" for one in plan.plans) else OK


def _plan(args: argparse.Namespace) -> Plan:
    gpu = find_gpu(args.gpu)
    setup = setup_of(args)
    rates = rates_of(
        gpu,
        stack=setup.stack,
        link_gb_s=args.link_gb_s,
        network_gb_s=args.network_gb_s,
        gpus_per_node=args.gpus_per_node,
    )
    wish = wish_of(args)
    return make_plan(read_model(args.model), gpu, setup, rates, wish)


def _check(args: argparse.Namespace) -> int:
    outcomes = run_checks()
    if args.json:
        print(json.dumps(check_document(outcomes), allow_nan=False))
    else:
        print(check_report(outcomes, style_of(sys.stdout, os.environ)), end="")
    sys.stdout.flush()
    return FOUND if any(not one.inside and not one.case.reason for one in outcomes) else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
