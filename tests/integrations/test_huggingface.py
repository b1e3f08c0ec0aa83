"""The callback in the real Trainer: what it records is what the Trainer did, and nothing changes by it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import floatscope
from floatscope.integrations.huggingface import FloatscopeCallback
from tests.integrations.recorded import (
    QUIET,
    diagnose_as_critical,
    first_found,
    read,
    recorded_in,
    run_example,
)

WORDS = 31
PLAIN_STEP = Trainer.training_step


def model(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0)
    )


def samples(count: int, length: int = 8) -> list[dict[str, Tensor]]:
    ids = torch.randint(0, WORDS, (count, length), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(folder: Path, *callbacks: Any, of: Any = None, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_nan_inf_filter": False,
        **options,
    }
    args = TrainingArguments(output_dir=str(folder / "out"), **settings)
    data = samples(32)
    return Trainer(of or model(), args, train_dataset=data, eval_dataset=data[:4], callbacks=list(callbacks))


def logged(ran: Any, name: str) -> list[float]:
    return [entry[name] for entry in ran.state.log_history if name in entry]


def test_it_records_what_the_trainer_logs(tmp_path: Path, spool: Path) -> None:
    """One row an optimizer step, numbered as the Trainer numbers it; loss, norm and rate to the last bit."""
    ran = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET))
    ran.train()
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert run.column("loss") == logged(ran, "loss")
    assert run.column("grad_norm") == logged(ran, "grad_norm")
    assert run.column("lr") == logged(ran, "learning_rate")
    assert run.column("tokens") == [2 * 2 * 8] * 6, "both micro-batches count"
    assert all(seconds > 0 for seconds in run.column("data_time_s")[1:])
    assert run.tensors("grad_norm"), "norms of weights' gradients"
    assert run.head["status"] == "finished"
    assert run.head["config"]["framework"].startswith("transformers ")


def test_steps_that_are_not_logged_have_their_loss(tmp_path: Path, spool: Path) -> None:
    """The Trainer logs an average of several steps; the record has each step's own."""
    ran = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), logging_steps=3)
    ran.train()
    losses = recorded_in(spool).column("loss")
    assert len(set(losses)) == 6
    assert [sum(losses[:3]) / 3, sum(losses[3:]) / 3] == pytest.approx(logged(ran, "loss"), rel=1e-6)


def test_the_weights_are_the_same_without_it(tmp_path: Path, spool: Path) -> None:
    """Bit for bit, and nothing stays behind in the Trainer or the model."""
    watched, plain = model(), model()
    trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), of=watched).train()
    trainer(tmp_path, of=plain).train()
    pairs = zip(watched.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert Trainer.training_step is PLAIN_STEP
    assert not any(module._forward_hooks for module in watched.modules())


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_an_evaluation_belongs_to_the_step_it_follows(tmp_path: Path, spool: Path, strategy: str) -> None:
    """eval_loss stands in the row of the step after which the Trainer evaluated."""
    options = {"eval_strategy": strategy, "eval_steps": 3, "logging_steps": 100, "num_train_epochs": 1}
    ran = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), max_steps=-1, **options)
    ran.train()
    run = recorded_in(spool)
    at = {entry["step"]: entry["eval_loss"] for entry in ran.state.log_history if "eval_loss" in entry}
    assert at
    assert {row["step"]: row["eval_loss"] for row in run.rows if "eval_loss" in row} == at
    assert run.steps == list(range(1, 9))


def test_a_resumed_training_goes_on_in_its_run(tmp_path: Path, spool: Path) -> None:
    """The checkpoint knows the run; steps follow on and the first is marked as resumed."""
    first = FloatscopeCallback(run="tiny", **QUIET)
    trainer(tmp_path, first, max_steps=4, save_strategy="steps", save_steps=2).train()
    again = FloatscopeCallback(run="tiny", **QUIET)
    trainer(tmp_path, again).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert first.monitor is not None
    assert again.monitor is not None
    assert first.monitor.run_id == again.monitor.run_id
    run = recorded_in(spool)
    assert run.steps == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in run.rows if row.get("resumed")] == [5]


def test_another_name_is_another_run(tmp_path: Path, spool: Path) -> None:
    """Who resumes under a new name tries something else."""
    trainer(
        tmp_path, FloatscopeCallback(run="one", **QUIET), max_steps=2, save_steps=2, save_strategy="steps"
    ).train()
    other = FloatscopeCallback(run="two", **QUIET)
    trainer(tmp_path, other, max_steps=4).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert other.monitor is not None
    run = read(spool / other.monitor.run_id / "rank0.jsonl")
    assert run.steps == [3, 4]
    assert run.column("resumed") == [1.0, None], "still out of a checkpoint"


class _At(TrainerCallback):  # type: ignore[misc] # the library has no types
    """Does something when a step begins."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action = step, action

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            self._action()


@pytest.mark.parametrize(("stop", "last"), [(True, 3), (False, 6)])
def test_a_finding_stops_the_training_only_if_asked_to(
    tmp_path: Path, spool: Path, stop: bool, last: int
) -> None:
    """With stop=True the Trainer ends after the step in which the finding arrived."""
    ours = FloatscopeCallback(run="tiny", stop=stop, diagnose=False, **QUIET)

    def find() -> None:
        assert ours.monitor is not None
        diagnose_as_critical(ours.monitor, onset_step=2)

    ran = trainer(tmp_path, ours, _At(2, find))
    ran.train()
    assert ran.state.global_step == last
    assert recorded_in(spool).steps == list(range(1, last + 1))
    counted = [entry for entry in ran.state.log_history if entry.get("floatscope/warnings") == 1]
    assert counted, "the warning stands in the Trainer's own log"


def test_checkpoints_say_whether_they_are_clean(tmp_path: Path, spool: Path) -> None:
    """One from before the first bad step is clean, one from after it is not, also if that is known later."""
    ours = FloatscopeCallback(run="tiny", diagnose=False, **QUIET)

    def find() -> None:
        assert ours.monitor is not None
        diagnose_as_critical(ours.monitor, onset_step=4)

    trainer(tmp_path, ours, _At(4, find), save_strategy="steps", save_steps=2).train()
    tags = {
        step: json.loads((tmp_path / "out" / f"checkpoint-{step}" / "floatscope.json").read_text())
        for step in (2, 4, 6)
    }
    assert {step: tag["is_clean"] for step, tag in tags.items()} == {2: True, 4: False, 6: False}
    assert tags[2]["step"] == 2
    assert ours.monitor is not None
    assert tags[2]["run_id"] == ours.monitor.run_id


def tags_in(folder: Path) -> dict[int, Any]:
    """is_clean of all checkpoints, by step."""
    found = [json.loads(path.read_text()) for path in (folder / "out").glob("checkpoint-*/floatscope.json")]
    return {tag["step"]: tag["is_clean"] for tag in found}


def test_a_resumed_training_renews_the_tags_of_its_earlier_checkpoints(tmp_path: Path, spool: Path) -> None:
    """Those that lead up to it; not those of steps that are trained again, nor another run's, nor no tag."""
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, FloatscopeCallback(run="tiny", diagnose=False, **QUIET), max_steps=8, **saving).train()
    assert tags_in(tmp_path) == {2: None, 4: None, 6: None, 8: None}
    for name, text in (("3", '{"run_id": "other", "step": 3, "is_clean": null}'), ("1", '{"step": ')):
        (tmp_path / "out" / f"checkpoint-{name}").mkdir()
        (tmp_path / "out" / f"checkpoint-{name}" / "floatscope.json").write_text(text)
    again = FloatscopeCallback(run="tiny", diagnose=False, **QUIET)

    def find() -> None:
        assert again.monitor is not None
        diagnose_as_critical(again.monitor, onset_step=4)

    trainer(tmp_path, again, _At(6, find), max_steps=7).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6")
    )
    assert (tmp_path / "out" / "checkpoint-1" / "floatscope.json").read_text() == '{"step": '
    (tmp_path / "out" / "checkpoint-1" / "floatscope.json").unlink()
    assert tags_in(tmp_path) == {2: True, 3: None, 4: False, 6: False, 8: None}


def test_a_resumed_training_judges_its_earlier_checkpoints_without_a_server(
    tmp_path: Path, spool: Path
) -> None:
    """The diagnosis reads what the log held; steps beyond the checkpoint prove it clean."""
    settings = {**QUIET, "clean_after": 4}
    saving = {"save_strategy": "steps", "save_steps": 6}
    trainer(tmp_path, FloatscopeCallback(run="tiny", **settings), max_steps=6, **saving).train()
    assert tags_in(tmp_path) == {6: None}
    trainer(tmp_path, FloatscopeCallback(run="tiny", **settings), max_steps=20).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6")
    )
    assert tags_in(tmp_path) == {6: True}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("device lost"), "crashed"), (KeyboardInterrupt(), "failed")]
)
def test_an_exception_ends_the_run_with_its_reason(
    tmp_path: Path, spool: Path, error: BaseException, status: str
) -> None:
    """It reaches the caller unchanged, and the record says why the run ended, even if it is caught there."""
    broken = model()
    calls: list[int] = []

    def fail(module: Any, args: Any) -> None:
        calls.append(1)
        if len(calls) == 6:
            raise error

    broken.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(type(error)):
        trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), of=broken).train()
    head = recorded_in(spool).head
    assert head["status"] == status
    assert head["reason"].startswith(type(error).__name__)
    assert Trainer.training_step is PLAIN_STEP


def test_a_given_monitor_is_used_and_left_open(tmp_path: Path, spool: Path) -> None:
    """The loop around the Trainer owns it."""
    watched = model()
    with floatscope.watch(watched, run="mine", **QUIET) as monitor:
        trainer(tmp_path, FloatscopeCallback(monitor=monitor), of=watched).train()
        monitor.step(7, loss=0.5)
    assert recorded_in(spool).steps == [1, 2, 3, 4, 5, 6, 7]


def test_a_wrong_setting_is_told_at_once() -> None:
    """Not hours later, when the training begins."""
    with pytest.raises(ValueError, match="either run="):
        FloatscopeCallback()
    with pytest.raises(TypeError, match="unknown setting 'stats_evry'"):
        FloatscopeCallback(run="tiny", stats_evry=3)


def test_a_nan_that_the_trainer_filters_out_is_seen(tmp_path: Path, spool: Path) -> None:
    """By default the Trainer logs a NaN loss as an average of the others; the record is not misled."""
    ill = model()
    calls: list[int] = []

    def poison(module: Any, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output * float("nan") if len(calls) > 4 else output

    ill.lm_head.register_forward_hook(poison)
    options = {"logging_nan_inf_filter": True, "gradient_accumulation_steps": 1}
    ran = trainer(tmp_path, FloatscopeCallback(run="tiny", **QUIET), of=ill, **options)
    ran.train()
    assert all(loss == loss for loss in logged(ran, "loss"))
    assert recorded_in(spool).column("loss")[4:] == ["NaN", "NaN"]


def test_the_example_runs(spool: Path) -> None:
    """As it stands, in a process of its own."""
    run = run_example("huggingface", spool)
    assert run.steps == list(range(1, 41))
    assert [row["step"] for row in run.rows if "eval_loss" in row] == [20, 40]
    assert run.head["status"] == "finished"


def test_a_nan_is_found_without_a_server_and_stops_the_training(tmp_path: Path, spool: Path) -> None:
    """The whole way: a NaN in step 5, the diagnosis in its thread, a finding, the end of the training."""
    ill = model()
    calls: list[int] = []

    def poison(module: Any, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return output * float("nan") if len(calls) > 8 else output

    ill.lm_head.register_forward_hook(poison)
    ours = FloatscopeCallback(run="tiny", stop=True, stop_confidence=0.5, **QUIET)

    def wait() -> None:
        assert ours.monitor is not None
        deadline = time.monotonic() + 60
        while not ours.monitor.findings and time.monotonic() < deadline:
            time.sleep(0.02)

    ran = trainer(tmp_path, ours, _At(8, wait), of=ill, max_steps=12)
    ran.train()
    assert 5 < ran.state.global_step <= 9, "at the next step that is logged after it was found"
    found = first_found(spool)
    assert (found["severity"], found["onset_step"]) == ("critical", 5)
