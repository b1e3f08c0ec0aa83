"""One scenario with one seed: train, ask for advice, apply it, train again, and compare the gaps."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from benchmarks.advisor.scenarios import Scenario
from benchmarks.advisor.training_runs import gap_nats, train
from floatscope_diagnostics.advisor.advice import Advice
from floatscope_diagnostics.advisor.advise import advise
from floatscope_diagnostics.advisor.sources import read_gap, read_run
from floatscope_diagnostics.compare.sources import Reading

MOST_ROUNDS = 3


@dataclass(frozen=True)
class Outcome:
    """before, after: gaps to BF16 in nats.  after: None where the advice changes nothing.  missed: bad layers
    that stay in FP8.  spare: layers moved that are not bad.  rounds: how often advice was asked for and
    applied; a second time only where the first says that layers were hidden.
    """

    scenario: Scenario
    seed: int
    advice: Advice
    before: float
    after: float | None
    missed: tuple[str, ...]
    spare: tuple[str, ...]
    applied: str
    rounds: int

    @property
    def closed_pct(self) -> float | None:
        """Share of the distance to BF16, either way, that is gone. A broken run may also end below BF16."""
        if self.after is None or self.before == 0:
            return None
        return 100.0 * (1.0 - abs(self.after) / abs(self.before))


def check(scenario: Scenario, *, seed: int, folder: Path) -> Outcome:
    """Trains what is not in the folder yet. The advice is made from the log alone, with the BF16 baseline."""
    base = "bf16" if scenario.prepare is None else f"{scenario.name}-bf16"
    baseline = train(
        scenario, precision="bf16", extra=(), seed=seed, log=folder / f"{base}-{seed}.jsonl", watched=False
    )
    run = train(
        scenario,
        precision="fp8",
        extra=(),
        seed=seed,
        log=folder / f"{scenario.name}-{seed}.jsonl",
        watched=True,
    )
    advice = advice_for(run, baseline)
    applied: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    after, asked, latest = None, 0, advice
    while asked < MOST_ROUNDS and (words := options_of(latest)) and words != applied:
        asked, applied = asked + 1, words
        moved = layers_of(words)
        log = folder / f"{scenario.name}-{seed}-advised-{asked}.jsonl"
        if log.exists() and not has_settings(log, words):
            log.unlink()  # of another advice
        again = train(
            without_faults_of(scenario, moved, fresh_scales="--recipe" in words),
            precision="fp8",
            extra=words,
            seed=seed,
            log=log,
            watched=is_masked(latest),
        )
        after = gap_nats(again, baseline)
        if not is_masked(latest):
            break
        latest = advice_for(again, baseline)
    return Outcome(
        scenario=scenario,
        seed=seed,
        advice=advice,
        before=gap_nats(run, baseline),
        after=after,
        missed=() if "--recipe" in applied else tuple(x for x in scenario.bad if x not in moved),
        spare=tuple(layer for layer in moved if layer not in scenario.bad),
        applied=" ".join(applied),
        rounds=asked,
    )


def options_of(advice: Advice) -> tuple[str, ...]:
    """Options of ``floatscope train``; none where they would only say "train in BF16"."""
    words = tuple(shlex.split(advice.settings.floatscope_train, comments=True))
    return () if advice.decision == "not_layers" and layers_of(words) else words


def layers_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """The layers that a precision map names."""
    if "--precision-map" not in words:
        return ()
    entries = words[words.index("--precision-map") + 1].split(",")
    return tuple(entry.partition("=")[0] for entry in entries)


def is_masked(advice: Advice) -> bool:
    """Whether layers could not be judged because others leave them only zeros."""
    return any(note.code == "masked" for note in advice.not_decided)


def has_settings(log: Path, words: tuple[str, ...]) -> bool:
    """Whether the run of a log was trained with these options."""
    with log.open() as lines:
        precision = json.loads(next(lines))["run"]["config"]["precision"]
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    layers = set(wanted.get("--precision-map", "").split(","))
    return (
        layers == set(str(precision["precision_map"]).split(","))
        and wanted.get("--recipe", precision["recipe"]) == precision["recipe"]
    )


def advice_for(run: Path, baseline: Path) -> Advice:
    """What ``floatscope advise RUN --baseline BASELINE`` says."""
    reading = Reading()
    read = read_run(str(run), reading)
    gap = read_gap(read, str(baseline), reading)
    return advise(
        read.info, read.batches, name=run.stem, framework="floatscope", gap=gap, verdict=read.verdict
    )


def without_faults_of(scenario: Scenario, moved: tuple[str, ...], *, fresh_scales: bool) -> Scenario:
    """The scenario without the faults at quantisers that are gone: a BF16 layer has none, and the trainer
    refuses to inject there; a recipe without state has no scales to be stale.
    """
    words = list(scenario.options)
    kept: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--inject":
            fault = words.pop(0)
            if not fresh_scales and fault.partition(":")[2].rpartition("/")[0] not in moved:
                kept += [word, fault]
        else:
            kept.append(word)
    return Scenario(
        scenario.name,
        scenario.family,
        scenario.what,
        tuple(kept),
        scenario.bad,
        scenario.prepare,
    )
