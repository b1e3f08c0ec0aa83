"""Run by test_ranks.py under torchrun: a Trainer on ranks of which only the last one hears of a finding, or
has no run at all ("blind")."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from floatscope.integrations.huggingface import FloatscopeCallback
from tests.integrations.recorded import QUIET, diagnose_as_critical

WORDS = 31
FOUND_AT = 2


class _Hears(TrainerCallback):  # type: ignore[misc] # the library has no types
    """Posts a finding on one rank."""

    def __init__(self, ours: FloatscopeCallback) -> None:
        self._ours = ours

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        monitor = self._ours.monitor
        is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
        if monitor is not None and is_last and state.global_step == FOUND_AT:
            diagnose_as_critical(monitor, onset_step=FOUND_AT)


def _cannot_start(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("no run can be opened here")


def main(folder: str, *, is_blind: bool) -> None:
    """Trains up to 8 steps; all ranks log every second one."""
    torch.manual_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0)
    )
    ids = torch.randint(0, WORDS, (64, 8), generator=torch.Generator().manual_seed(5))
    args = TrainingArguments(
        output_dir=folder,
        max_steps=8,
        per_device_train_batch_size=2,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
    )
    settings = {**QUIET, "strict": not is_blind}
    ours = FloatscopeCallback(run="two", stop=True, diagnose=False, **settings)
    if is_blind and int(os.environ["RANK"]) == 1:
        ours._session.start = _cannot_start  # type: ignore[method-assign]
    data = [{"input_ids": row, "labels": row} for row in ids]
    Trainer(model, args, train_dataset=data, callbacks=[ours, _Hears(ours)]).train()


if __name__ == "__main__":
    main(sys.argv[1], is_blind=sys.argv[2:] == ["blind"])
