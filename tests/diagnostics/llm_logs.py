"""What the logs in ``logs`` of language-model training say, as a careful reader writes it down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from floatscope_diagnostics.readers.piece import RESUME, START

NAN, INF = math.nan, math.inf
Series = list[tuple[int | None, float]]


@dataclass(frozen=True)
class Expected:
    """series: name -> (step as printed, value) in order, all of them.  absent: names that must not come.
    note: words of a note.  kinds: number of pieces of a kind."""

    series: Mapping[str, Series]
    absent: tuple[str, ...] = ()
    note: str | None = None
    kinds: Mapping[str, int] = field(default_factory=dict)


CASES = {
    "megatron.log": Expected(
        {
            "loss": [(2, 10.8321), (12, 9.2144), (22, NAN)],
            "eval_loss": [(12, 9.4001)],
            "test_loss": [(500, 9.12)],
            "grad_norm": [(2, 21.31), (12, 8.402), (22, NAN)],
            "param_norm": [(2, 231.5), (12, 231.7), (22, NAN)],
            "loss_scale": [(1, 2.0**32), (2, 2.0**31), (12, 2.0**30), (22, 2.0**30)],
            "skipped_steps": [(1, 1), (12, 3)],
            "lr": [(1, 0.0), (2, 1.5e-6), (12, 1.65e-5), (22, 3.15e-5)],
            "step_time_s": [(1, 8.1234), (2, 2.004), (12, 2.0015), (22, 2.0019)],
        },
        note="prints no loss that is NaN",
        kinds={RESUME: 1},
    ),
    "megatron-old.log": Expected(
        {
            "loss": [(100, 7.12), (200, 6.34), (300, NAN), (400, 5.91)],
            "loss_scale": [(100, 1024), (200, 0.5), (300, 0.2), (400, 0.2)],
            "eval_loss": [(300, 6.25)],
            "lr": [(100, 1e-5), (200, 2e-5), (300, 3e-5), (400, 2.9e-5)],
        }
    ),
    "megatron-deepspeed.log": Expected(
        {
            "loss": [(10, 10.512), (20, 9.8765), (20, 9.87648)],
            "skipped_steps": [(20, 3)],
            "loss_scale": [(10, 32768), (20, 8192)],
            "tokens": [(10, 655360), (20, 1310720), (30, 1966080)],
        }
    ),
    "gpt_neox.log": Expected(
        {
            "loss": [(10, 9.812), (20, 8.9), (20, 8.9034), (30, NAN)],
            "eval_loss": [(20, 8.95)],
            "skipped_steps": [(10, 1), (20, 1)],
            "samples/sec": [(10, 40.25), (20, 41.29), (30, 41.3)],
        }
    ),
    "deepspeed.log": Expected(
        {
            "lr": [(10, 1e-5), (20, 2e-5)],
            "skipped_steps": [(10, 2), (20, 2)],
            "loss": [(20, NAN)],
            "samples_per_s": [(10, 17.1)],
        }
    ),
    "deepspeed_chat.log": Expected(
        {
            "loss": [(None, 8.01), (None, 3.25), (None, 2.51)],
            "eval_loss": [(None, 8.0), (None, 2.0), (None, 2.0015)],
            "lr": [(10, 9.6e-6)],
        },
        note="logarithm",
    ),
    "deepspeed_chat-dpo.log": Expected(
        {"eval_loss": [(None, 0.693359375), (None, 0.6512)], "train_epoch_loss": [(None, 0.68)]},
        absent=("loss",),
    ),
    "deepspeed_chat-ppo.log": Expected(
        {
            "actor_loss": [(None, 0.012), (None, -0.034)],
            "critic_loss": [(None, 0.45), (None, 0.91)],
            "reward": [(None, -1.25), (None, 0.5)],
        },
        absent=("loss",),
        note="not judged",
    ),
    "fairseq.log": Expected(
        {
            "loss": [(100, 12.4), (200, 10.2), (300, 9.9)],
            "train_epoch_loss": [(250, 11.0)],
            "eval_loss": [(250, 9.81)],
            "test_loss": [(250, 9.95)],
            "grad_norm": [(100, 4.21), (200, 2.05), (300, NAN)],
            "loss_scale": [(100, 128), (200, 128), (300, 0)],
        },
        note="base 2",
        kinds={RESUME: 1},
    ),
    "fairseq-old.log": Expected(
        {
            "loss": [(101, 11.84)],
            "train_epoch_loss": [(1101, 8.12)],
            "eval_loss": [(1101, 7.01)],
            "lr": [(101, 1.27225e-5)],
            "grad_norm": [(101, 2.21)],
        }
    ),
    "fairseq-json.log": Expected(
        {
            "loss": [(200, 6.512), (600, NAN)],
            "eval_loss": [(400, 6.105)],
            "train_epoch_loss": [(400, 6.4)],
            "loss_scale": [(200, 128), (600, 0.0001)],
        }
    ),
    "nanogpt.log": Expected(
        {
            "loss": [(0, 4.2654), (10, 3.1462), (20, 2.7314), (250, 2.0102), (260, NAN)],
            "eval_loss": [(0, 4.2823), (250, 2.07)],
            "eval_train_loss": [(0, 4.2874), (250, 1.9701)],
            "step_time_s": [(0, 12.0122), (10, 0.01926), (20, 0.01931), (250, 5.00311), (260, 0.0194)],
            "mfu_pct": [(10, 19.35), (20, 19.34), (250, 17.4), (260, 17.59)],
        }
    ),
    "nanogpt-lecture.log": Expected(
        {
            "eval_loss": [(0, 4.2306), (500, 1.9146), (1000, 1.5987), (1500, NAN)],
            "eval_train_loss": [(0, 4.2221), (500, 1.76), (1000, 1.3903), (1500, -INF)],
        },
        absent=("loss",),
    ),
    "nanogpt-bits.log": Expected(
        {"loss": [(0, 6.1551), (10, 4.681)], "lr": [(0, 1e-4), (10, 2e-4)], "eval_loss": [(0, 6.178)]},
        note="bits",
    ),
    "nanogpt-llama2c.log": Expected(
        {"loss": [(0, 10.425), (1, 10.4101), (10, 9.8102)], "lr": [(0, 0.0), (1, 5e-7), (10, 5e-6)]}
    ),
    "nanogpt-makemore.log": Expected({"loss": [(0, 3.4023), (10, 3.105)], "eval_loss": [(500, 2.311)]}),
    "build_nanogpt.log": Expected(
        {
            "loss": [(0, 10.955029), (1, 10.90001), (2, NAN)],
            "eval_loss": [(None, 10.9511), (None, 9.8512)],
            "grad_norm": [(0, 15.3406), (1, 14.2197), (2, NAN)],
            "lr": [(0, 8.3916e-7), (1, 1.6783e-6), (2, 2.5174e-6)],
            "step_time_s": [(0, 28.01211), (1, 0.35367), (2, 0.36084)],
        }
    ),
    "build_nanogpt-short.log": Expected(
        {"loss": [(0, 10.955029), (1, 10.90001), (2, INF)], "eval_loss": [(0, 10.9511), (2, 9.8512)]}
    ),
    "llmc.log": Expected(
        {
            "loss": [(1, 11.00912), (2, 10.95981), (3, 10.8556)],
            "grad_norm": [(1, 15.3721), (2, 15.2403), (3, 14.8401)],
            "lr": [(1, 8.57e-7), (2, 1.71e-6), (3, 2.57e-6)],
            "eval_loss": [(None, 11.009202), (None, 6.512)],
            "mfu_pct": [(1, 53.2), (2, 54.1)],
            "step_time_s": [(1, 2.3022), (2, 1.30125), (3, 1.3005)],
        }
    ),
    "llmc-main.log": Expected(
        {
            "loss": [(0, 11.0091), (1, 10.9598), (250, NAN)],
            "grad_norm": [(0, 15.37), (1, 15.24), (250, NAN)],
            "eval_loss": [(0, 11.0092), (250, 6.512)],
            "hellaswag_accuracy": [(250, 0.2512)],
        }
    ),
    "llmc-simple.log": Expected(
        {"loss": [(0, 4.677779), (1, 5.191576)], "eval_loss": [(None, 5.325529), (None, 4.91)]}
    ),
    "modded_nanogpt.log": Expected(
        {
            "loss": [(1, 10.8259), (2, 10.4946), (126, 4.5102)],
            "eval_loss": [(0, 10.8258), (125, 4.6203)],
            "step_time_s": [(2, 0.09697), (125, 0.09688), (126, 0.09688), (127, 0.09688)],
        }
    ),
    "modded_nanogpt-trials.log": Expected(
        {"eval_loss": [(0, 10.82584), (125, 4.78423), (0, 10.82584), (125, 4.79001)]}, kinds={START: 2}
    ),
    "nanochat.log": Expected(
        {
            "loss": [(0, 11.090355), (1, 10.980402), (250, 4.21)],
            "eval_loss": [(0, 3.2981), (250, 1.1502)],
            "grad_norm": [(0, 0.3124), (1, 0.4001), (250, 0.21)],
            "tokens_per_s": [(0, 20796), (1, 1008246), (250, 1006311)],
            "core_metric": [(250, 0.0812)],
        },
        note="bits",
    ),
    "nanochat-sft.log": Expected(
        {
            "loss": [(0, 1.3021), (1, 1.204)],
            "eval_loss": [(0, 1.2412)],
            "label_tokens": [(0, 9120), (1, 8800)],
        }
    ),
    "torchtitan.log": Expected(
        {
            "loss": [(1, 8.1304), (2, 7.7902), (3, NAN)],
            "eval_loss": [(2, 7.9001)],
            "grad_norm": [(1, 1.5054), (2, 1.6612), (3, NAN)],
            "tokens_per_s": [(1, 1054), (2, 67854), (3, 67001)],
        }
    ),
    "litgpt.log": Expected(
        {
            "loss": [(0, 2.1001), (1, 2.0502), (1, 2.1999), (2, NAN)],
            "eval_loss": [(2, 1.985)],
        }
    ),
    "litgpt-epochs.log": Expected(
        {
            "loss": [(1, 1.647), (2, 1.512), (3, 1.402), (4, 1.39)],
            "eval_loss": [(2, 1.4402)],
        }
    ),
    "apex_scaler.log": Expected(
        {
            "loss_scale": [(None, 32768), (None, 16384), (None, 5e-324), (None, 0.0)],
            "loss_scale_1": [(None, 32768)],
            "skipped_steps": [(None, 1), (None, 2), (None, 3), (None, 4)],
        },
        note="only lines of the loss scaler",
    ),
    "composer.log": Expected(
        {
            "loss": [(1, 11.9102), (2, 11.2001), (3, NAN)],
            "lr": [(1, 0.0), (2, 0.0001)],
            "grad_norm": [(1, 2.5102)],
            "tokens": [(1, 0), (2, 2048)],
            "eval_loss": [(2, 11.5012)],
        }
    ),
    "olmo.log": Expected(
        {
            "loss": [(1, 11.31), (2, 11.02), (1000, NAN)],
            "grad_norm": [(1, 14.21), (2, 13.02)],
            "lr": [(1, 1e-7)],
            "tokens": [(1, 4194304)],
            "train/Perplexity": [(1, 81634)],
            "eval_loss": [(2, 11.12)],
        }
    ),
    "nanotron.log": Expected(
        {
            "loss": [(1, 11.4), (2, 10.9), (3, NAN)],
            "grad_norm": [(1, 25.1), (2, 24.0), (3, NAN)],
            "tokens": [(1, 131000), (2, 262000), (3, 393000)],
            "step_time_s": [(1, 2.1), (2, 0.85), (3, 0.851)],
            "lr": [(1, 1.5e-6), (2, 3e-6), (3, 4.5e-6)],
        }
    ),
    "nanotron-picotron.log": Expected(
        {"loss": [(1, 10.9062), (2, 10.8001)], "tokens_per_s": [(1, 10500), (2, 80500)]}
    ),
    "internevo.log": Expected(
        {
            "loss": [(0, 11.641494750976562), (1, 11.5)],
            "grad_norm": [(0, 63.672), (1, 65.1)],
            "loss_scale": [(0, 65536), (1, 32768)],
            "skipped_steps": [(0, 0), (1, 1)],
            "tokens": [(0, 131072), (1, 262144)],
            "step_time_s": [(0, 3.67), (1, 3.0)],
        }
    ),
    "deepspeed-words.log": Expected({"loss": [(9, 3.25), (10, 3.21), (11, 3.1)], "lr": [(10, 1e-5)]}),
    "mindspore.log": Expected({"loss": [(None, 2.3012), (None, 2.201), (None, NAN)]}),
    "mindspore-formers.log": Expected(
        {
            "loss": [(None, 11.512), (None, 11.401)],
            "grad_norm": [(None, 2.31), (None, 2.01)],
            "loss_scale": [(None, 65536), (None, 32768)],
            "step_time_s": [(None, 1.0), (None, 0.99)],
        }
    ),
    "lingua.log": Expected(
        {
            "loss": [(10, 9.2101), (20, NAN)],
            "grad_norm": [(10, 1.21), (20, NAN)],
            "step_time_s": [(10, 0.1201), (20, 0.1202)],
        }
    ),
    "levanter.log": Expected({"loss": [(980, 3.31), (1100, 3.21)], "eval_loss": [(None, 3.3)]}, note="three"),
    "llama_cpp.log": Expected({"loss": [(1, 10.412304), (2, NAN)]}),
}
