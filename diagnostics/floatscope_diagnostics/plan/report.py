"""A plan for the terminal: the answer first, then memory, time, the layers that do not pay, assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope_diagnostics.plan.communication import expert_hidden, tensor_hidden
from floatscope_diagnostics.plan.cost import REMINDER, Interval
from floatscope_diagnostics.plan.memory import REST
from floatscope_diagnostics.plan.planning import LinearVerdict, Plan, RecipePlan
from floatscope_diagnostics.plan.rates import rates_of
from floatscope_diagnostics.plan.words import digits, gb, large, money, seconds, span, table, times, wrapped
from floatscope_diagnostics.reports.terminal import Style, plain

SHORT = {
    "bf16": "BF16",
    "fp8_delayed_scaling": "delayed",
    "fp8_current_scaling": "current",
    "fp8_block_scaling": "block",
    "mxfp8": "MXFP8",
    "nvfp4": "NVFP4",
    "ao_tensorwise": "ao tens",
    "ao_rowwise": "ao row",
}
SIGN = {"yes": "✓", "maybe": "●", "no": "✕"}


def report(plan: Plan, style: Style) -> str:
    """The whole report, ending in a newline."""
    sections = [
        _head(plan),
        _answer(plan, style),
        _overview(plan, style),
        _cost(plan, style),
        _memory(plan, style),
        _time(plan, style),
        _layers(plan, style),
        _assumptions(plan, style),
    ]
    return "\n\n".join(style.fit("\n".join(lines)) for lines in sections if lines) + "\n"


def _head(plan: Plan) -> list[str]:
    setup, cut = plan.setup, plan.setup.parallelism
    ways = [("tp", cut.tensor), ("pp", cut.pipeline), ("cp", cut.context), ("ep", cut.expert)]
    parallel = " ".join([f"dp {cut.data}", *(f"{name} {n}" for name, n in ways if n > 1)])
    batch = f"micro-batch {setup.micro_batch} x {setup.sequence:,} tokens"
    step = f"{setup.tokens_per_step:,} tokens a step"
    model = f"{plain(plan.shape.name)} ({large(plan.shape.parameters)} parameters)"
    return [
        f"{model} on {setup.gpus:,} x {plan.gpu.name}",
        *wrapped(
            f"{setup.sharding}, {parallel}, {batch}, accumulate {setup.accumulate}, {step}, "
            f"recompute {setup.recompute}"
        ),
    ]


def _answer(plan: Plan, style: Style) -> list[str]:
    lines: list[str] = []
    for text in _said(plan):
        lines += wrapped(text, indent=2)
    if lines:
        lines[0] = style.paint(lines[0], "strong")
    for warning in (*plan.warnings, *plan.shape.notes):
        lines += wrapped(plain(warning), lead="! ")
    return lines


def _said(plan: Plan) -> Iterator[str]:
    best, base = plan.best, plan.bf16
    if best is None:
        yield _nothing(plan)
    else:
        sign = SIGN[best.pays]
        word = {"yes": "pays", "maybe": "may pay"}[best.pays]
        assert best.saving_pct is not None
        bits = "4 bits" if best.four_bit else "FP8"
        word = word if not best.four_bit else {"pays": "pay", "may pay": "may pay"}[word]
        yield (
            f"{sign} {bits} {word}. Fastest: {best.label}, predicted at {times(best.speedup.value)} the "
            f"throughput of BF16 ({span(best.speedup)}), {best.saving_pct.value:.0f} % less cost per token "
            f"({span(best.saving_pct, '{:.0f}')} %)."
        )
        yield (
            "That is speed alone: the loss gap reported for 4 bits is 1 to 1.5 % relative; decide on quality "
            "first (docs/fp8)."
            if best.four_bit
            else "That is speed alone: docs/fp8 says which recipe suits, floatscope compare what it costs in "
            "loss."
        )
    shown = best or base
    largest = shown.largest_micro_batch
    yield (
        f"Memory, {shown.label}: {gb(shown.memory.lower)} to {gb(shown.memory.upper)} GB of "
        f"{plan.gpu.memory_gb:g} GB a GPU: {_fit(shown)}. "
        + (
            f"Largest micro-batch that surely fits: {largest}."
            if largest
            else "Not even a micro-batch of 1 surely fits: shard more, recompute, or cut the model."
        )
    )
    share = base.time.parts[base.time.dominates] / base.time.seconds
    yield f"A BF16 step spends {share:.0%} in: {base.time.dominates}."


def _nothing(plan: Plan) -> str:
    if plan.wish.recipes and len(plan.plans) == 1:
        return "BF16 alone, as asked."
    if len(plan.plans) == 1:
        return "✕ No FP8 recipe to compare: see below why."
    if all(one.memory.fits == "does not fit" for one in plan.plans[1:]):
        return "✕ No recipe fits in the GPU's memory."
    return "✕ FP8 does not pay here: no recipe is predicted to be faster than BF16."


def _fit(one: RecipePlan) -> str:
    return {
        "fits": "fits",
        "may not fit": "the lower end fits, the upper one does not",
        "does not fit": "does not fit",
    }[one.memory.fits]


def _overview(plan: Plan, style: Style) -> list[str]:
    head = ["", "memory, GB", "fits", "max batch", "step", "tok/s/GPU", "MFU", "speed-up", ""]
    rows = [head]
    for one in plan.plans:
        memory = f"{gb(one.memory.lower)}-{gb(one.memory.upper)}"
        fits = {"fits": "yes", "may not fit": "maybe", "does not fit": "no"}[one.memory.fits]
        rate = one.time.tokens_per_step / one.step_s.value / one.time.gpus
        gain = ["", ""]
        if one is not plan.bf16:
            sign = SIGN["no" if fits == "no" else one.pays]
            gain = [times(one.speedup.value), f"{one.speedup.low:.2f}-{one.speedup.high:.2f} {sign}"]
        row = [one.label, memory, fits, str(one.largest_micro_batch), seconds(one.step_s.value)]
        rows.append([*row, f"{rate:,.0f}", f"{one.mfu:.0%}", *gain])
    lines = [style.paint("WHAT TO EXPECT", "strong"), *table(rows), _bands(plan)]
    lines += [line for text in _doubts(plan) for line in wrapped(text, lead="  ", indent=4)]
    for why in dict.fromkeys(why for _, why in plan.refused):
        labels = ", ".join(label for label, other in plan.refused if other == why)
        lines += wrapped(f"Not planned: {labels}: {why}.", lead="  ", indent=4)
    return lines


def _doubts(plan: Plan) -> Iterator[str]:
    """What makes the intervals weaker than they look."""
    if not plan.rates.family_has_runs:
        yield f"{plan.gpu.name}: no published run of this family: the intervals are a guess."
    if plan.rates.small_experts:
        yield (
            "Small experts: published steps take up to 2.8 times the predicted one, because sorting of "
            "tokens, launches and uneven groups are not modelled. More tokens per expert (--micro-batch, "
            "--ep) make the prediction better and the step faster."
        )


def _bands(plan: Plan) -> str:
    rates = plan.rates
    said = f"speed-up +-{rates.speedup_band:.0%}; max batch: the largest micro-batch that surely fits"
    if plan.wish.bf16_step_s is None and rates.step_over != rates.step_band:
        return f"  step -{rates.step_band:.0%} to +{rates.step_over:.0%}; {said}"
    if plan.wish.bf16_step_s is None:
        return f"  step, tokens/s, MFU +-{rates.step_band:.0%}; {said}"
    return f"  BF16 step as measured; {said}"


def _cost(plan: Plan, style: Style) -> list[str]:
    wish = plan.wish
    if wish.price is None and wish.tokens is None:
        return []
    rows = [["", *_cost_head(plan)]]
    for one in plan.plans:
        cells: list[str] = []
        if one.cost_per_million:
            cells.append(money(one.cost_per_million.value))
            cells += [] if one.run_cost else [_ends(one.cost_per_million)]
        if one.run_hours:
            cells.append(money(one.run_hours.value))
            cells += [] if one.run_cost else [_ends(one.run_hours)]
        if one.run_cost:
            cells += [money(one.run_cost.value), _ends(one.run_cost)]
        saving = one.saving_pct
        cells.append("" if saving is None else f"{saving.value:.0f} % ({span(saving, '{:.0f}')})")
        rows.append([one.label, *cells])
    price = f", at {wish.price:g} per GPU and hour" if wish.price is not None else ""
    lines = [style.paint(f"COST{price}", "strong"), *table(rows)]
    return lines + wrapped(f"At one price for all, {REMINDER}.", lead="  ")


def _cost_head(plan: Plan) -> list[str]:
    priced, run = plan.wish.price is not None, plan.wish.tokens is not None
    ends = [] if priced and run else ["from-to"]
    head = ["per M tokens", *ends] if priced else []
    head += ["run, hours", *ends] if run else []
    head += ["run, cost", "from-to"] if priced and run else []
    return [*head, "saves"]


def _ends(value: Interval) -> str:
    return f"{money(value.low)}-{money(value.high)}"


def _memory(plan: Plan, style: Style) -> list[str]:
    shown = plan.plans
    rows = [["", *(SHORT[one.key] for one in shown)]]
    for part in plan.bf16.memory.parts:
        cells = [gb(one.memory.part(part.name)) for one in shown]
        if any(one.memory.part(part.name) for one in shown):
            rows.append([part.name, *cells])
    rows.append(["sum", *(gb(one.memory.estimate) for one in shown)])
    if plan.bf16.memory.lower < plan.bf16.memory.estimate:
        rows.append(["lower end", *(gb(one.memory.lower) for one in shown)])
    rows.append(["upper end", *(gb(one.memory.upper) for one in shown)])
    lines = [style.paint(f"MEMORY OF A GPU, GB (has {plan.gpu.memory_gb:g})", "strong"), *table(rows)]
    lines += wrapped(f"Between sum and upper end (x 1.25): {REST}.", lead="  ")
    if plan.bf16.memory.lower < plan.bf16.memory.estimate:
        lines += wrapped(
            "Lower end: with one micro-batch gradients appear as the backward pass frees activations.",
            lead="  ",
        )
    lines += wrapped(
        "FP8 compute does not save memory by default: copies of the weights are added, and published peaks "
        "differ from BF16's by -1 to +0.7 % (torchao, torchtitan).",
        lead="  ",
    )
    if min(one.memory.estimate for one in plan.plans) < plan.bf16.memory.estimate:
        lines += wrapped(
            "Less here: Transformer Engine's recipes keep inputs of linears in fewer bits, in FP8 13 % of a "
            "Llama layer's activations. Derived; no published peak confirms it.",
            lead="  ",
        )
    return lines


def _time(plan: Plan, style: Style) -> list[str]:
    rows = [["", *(SHORT[one.key] for one in plan.plans)]]
    unit, each = ("s", 1.0) if plan.bf16.time.seconds >= 1 else ("ms", 1e-3)
    for name in plan.bf16.time.parts:
        values = [one.time.parts[name] for one in plan.plans]
        if max(values) > 0.0005 * plan.bf16.time.seconds:
            rows.append([name, *(digits(value / each) for value in values)])
    rows.append(["step", *(digits(one.time.seconds / each) for one in plan.plans)])
    lines = [style.paint(f"TIME OF A STEP, {unit}", "strong"), *table(rows)]
    said = "as given" if plan.wish.linear_share is not None else "by the model"
    lines += wrapped(
        f"The linears that would go FP8 take {plan.bf16.linear_share:.0%} of a BF16 step ({said}): the "
        "speed-up is 1 / (1 - f + f / s) of that share f and their own speed-up s.",
        lead="  ",
    )
    if plan.wish.bf16_step_s is not None:
        lines += wrapped(
            f"By the model; the overview starts from your measured BF16 step of "
            f"{seconds(plan.wish.bf16_step_s)}.",
            lead="  ",
        )
    elif plan.wish.linear_share is None:
        lines += wrapped(
            "Better: measure one BF16 step and give --bf16-step-time and, from a profile, --linear-share.",
            lead="  ",
        )
    return lines


def _layers(plan: Plan, style: Style) -> list[str]:
    low = [one for one in plan.plans if one.linears]
    if not low:
        return []
    rows = [["", "K x N", "T", "time", *(SHORT[one.key] for one in low)]]
    for group in _alike(low[0]):
        gemm = low[0].linears[group[0]].time.gemm
        share = sum(low[0].linears[i].share_pct for i in group)
        cells = [_cell(one.linears[group[0]]) for one in low]
        name = _names(low[0], group)
        rows.append([name, f"{gemm.k} x {gemm.n}", f"{gemm.tokens}", f"{share:.0f} %", *cells])
    title = "WHERE FP8 PAYS: speed of each linear against BF16 = 1, by its K x N and tokens per GEMM (T)"
    lines = [style.paint(title, "strong"), *table(rows)]
    if any(v.time.misfit for one in low for v in one.linears):
        lines += wrapped(
            "shape: K, N or T is not divisible by what the recipe asks, so it stays in BF16; "
            "floatscope preflight names the padding.",
            lead="  ",
        )
    return lines + list(_break_even(plan, low))


def _cell(found: LinearVerdict) -> str:
    if found.time.converted:
        return f"{found.time.speedup:.2f}"
    return "shape" if found.time.misfit else "BF16"


def _alike(one: RecipePlan) -> list[list[int]]:
    """Positions of linears of the same kind and size, which behave alike."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, found in enumerate(one.linears):
        gemm = found.time.gemm
        groups.setdefault((gemm.kind, gemm.k, gemm.n, gemm.tokens), []).append(i)
    return list(groups.values())


def _names(one: RecipePlan, group: list[int]) -> str:
    """``gate_proj, up_proj``; with the part in front where two linears of other sizes share a name."""
    all_names = [_short(found.time.gemm.name) for found in one.linears]
    names = [all_names[i] for i in group]
    if len(names) == 1 and all_names.count(names[0]) > 1:
        return plain(".".join(one.linears[group[0]].time.gemm.name.split(".")[-2:]))[:26]
    return names[0] if len(names) == 1 else f"{names[0]}, {names[-1].rpartition('.')[2]}"


def _break_even(plan: Plan, low: list[RecipePlan]) -> Iterator[str]:
    tokens = int(plan.setup.tokens)
    sizes = ", ".join(f"{SHORT[one.key]} {one.break_even or 'never'}" for one in low)
    yield from wrapped(f"At T = {tokens:,} a linear with K = N pays from: {sizes}.", lead="  ")
    for one in low:
        slow = [
            group
            for group in _alike(one)
            if one.linears[group[0]].time.converted and not one.linears[group[0]].time.pays
        ]
        if slow:
            said = ", ".join(f"{_names(one, g)} ({_from(one.linears[g[0]].from_tokens)})" for g in slow)
            yield from wrapped(f"Leave in BF16 with {one.label}: {said}.", lead="  ", indent=4)


def _from(tokens: int | None) -> str:
    return f"pays from T = {tokens:,}" if tokens else "at no T"


def _assumptions(plan: Plan, style: Style) -> list[str]:
    rates, gpu = plan.rates, plan.gpu
    lines = [style.paint("ASSUMPTIONS", "strong")]
    unsure = "" if gpu.verified else " (NOT VERIFIED)"
    fp8 = f", FP8 {gpu.fp8_tflops:g}" if gpu.fp8_tflops else ""
    texts = [
        f"{gpu.name}{unsure}: BF16 {gpu.bf16_tflops:g}{fp8} TFLOP/s dense, {gpu.bandwidth_tb_s:g} TB/s; "
        f"GEMMs reach {rates.gemm:.0%}, memory {rates.bandwidth:.0%}, attention {rates.attention:.0%} of it.",
        f"Whole steps reach {rates.step:.0%} of the roofline ({rates.stack}): "
        + (f"set by the published run {rates.calibrated_on}." if rates.verified else _unverified(plan)),
        *_stack(plan),
        "A linear's gain is multiplied by 0.8: published layer benchmarks fall that short of the roofline.",
    ]
    if plan.setup.gpus > 1:
        texts.append(
            f"Links {rates.link_gb_s:g} GB/s in a node of {rates.gpus_per_node}, {rates.network_gb_s:g} GB/s "
            f"per GPU between nodes (--link-gb-s, --network-gb-s); {rates.link_share:.0%} reached (assumed)."
        )
    if plan.setup.parallelism.pipeline > 1:
        texts.append("Pipeline: 1F1B; the slowest stage, the last one with the head, sets the pace.")
    for one in plan.plans:
        texts += [f"{one.label}: {note}." for note in one.notes]
    texts.append("How far off this is on published runs: floatscope plan --check")
    for text in texts:
        lines += wrapped(text, lead="  ", indent=4)
    return lines


def _stack(plan: Plan) -> Iterator[str]:
    """What another stack would change, and where a stack has no published runs of its own."""
    asked, used = plan.setup.stack, plan.rates.stack
    if asked != used:
        yield f"No published run with {asked} on such a GPU is known: the share is that of {used}."
    other = None if asked != "torchtitan" else rates_of(plan.gpu, stack="megatron")
    if other is not None and other.stack == "megatron":
        yield (
            f"Megatron with Transformer Engine: {other.step:.0%}, and faster attention (--stack megatron)."
        )
    cut = plan.setup.parallelism
    if cut.tensor > 1:
        hidden = tensor_hidden(plan.setup, plan.rates)
        yield f"Computation hides {hidden:.0%} of the traffic of tensor parallelism (--tp-overlap)."
    if cut.expert > 1:
        hidden = expert_hidden(plan.setup, plan.rates)
        yield f"Computation hides {hidden:.0%} of the traffic to experts (--expert-overlap)."


def _unverified(plan: Plan) -> str:
    return f"NOT VERIFIED ({plan.rates.source.partition(';')[0]})."


def _short(name: str) -> str:
    """The last part of a layer's name, with the experts it belongs to."""
    parts = [part for part in name.split(".") if part != "*"]
    owner = [part for part in parts[-2:-1] if "expert" in part]
    return plain(".".join([*(part.replace("_experts", "") for part in owner), parts[-1]]))[:26]
