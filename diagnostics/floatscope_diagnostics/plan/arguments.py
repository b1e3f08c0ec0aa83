"""The command line of ``floatscope plan`` and the set-up it describes."""

from __future__ import annotations

import argparse
import math
from typing import get_args

from floatscope.model_shapes.shape import Parallelism
from floatscope_diagnostics.plan import setup as names
from floatscope_diagnostics.plan.planning import Wish
from floatscope_diagnostics.plan.recipes import BF16, recipe_table
from floatscope_diagnostics.plan.setup import PlanError, Setup, with_rest

DESCRIPTION = (
    "Predicts memory, step time and cost of training a model in BF16 and in each FP8 recipe a GPU has, by "
    "roofline and with error bars, says what dominates and below which sizes FP8 does not pay."
)
_EXAMPLES = """examples:
  floatscope plan --model llama-3-8b --gpu H100 --gpus 8 --micro-batch 2 --sequence 8192 --recompute selective
  floatscope plan --model ./config.json --gpu B200 --gpus 64 --tp 2 --pp 2 --zero 1 --global-batch 256
  floatscope plan --model llama-3-70b --gpu H100 --gpus 128 --price 2.5 --tokens 1T
  floatscope plan --model pretrain.sh --gpu H200 --gpus 32 --bf16-step-time 1.9 --linear-share 0.6 --json
  floatscope plan --check                     # predictions against published runs, with errors

MODEL is a Hugging Face config.json or its folder, Megatron arguments (YAML, JSON, script) or a known name.
The price is yours, per GPU and hour in any currency; none is shipped.

exit codes: 0 at least one of BF16 and the recipes can fit, 1 nothing fits in the GPU's memory, or with
--check a target is missed without a reason, 2 wrong usage or a model, GPU or set-up that cannot be planned,
3 internal error"""

_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


PROG = "floatscope plan"


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope plan``."""
    p = argparse.ArgumentParser(
        prog=PROG,
        description=DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--model", metavar="CONFIG", help="a model's configuration or a known name")
    p.add_argument(
        "--gpu", metavar="NAME", help="as NVML or people write it: H100, B200, 'H100 PCIe', MI300X"
    )
    p.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the whole job (default: 1)")
    p.add_argument("--check", action="store_true", help="compare predictions with published runs")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    _batch(p)
    _cut(p)
    _method(p)
    _money(p)
    _machine(p)
    return p


def setup_of(args: argparse.Namespace) -> Setup:
    """The set-up that the words describe. Raises PlanError."""
    cut = Parallelism(args.tp, args.pp, args.cp, args.ep, 1, args.sequence_parallel)
    cut = with_rest(args.gpus, cut)
    if args.dp is not None and args.dp != cut.data:
        raise PlanError(
            f"--dp {args.dp}: {args.gpus} GPUs with tp {cut.tensor}, pp {cut.pipeline} and cp {cut.context} "
            f"leave {cut.data}; leave --dp out, or change --gpus"
        )
    if args.micro_batch < 1:
        raise PlanError(f"--micro-batch: expected 1 or more sequences, got {args.micro_batch}")
    return Setup(
        gpus=args.gpus,
        parallelism=cut,
        micro_batch=args.micro_batch,
        sequence=args.sequence,
        accumulate=_accumulate(args, cut.data),
        sharding=f"zero{args.zero}" if args.zero is not None else "fsdp",  # type: ignore[arg-type]
        recompute=args.recompute,
        attention=args.attention,
        optimizer=args.optimizer,
        gradients=args.gradients,
        logits=args.logits,
        primary_fp8=args.primary_fp8,
        fp8_all_gather=args.fp8_all_gather,
        fp8_head=args.fp8_head,
        compiled=args.compile,
        stack=args.stack,
        virtual=args.vp,
        expert_overlap=args.expert_overlap,
        tensor_overlap=args.tp_overlap,
    )


def wish_of(args: argparse.Namespace) -> Wish:
    """Recipes, price, tokens and measurements of the user."""
    return Wish(tuple(args.recipe or ()), args.price, args.tokens, args.bf16_step_time, args.linear_share)


def _accumulate(args: argparse.Namespace, data: int) -> int:
    if args.global_batch is None:
        return int(args.accumulate)
    each = args.micro_batch * data
    if args.global_batch < 1 or args.global_batch % each:
        raise PlanError(
            f"--global-batch {args.global_batch}: expected a multiple of micro-batch x data parallelism = "
            f"{args.micro_batch} x {data} = {each}"
        )
    return int(args.global_batch // each)


def _batch(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("batch")
    g.add_argument(
        "--micro-batch", type=int, default=1, metavar="B", help="sequences of one GPU (default: 1)"
    )
    g.add_argument("--sequence", type=int, default=4096, metavar="S", help="tokens of one (default: 4096)")
    either = g.add_mutually_exclusive_group()
    either.add_argument("--global-batch", type=int, metavar="B", help="sequences of one step of the job")
    either.add_argument("--accumulate", type=int, default=1, metavar="M", help="micro-batches of one step")


def _cut(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("parallelism")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert")):
        g.add_argument(f"--{name}", type=int, default=1, metavar="N", help=f"{what} parallelism")
    g.add_argument("--dp", type=int, metavar="N", help="data parallelism (default: what is left)")
    g.add_argument("--vp", type=int, default=1, metavar="N", help="interleaved pieces of a pipeline stage")
    g.add_argument("--sequence-parallel", action="store_true", help="cuts norms and residuals by tp too")
    either = g.add_mutually_exclusive_group()
    either.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), help="BF16 weights, FP32 master, ZeRO stage"
    )
    either.add_argument("--fsdp", action="store_true", help="FP32 weights, all sharded (the default)")


def _method(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("method")
    g.add_argument("--recompute", choices=get_args(names.Recompute), default="none")
    g.add_argument("--attention", choices=get_args(names.Attention), default="flash")
    g.add_argument("--optimizer", choices=get_args(names.Optimizer), default="fp32", help="Adam's state")
    g.add_argument("--gradients", choices=get_args(names.Gradients), default="fp32")
    g.add_argument("--logits", choices=get_args(names.Logits), default="full", help="fused: compiled loss")
    g.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile")
    known = ", ".join((BF16, *(one.key for one in recipe_table().recipes)))
    g.add_argument("--recipe", action="append", metavar="NAME", help=f"repeatable; default: all of {known}")
    g.add_argument(
        "--stack",
        choices=get_args(names.Stack),
        default="torchtitan",
        help="whose published runs set the share of the roofline that steps reach (default: torchtitan)",
    )
    g.add_argument(
        "--tp-overlap",
        type=float,
        metavar="F",
        help="share of tensor parallel traffic that computation hides (default: 0; --stack megatron: 0.85)",
    )
    g.add_argument(
        "--expert-overlap",
        type=float,
        metavar="F",
        help="share of the traffic to experts that computation hides (default: 0; --stack megatron: 1)",
    )
    g.add_argument("--primary-fp8", action="store_true", help="weights exist in FP8 only (with a master)")
    g.add_argument("--fp8-all-gather", action="store_true", help="gather weights in FP8")
    g.add_argument("--fp8-head", action="store_true", help="the output layer goes FP8 too")


def _money(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("cost and measurements")
    g.add_argument("--price", type=float, metavar="X", help="of one GPU for one hour")
    g.add_argument("--tokens", type=_tokens, metavar="N", help="of the whole run, as in 300B or 1.5T")
    g.add_argument("--bf16-step-time", type=float, metavar="S", help="seconds of a measured BF16 step")
    g.add_argument("--linear-share", type=float, metavar="F", help="share of it in linears, from a profile")


def _machine(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("machine (defaults by GPU, see docs/plan.md)")
    g.add_argument("--link-gb-s", type=_positive, metavar="GB/s", help="link of a GPU inside a node")
    g.add_argument("--network-gb-s", type=_positive, metavar="GB/s", help="network per GPU between nodes")
    g.add_argument("--gpus-per-node", type=_whole, metavar="N", help="GPUs that share fast links")


def _tokens(text: str) -> float:
    number, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 1.0)
    try:
        return float(number) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected tokens as in 300B or 1.5T, got {text!r}") from None


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value
