"""The whole plan: every recipe the GPU has, with memory, step time, cost and where it does not pay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope.hardware.gpus import GpuModel
from floatscope.model_shapes.shape import ModelShape
from floatscope.preflight.recipe_names import ALIASES
from floatscope_diagnostics.plan.cost import Interval, around, check_price, per_million_tokens, saving_pct
from floatscope_diagnostics.plan.gemms import (
    LinearTime,
    break_even_square,
    break_even_tokens,
    smallest_expert,
)
from floatscope_diagnostics.plan.memory import Memory, largest_micro_batch, memory
from floatscope_diagnostics.plan.rates import Rates
from floatscope_diagnostics.plan.recipes import BF16, Recipe, recipe_table
from floatscope_diagnostics.plan.setup import PlanError, Setup, check
from floatscope_diagnostics.plan.step_time import (
    StepTime,
    fewest_flops_per_token,
    model_flops_per_token,
    step_time,
)

MOST_TOKENS, MOST_STEP_S, MUCH_TOO_LITTLE = 1e18, 1e7, 1e-9


@dataclass(frozen=True)
class Wish:
    """What the user adds to the set-up.

    recipes: keys, empty for all the GPU has.  price: of one GPU and hour.  tokens: of the whole run.
    bf16_step_s: a measured BF16 step.  linear_share: share of a measured BF16 step spent in the linears that
    would go FP8, 0 to 1.
    """

    recipes: tuple[str, ...] = ()
    price: float | None = None
    tokens: float | None = None
    bf16_step_s: float | None = None
    linear_share: float | None = None


@dataclass(frozen=True)
class LinearVerdict:
    """Whether a recipe pays on one kind of linear. from_tokens: fewest tokens per GEMM at which it would,
    None if never.  share_pct: of the BF16 time of all linears.
    """

    time: LinearTime
    share_pct: float
    from_tokens: int | None


@dataclass(frozen=True)
class RecipePlan:
    """What is predicted of one recipe; BF16 has no speed-up but 1 and no linears.

    step_s: seconds of a step.  speedup: throughput against BF16.  linear_speedup: of the converted linears
    together.  linear_share: share of the BF16 step in the linears that would go FP8.  run_hours, run_cost: of
    the whole run, None without its tokens or a price.
    break_even: smallest K = N that pays at this T, None if none does.
    """

    key: str
    label: str
    memory: Memory
    largest_micro_batch: int
    time: StepTime
    step_s: Interval
    speedup: Interval
    linear_speedup: float
    mfu: float
    linear_share: float
    notes: tuple[str, ...] = ()
    cost_per_million: Interval | None = None
    saving_pct: Interval | None = None
    run_hours: Interval | None = None
    run_cost: Interval | None = None
    linears: tuple[LinearVerdict, ...] = ()
    break_even: int | None = None
    four_bit: bool = False

    @property
    def pays(self) -> str:
        """ "yes" if even the lower end is faster than BF16, "no" if the value is not, "maybe" between."""
        if self.speedup.low > 1:
            return "yes"
        return "maybe" if self.speedup.value > 1 else "no"


@dataclass(frozen=True)
class Plan:
    """The answer. plans: BF16 first.  refused: recipe label and why the GPU cannot run it."""

    shape: ModelShape
    gpu: GpuModel
    setup: Setup
    rates: Rates
    wish: Wish
    plans: tuple[RecipePlan, ...]
    refused: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    @property
    def bf16(self) -> RecipePlan:
        return self.plans[0]

    @property
    def best(self) -> RecipePlan | None:
        """The fastest recipe that can fit and is expected to be faster than BF16; 8 bits go before 4, whose
        quality is another question.
        """
        able = [one for one in self.plans[1:] if one.memory.fits != "does not fit" and one.speedup.value > 1]
        able = [one for one in able if not one.four_bit] or able
        return max(able, key=lambda one: one.speedup.value, default=None)


def make_plan(shape: ModelShape, gpu: GpuModel, setup: Setup, rates: Rates, wish: Wish) -> Plan:
    """The plan for BF16 and the wished recipes.

    Raises PlanError for a set-up or wish that cannot be, and ModelConfigError for a cut the model refuses.
    """
    warnings = check(shape, setup)
    if shape.experts:
        rates = rates.of_mixture(smallest_expert(shape, setup))
    _check_wish(wish)
    able, refused = _chosen(gpu, wish.recipes)
    base = step_time(shape, gpu, setup, rates, None)
    if wish.bf16_step_s is not None:
        _check_measured(shape, gpu, setup, wish.bf16_step_s, base.seconds)
    plans = [_one(shape, gpu, setup, rates, wish, recipe, base) for recipe in (None, *able)]
    return Plan(shape, gpu, setup, rates, wish, tuple(plans), tuple(refused), tuple(warnings))


def _check_wish(wish: Wish) -> None:
    if wish.price is not None:
        check_price(wish.price)
    for option, value, most in (
        ("--tokens", wish.tokens, MOST_TOKENS),
        ("--bf16-step-time", wish.bf16_step_s, MOST_STEP_S),
    ):
        if value is not None and not MUCH_TOO_LITTLE <= value <= most:  # NaN is not either
            raise PlanError(f"{option}: expected a number above 0 and up to {most:g}, got {value:g}")
    if wish.linear_share is not None and not 0 < wish.linear_share <= 1:
        raise PlanError(f"--linear-share: expected a share above 0 and up to 1, got {wish.linear_share:g}")


def _check_measured(
    shape: ModelShape, gpu: GpuModel, setup: Setup, measured_s: float, predicted_s: float
) -> None:
    """Raises PlanError for a BF16 step that is faster than the GPUs' dense peak allows."""
    tokens = setup.tokens_per_step
    least_s = fewest_flops_per_token(shape, setup) * tokens / (gpu.bf16_tflops * 1e12 * setup.gpus)
    if measured_s < least_s:
        raise PlanError(
            f"--bf16-step-time {measured_s:g}: at the dense BF16 peak of {setup.gpus:,} x {gpu.name} a step"
            f" of {tokens:,} tokens takes {least_s:.3g} s (MFU would be above 100 %), and {predicted_s:.3g} s"
            " are predicted; expected the seconds of one optimizer step of the whole job with the --gpus,"
            " --micro-batch, --sequence and --accumulate given here"
        )


def _chosen(gpu: GpuModel, wanted: Sequence[str]) -> tuple[list[Recipe], list[tuple[str, str]]]:
    """The recipes to plan, and those the GPU cannot run with the reason; a wanted one must run."""
    recipes = recipe_table().recipes
    known = {one.key: one for one in recipes}
    wanted = [ALIASES.get(key.strip().lower().replace("-", "_"), key) for key in wanted]
    for key in wanted:
        if key != BF16 and key not in known:
            raise PlanError(f"--recipe: no recipe {key!r}; known: {', '.join((BF16, *known))}")
        if key != BF16 and (why := known[key].why_not(gpu)):
            raise PlanError(f"--recipe {key}: {gpu.name} cannot run it: {why}")
    if wanted:
        return [known[key] for key in dict.fromkeys(wanted) if key != BF16], []
    out = [(one, one.why_not(gpu) or _asked(one, gpu)) for one in recipes]
    return [one for one, why in out if not why], [(one.label, why) for one, why in out if why]


def _asked(recipe: Recipe, gpu: GpuModel) -> str:
    why = recipe.only_if_asked(gpu)
    return f"{why}; --recipe {recipe.key} plans it all the same" if why else ""


def _one(
    shape: ModelShape,
    gpu: GpuModel,
    setup: Setup,
    rates: Rates,
    wish: Wish,
    recipe: Recipe | None,
    base: StepTime,
) -> RecipePlan:
    time = base if recipe is None else step_time(shape, gpu, setup, rates, recipe)
    linear = base.linears_low / time.linears_low if time.linears_low else 1.0
    gain = base.seconds / time.seconds
    if wish.linear_share is not None:
        gain = 1 / (1 - wish.linear_share + wish.linear_share / linear)
    speedup = around(gain, rates.speedup_band) if recipe is not None else Interval(1.0, 1.0, 1.0)
    measured = wish.bf16_step_s
    seconds = (base.seconds if measured is None else measured) / gain
    step_s = around(seconds, rates.step_band, rates.step_over)
    if measured is not None:
        step_s = around(seconds, rates.speedup_band if recipe is not None else 0.0)
    tokens = setup.tokens_per_step
    peak = gpu.bf16_tflops * 1e12 * setup.gpus
    price = wish.price
    cost = None if price is None else per_million_tokens(step_s, tokens, setup.gpus, price)
    steps = None if wish.tokens is None else math.ceil(wish.tokens / tokens)
    hours = None if steps is None else step_s.times(steps / 3600)
    tokens_per_gemm = int(setup.tokens)
    return RecipePlan(
        key=BF16 if recipe is None else recipe.key,
        label="BF16" if recipe is None else recipe.label,
        memory=memory(shape, gpu, setup, recipe),
        largest_micro_batch=largest_micro_batch(shape, gpu, setup, recipe),
        time=time,
        step_s=step_s,
        speedup=speedup,
        linear_speedup=linear,
        mfu=model_flops_per_token(shape, setup) * tokens / seconds / peak,
        linear_share=base.linears_low / base.seconds if wish.linear_share is None else wish.linear_share,
        notes=() if recipe is None else _notes(recipe, gpu, setup),
        cost_per_million=cost,
        saving_pct=None if recipe is None else saving_pct(speedup),
        run_hours=hours,
        run_cost=None if hours is None or price is None else hours.times(setup.gpus * price),
        linears=() if recipe is None else _verdicts(time, gpu, recipe),
        four_bit=recipe is not None and recipe.casts.peak == "fp4",
        break_even=None if recipe is None else break_even_square(tokens_per_gemm, gpu, recipe),
    )


def _verdicts(time: StepTime, gpu: GpuModel, recipe: Recipe) -> tuple[LinearVerdict, ...]:
    whole = sum(one.bf16_s for one in time.linears)
    return tuple(
        LinearVerdict(
            one,
            100 * one.bf16_s / whole,
            break_even_tokens(one.gemm.k, one.gemm.n, gpu, recipe, one.how),
        )
        for one in time.linears
    )


def _notes(recipe: Recipe, gpu: GpuModel, setup: Setup) -> tuple[str, ...]:
    said = list(recipe.notes(gpu))
    if setup.fp8_all_gather and not recipe.fp8_all_gather:
        said.append("no FP8 all-gather in this recipe: weights are gathered in BF16")
    if recipe.library == "torchao" and not setup.compiled:
        said.append("without torch.compile its linears are about 4 times slower than BF16")
    return tuple(said)
