"""The options of `floatscope train`, read into settings; a checkpoint's settings stand where an option is not
given.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope_trainer.config import BACKENDS, PRECISIONS, RECIPE_NAMES, TrainConfig
from floatscope_trainer.emulated.casts import CAST_MODES
from floatscope_trainer.emulated.recipes import AMAX_ALGOS

EXAMPLES = """examples:
  floatscope train --precision bf16 --run bf16
  floatscope train --recipe delayed --amax-history-len 32 --baseline bf16
  floatscope train --recipe current --data book.txt notes.txt --steps 1000
  floatscope train --inject stale_scale@150:blocks.1.mlp.fc1/input*16
  floatscope train --inject list
  floatscope train --checkpoint-every 100 --checkpoint-dir ckpt
  floatscope train --fork ckpt/step-000100.safetensors --run poisoned --inject
  'history_poison@120:blocks.*.fc1/input' floatscope train --resume ckpt

With FLOATSCOPE_URL set the run is sent to that server, else its log is written to a file (--log).
"""


MAX_PARAMETERS = (
    2_000_000_000  # far more than an emulation can train; keeps a typing error from filling memory
)
MAX_TOKENS = 2**20  # of a micro-batch


class UsageError(ValueError):
    """Options that do not go together; the message says what to change."""


@dataclass(frozen=True)
class RunOptions:
    """What is asked for beside the training itself.

    log: where to write the floatscope log, None for the agent's choice.  max_nonfinite: end the run after so
    many steps in a row with a loss that is not finite, 0 for never.  checkpoint_every: steps, 0 for never.
    """

    run: str
    run_id: str | None
    baseline: str | None
    project: str
    log: Path | None
    inject: tuple[str, ...]
    resume: Path | None
    fork: Path | None
    checkpoint_every: int
    checkpoint_dir: Path
    max_nonfinite: int
    threads: int
    quiet: bool


_MODEL = ("layers", "width", "heads", "hidden", "context")
_PRECISION = (
    "precision",
    "recipe",
    "backend",
    "amax_history_len",
    "amax_compute_algo",
    "margin",
    "cast",
    "precision_map",
)
_OPTIM = ("lr", "min_lr", "warmup", "decay_steps", "weight_decay", "clip")
_TRAIN = ("steps", "batch", "passes", "seed", "data", "eval_every")


def make_parser() -> argparse.ArgumentParser:
    """The parser. Options that set the training have no default here: an absent one leaves the checkpoint's
    or the built-in value.
    """
    parser = argparse.ArgumentParser(
        prog="floatscope train",
        description="Train a small GPT on text, in any precision, watched by floatscope; faults on demand.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    absent: dict[str, Any] = {"default": argparse.SUPPRESS}
    default = TrainConfig()

    run = parser.add_argument_group("run")
    run.add_argument("--run", metavar="NAME", help="display name (the precision)")
    run.add_argument("--run-id", metavar="ID", help="identity of the run; the same id continues it")
    run.add_argument("--baseline", metavar="ID", help="run id to compare with")
    run.add_argument("--project", default="default", help="project the run belongs to (%(default)s)")
    run.add_argument("--log", type=Path, metavar="FILE", help="write the floatscope log (JSONL) here")
    run.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="FAULT@STEP[:TENSOR][*STRENGTH]",
        help="inject a fault, repeatable; 'list' prints them all",
    )
    run.add_argument("--threads", type=_at_least(1), default=1, help="CPU threads (%(default)s)")
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.add_argument(
        "--max-nonfinite",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="end the run after N steps in a row whose loss is not finite (0: never)",
    )

    train = parser.add_argument_group("training")
    train.add_argument(
        "--steps", type=_at_least(1), help=f"train up to this step ({default.steps})", **absent
    )
    train.add_argument(
        "--seed", type=_at_least(0), help=f"initialisation and data order ({default.seed})", **absent
    )
    train.add_argument(
        "--data", nargs="+", metavar="PATH", help="text files (Python's own help topics)", **absent
    )
    train.add_argument(
        "--batch", type=_at_least(1), help=f"sequences a micro-batch ({default.batch})", **absent
    )
    train.add_argument(
        "--passes", type=_at_least(1), help=f"micro-batches a step ({default.passes})", **absent
    )
    train.add_argument(
        "--eval-every", type=_at_least(0), metavar="N", help="steps between evaluations (0: none)", **absent
    )
    for name, of, text in (
        ("lr", default.optim.lr, "peak learning rate"),
        ("min-lr", default.optim.min_lr, "final learning rate as a fraction of the peak"),
        ("weight-decay", default.optim.weight_decay, "weight decay of matrices"),
        ("clip", default.optim.clip, "largest gradient norm"),
    ):
        train.add_argument(f"--{name}", type=_positive, help=f"{text} ({of:g})", **absent)
    train.add_argument(
        "--warmup",
        type=_at_least(0),
        metavar="N",
        help=f"steps of warm-up ({default.optim.warmup})",
        **absent,
    )
    train.add_argument(
        "--decay-steps",
        type=_at_least(0),
        metavar="N",
        help="end of the learning-rate decay (--steps)",
        **absent,
    )

    shape = parser.add_argument_group("model")
    for name in _MODEL:
        shape.add_argument(f"--{name}", type=_at_least(1), help=f"({getattr(default.model, name)})", **absent)

    fp = parser.add_argument_group("precision")
    fp.add_argument("--precision", choices=PRECISIONS, help=f"({default.precision.precision})", **absent)
    fp.add_argument(
        "--recipe", choices=RECIPE_NAMES, help=f"FP8 scaling recipe ({default.precision.recipe})", **absent
    )
    fp.add_argument("--backend", choices=BACKENDS, help=f"({default.precision.backend})", **absent)
    fp.add_argument(
        "--amax-history-len",
        type=_at_least(1),
        metavar="N",
        help=f"passes in the amax window ({default.precision.amax_history_len})",
        **absent,
    )
    fp.add_argument(
        "--amax-compute-algo", choices=AMAX_ALGOS, help=f"({default.precision.amax_compute_algo})", **absent
    )
    fp.add_argument("--margin", type=_at_least(0), help="bits of headroom (0)", **absent)
    fp.add_argument(
        "--cast", choices=CAST_MODES, help=f"rule of FP8 casts ({default.precision.cast})", **absent
    )
    fp.add_argument(
        "--precision-map", metavar="MAP", help="layer-wise, as in embedding=bf16,first=1,last=1", **absent
    )

    keep = parser.add_argument_group("checkpoints")
    keep.add_argument(
        "--checkpoint-every",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="steps between checkpoints (0: none)",
    )
    keep.add_argument(
        "--checkpoint-dir",
        type=Path,
        default=Path("floatscope-checkpoints"),
        metavar="DIR",
        help="(%(default)s)",
    )
    start = keep.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        type=Path,
        metavar="PATH",
        help="continue the run of this checkpoint (a file, or a directory: the newest)",
    )
    start.add_argument("--fork", type=Path, metavar="PATH", help="start another run from this checkpoint")
    return parser


def run_options(args: argparse.Namespace, config: TrainConfig) -> RunOptions:
    """What is asked for beside the training."""
    precision = config.precision
    name = f"fp8-{precision.recipe}" if precision.precision == "fp8" else precision.precision
    return RunOptions(
        run=args.run or name,
        run_id=args.run_id,
        baseline=args.baseline,
        project=args.project,
        log=args.log,
        inject=tuple(args.inject),
        resume=args.resume,
        fork=args.fork,
        checkpoint_every=args.checkpoint_every,
        checkpoint_dir=args.checkpoint_dir,
        max_nonfinite=args.max_nonfinite,
        threads=args.threads,
        quiet=args.quiet,
    )


def train_config(args: argparse.Namespace, *, base: TrainConfig) -> TrainConfig:
    """`base` with the options that were given. Raises UsageError if they do not go together."""
    given = vars(args)

    def pick(names: Sequence[str]) -> dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    train = pick(_TRAIN)
    if "data" in train:
        train["data"] = tuple(train["data"])
    config = dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, **pick(_MODEL)),
        precision=dataclasses.replace(base.precision, **pick(_PRECISION)),
        optim=dataclasses.replace(base.optim, **pick(_OPTIM)),
        **train,
    )
    if config.optim.decay_steps == 0:  # fixed here, so that a fork with other --steps keeps the schedule
        config = dataclasses.replace(
            config, optim=dataclasses.replace(config.optim, decay_steps=config.steps)
        )
    _check(config)
    return config


def _check(config: TrainConfig) -> None:
    """Also what came from a checkpoint's file: nothing is allocated before."""
    model = config.model
    if model.parameters() > MAX_PARAMETERS:
        raise UsageError(
            f"--layers {model.layers}, --width {model.width} and --hidden {model.hidden} make "
            f"{model.parameters():,} parameters; at most {MAX_PARAMETERS:,} are trained here"
        )
    if config.batch * model.context > MAX_TOKENS:
        raise UsageError(
            f"--batch {config.batch} times --context {model.context} is more than {MAX_TOKENS:,} tokens"
        )
    if model.width % model.heads:
        raise UsageError(f"--width {model.width} is not a multiple of --heads {model.heads}")
    if model.width // model.heads % 2:
        raise UsageError(
            f"--width {model.width} over --heads {model.heads} gives an odd head width; "
            "rotary positions need an even one"
        )


def _at_least(low: int) -> Any:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"expected at least {low}, got {value}")
        return value

    return read


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number from 0, got {text!r}")
    return value
