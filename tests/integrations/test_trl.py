"""TRL's trainers are Hugging Face Trainers: the same callback works, and TRL's own metrics are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from floatscope.integrations.huggingface import FloatscopeCallback
from tests.integrations.recorded import QUIET, recorded_in, run_example

WORDS = 31


def trainer(folder: Path, *callbacks: Any) -> Any:
    torch.manual_seed(3)
    vocabulary = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    ids = torch.randint(1, WORDS, (32, 8), generator=torch.Generator().manual_seed(5)).tolist()
    return SFTTrainer(
        model=GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=1, n_head=2, eos_token_id=0)
        ),
        args=SFTConfig(
            output_dir=str(folder / "out"),
            max_steps=4,
            max_length=16,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"input_ids": ids}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="w0", pad_token="w0"),
        callbacks=list(callbacks),
    )


def test_supervised_fine_tuning_is_recorded(tmp_path: Path, spool: Path) -> None:
    """Loss and norm as SFTTrainer logs them, its token accuracy beside them; the weights are the same."""
    ran = trainer(tmp_path, FloatscopeCallback(run="sft", **QUIET))
    ran.train()
    run = recorded_in(spool)
    logs = [entry for entry in ran.state.log_history if "loss" in entry]
    assert run.steps == [1, 2, 3, 4]
    for name in ("loss", "grad_norm", "mean_token_accuracy"):
        assert run.column(name) == [entry[name] for entry in logs], name
    assert run.column("tokens") == [2 * 2 * 8] * 4
    assert run.tensors("grad_norm")
    plain = trainer(tmp_path)
    plain.train()
    pairs = zip(ran.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)


def test_the_example_runs(spool: Path) -> None:
    """As it stands, in a process of its own."""
    run = run_example("trl", spool)
    assert run.steps == list(range(1, 21))
    assert run.head["status"] == "finished"
