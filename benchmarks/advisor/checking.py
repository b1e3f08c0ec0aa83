"""One scenario with one seed: train, ask for advice, apply it, train again, each with twins."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.advisor.scenarios import Scenario
from benchmarks.advisor.training_runs import final_loss, train
from floatscope_diagnostics.advisor.cli import main as advise_command
from floatscope_diagnostics.readers.run_log import UnreadableLog

MOST_ROUNDS = 3


@dataclass(frozen=True)
class Outcome:
    """advice: the document of the command.  base, before, after: final losses of the twins of the BF16 run,
    of the faulty run and of the run with the advice, nats; after is empty where the advice changes nothing.
    missed: bad layers that stay in FP8.  spare: layers moved that are not bad.  moved: to BF16.  rounds: how
    often advice was asked for and applied; a second time only where the first says that layers were hidden.
    """

    scenario: Scenario
    seed: int
    advice: dict[str, Any]
    base: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    missed: tuple[str, ...]
    spare: tuple[str, ...]
    moved: tuple[str, ...]
    applied: str
    rounds: int


def check(scenario: Scenario, *, seed: int, folder: Path, twins: int = 1) -> Outcome:
    """Trains what is not in the folder yet. The advice is made from the log alone, with the BF16 baseline.
    twins: of each run, to learn what is chance; of a healthy FP8 run there is always one.
    """
    base = [base_run(scenario, seed=seed, folder=folder, twin_number=k) for k in range(twins)]
    runs = [
        train(
            scenario,
            precision="fp8",
            extra=(),
            seed=seed,
            log=folder / f"{scenario.name}-{seed}-{k}.jsonl",
            watched=k == 0,
            twin_number=k,
        )
        for k in range(1 if scenario.family == "healthy" else twins)
    ]
    advice = asked(runs[0], base[0])
    applied: tuple[str, ...] = ()
    after: list[Path] = []
    rounds, latest = 0, advice
    while rounds < MOST_ROUNDS and (words := options_of(latest)) and words != applied:
        rounds, applied = rounds + 1, words
        hidden = is_masked(latest)
        after = [
            run_with(
                scenario,
                words,
                "advised",
                seed=seed,
                folder=folder,
                twin_number=k,
                watched=hidden and k == 0,
            )
            for k in range(twins)
        ]
        if not hidden:
            break
        latest = asked(after[0], base[0])
    moved = layers_of(applied)
    of_all = "--recipe" in applied
    return Outcome(
        scenario=scenario,
        seed=seed,
        advice=advice,
        base=tuple(map(final_loss, base)),
        before=tuple(map(final_loss, runs)),
        after=tuple(map(final_loss, after)),
        missed=() if of_all else tuple(layer for layer in scenario.bad if layer not in moved),
        spare=tuple(layer for layer in moved if layer not in scenario.bad),
        moved=moved,
        applied=" ".join(applied),
        rounds=rounds,
    )


def base_run(scenario: Scenario, *, seed: int, folder: Path, twin_number: int) -> Path:
    """The BF16 run of a scenario; scenarios with the same model share it."""
    log = folder / f"bf16-{scenario.base}-{seed}-{twin_number}.jsonl"
    return train(
        scenario, precision="bf16", extra=(), seed=seed, log=log, watched=False, twin_number=twin_number
    )


def run_with(
    scenario: Scenario,
    words: tuple[str, ...],
    name: str,
    *,
    seed: int,
    folder: Path,
    twin_number: int = 0,
    watched: bool = False,
) -> Path:
    """The faulty run with further options of ``floatscope train``."""
    log = folder / f"{scenario.name}-{seed}-{twin_number}-{name}.jsonl"
    if log.exists() and not _has_settings(log, words):
        log.unlink()  # of another advice
    return train(
        without_faults_of(scenario, layers_of(words), fresh_scales="--recipe" in words),
        precision="fp8",
        extra=words,
        seed=seed,
        log=log,
        watched=watched,
        twin_number=twin_number,
    )


def asked(run: Path, baseline: Path) -> dict[str, Any]:
    """What ``floatscope advise RUN --baseline BASELINE --json`` prints. Raises UnreadableLog as it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        advise_command([str(run), "--baseline", str(baseline), "--json"])
    if not out.getvalue():
        raise UnreadableLog(err.getvalue())
    made: dict[str, Any] = json.loads(out.getvalue())
    return made


def options_of(advice: dict[str, Any]) -> tuple[str, ...]:
    """Options of ``floatscope train``; none where they would only say "train in BF16"."""
    words = tuple(shlex.split(advice["settings"]["floatscope_train"], comments=True))
    return () if advice["decision"] == "not_layers" and layers_of(words) else words


def precision_map(layers: Sequence[str]) -> tuple[str, ...]:
    """The option that keeps these layers in BF16; none for none."""
    return ("--precision-map", ",".join(f"{layer}=bf16" for layer in layers)) if layers else ()


def layers_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """The layers that a precision map names."""
    if "--precision-map" not in words:
        return ()
    entries = words[words.index("--precision-map") + 1].split(",")
    return tuple(entry.partition("=")[0] for entry in entries)


def is_masked(advice: dict[str, Any]) -> bool:
    """Whether layers could not be judged because others leave them only zeros."""
    return any(note["code"] == "masked" for note in advice["not_decided"])


def _has_settings(log: Path, words: tuple[str, ...]) -> bool:
    """Whether the run of a log was trained with these options."""
    with log.open() as lines:
        precision = json.loads(next(lines))["run"]["config"]["precision"]
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    layers = set(wanted.get("--precision-map", "").split(","))
    return (
        layers == set(str(precision["precision_map"]).split(","))
        and wanted.get("--recipe", precision["recipe"]) == precision["recipe"]
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
    return replace(scenario, options=tuple(kept))
