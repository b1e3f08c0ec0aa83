"""TRL's SFTTrainer with floatscope: the callback is that of the Hugging Face Trainer.

    pip install floatscope trl torch
    python examples/trl/train.py

A tiny GPT-2 with random weights and a tokenizer of 32 words, so that nothing is downloaded.
"""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from floatscope.integrations.huggingface import FloatscopeCallback

WORDS = ["<eos>", *(f"w{number}" for number in range(31))]


def main() -> None:
    """Fine-tunes 20 steps on made-up sentences."""
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_positions=32, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
    )
    sentences = [" ".join(f"w{(start + step) % 31}" for step in range(12)) for start in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                max_steps=20,
                max_length=32,
                per_device_train_batch_size=4,
                learning_rate=3e-3,
                logging_steps=5,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=Dataset.from_dict({"text": sentences}),
            processing_class=tokenizer,
            callbacks=[FloatscopeCallback(run="tiny-sft")],
        )
        trainer.train()


if __name__ == "__main__":
    main()
