"""Hugging Face Trainer with floatscope: a tiny GPT-2 with random weights, on the CPU, in seconds.

    pip install floatscope transformers accelerate torch
    python examples/huggingface/train.py

The record and the verdict are written to a folder that is printed at the end; with FLOATSCOPE_URL set they go
to a server instead.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from floatscope.integrations.huggingface import FloatscopeCallback

WORDS = 64


def main() -> None:
    """Trains 40 steps with gradient accumulation, evaluation and checkpoints."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0)
    )
    ids = (torch.arange(16) + torch.randint(0, WORDS, (128, 1))) % WORDS  # rows that count up
    data = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=40,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                learning_rate=3e-3,
                logging_steps=10,
                eval_strategy="steps",
                eval_steps=20,
                save_steps=20,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
            eval_dataset=data[:16],
            callbacks=[FloatscopeCallback(run="tiny-gpt2", stop=True)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
