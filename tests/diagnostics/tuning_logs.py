"""What the logs in ``logs`` of fine-tuning, translation and reinforcement learning say."""

from __future__ import annotations

from floatscope_diagnostics.readers.piece import RESUME
from tests.diagnostics.llm_logs import INF, NAN, Expected

CASES = {
    "hf_stdout.log": Expected(
        {
            "loss": [(10, 2.3105), (20, 1.8017), (30, NAN), (40, 0.0)],
            "grad_norm": [(10, 1.952), (20, INF), (30, NAN), (40, NAN)],
            "eval_loss": [(20, 1.912)],
            "lr": [(10, 5e-5), (20, 4e-5), (30, 3e-5), (40, 2e-5)],
        },
        absent=("train_loss", "eval_runtime"),
    ),
    "hf_stdout-bare.log": Expected(
        {
            "loss": [(None, 2.3105), (None, 2.2001), (None, 2.101)],
            "eval_loss": [(None, 2.15)],
            "lr": [(None, 5e-5), (None, 4.9e-5), (None, 4.8e-5)],
        }
    ),
    "hf_stdout-dpo.log": Expected(
        {"loss": [(None, 0.6931), (None, 0.6542)], "logps/chosen": [(None, -120.5), (None, -119.1)]}
    ),
    "hf_stdout-grpo.log": Expected(
        {"policy_loss": [(1, 0.0), (2, 0.0001)], "reward": [(1, 0.35), (2, 0.41)]},
        absent=("loss",),
        note="policy_loss",
    ),
    "hf_stdout-swift.log": Expected({"loss": [(5, 1.2345), (10, 1.1034)]}, absent=("percentage",)),
    "llamafactory.jsonl": Expected(
        {
            "loss": [(10, 2.5012), (20, 0.0), (30, NAN)],
            "eval_loss": [(10, 2.61)],
            "lr": [(10, 4.9e-5), (20, 2.5e-5), (30, 0.0)],
        },
        absent=("reward", "percentage"),
    ),
    "llamafactory-ppo.jsonl": Expected(
        {"policy_loss": [(1, 0.31), (2, 0.52)], "reward": [(1, -2.03), (2, 1.25)]},
        absent=("loss",),
        note="not judged",
    ),
    "ms_swift.jsonl": Expected(
        {
            "loss": [(10, 1.8123), (20, 1.5123)],
            "eval_loss": [(20, 1.6021)],
            "step_time_s": [(10, 2.0), (20, 2.0)],
            "token_acc": [(10, 0.61), (20, 0.64)],
        },
        absent=("train_loss", "best_metric"),
    ),
    "opennmt.log": Expected(
        {
            "loss": [(50, 9.42), (100, 7.76), (150, NAN)],
            "lr": [(50, 1e-5), (100, 2e-5), (150, 3e-5)],
            "eval_loss": [(None, 7.0)],
            "eval_acc": [(None, 12.25)],
        },
        note="logarithm",
    ),
    "opennmt-old.log": Expected(
        {"loss": [(None, 11.43), (None, 8.39), (None, 7.1)], "eval_loss": [(None, 7.1)]}
    ),
    "opennmt-tf.log": Expected(
        {
            "loss": [(100, 9.1234), (200, 7.51)],
            "lr": [(100, 1.2e-5), (200, 2.5e-5)],
            "eval_loss": [(200, 7.6002)],
        }
    ),
    "tf_estimator.log": Expected(
        {
            "loss": [(1001, 4.8102), (1101, 4.2011), (1201, 3.9001), (1301, 3.8), (1322, NAN)],
            "lr": [(1301, 0.001)],
            "eval_loss": [(1301, 3.9)],
            "eval_accuracy": [(1301, 0.41)],
        },
        note="error message only",
        kinds={RESUME: 1},
    ),
    "hf_stdout-tail.log": Expected({"loss": [(10, 2.31), (20, 2.21)]}),
    "mlx_lm.log": Expected(
        {
            "loss": [(10, 2.345), (20, NAN)],
            "eval_loss": [(1, 2.661)],
            "step_time_s": [(10, 2.0), (20, 2.5)],
            "tokens": [(10, 2500), (20, 5000)],
        }
    ),
    "marian.log": Expected(
        {
            "loss": [(500, 8.22105789), (1000, 6.90105789), (1500, NAN)],
            "grad_norm": [(500, 1.2301), (1000, 0.9001)],
            "lr": [(500, 1e-5), (1000, 2e-5)],
            "eval_loss": [(1000, 160.123)],
            "eval_bleu": [(1000, 0.51)],
        }
    ),
    "joeynmt.log": Expected(
        {
            "loss": [(100, 5.23), (200, 4.81)],
            "lr": [(100, 3e-4), (200, 3e-4)],
            "eval_loss": [(200, 4.95)],
            "eval_bleu": [(200, 1.01)],
        }
    ),
    "joeynmt-sockeye.log": Expected(
        {"loss": [(50, 7.0), (100, 5.0)], "eval_loss": [(100, 6.0)]}, note="logarithm"
    ),
    "verl.log": Expected(
        {
            "actor/pg_loss": [(1, 0.012), (2, -0.03)],
            "actor/grad_norm": [(1, 0.21), (2, NAN)],
            "critic/score/mean": [(1, 0.125), (2, 0.15)],
        },
        absent=("loss",),
        note="reinforcement learning",
    ),
    "verl-sft.log": Expected({"loss": [(1, 1.512), (2, 1.402)], "eval_loss": [(2, 1.45)]}),
    "torchtune.log": Expected({"loss": [(1, 2.5012998580932617), (2, 2.1102998580932617), (809, NAN)]}),
    "torchtune-disk.log": Expected(
        {
            "loss": [(1, 2.5012998580932617), (2, 2.1102998580932617)],
            "lr": [(1, 2e-5), (2, 2e-5)],
            "grad_norm": [(2, 1.25)],
        }
    ),
    "tf_estimator-slim.log": Expected(
        {"loss": [(10, 2.4281), (20, NAN)], "step_time_s": [(10, 0.419), (20, 0.416)]}
    ),
    "hf_stdout-lag.log": Expected(
        {
            "loss": [(10, 2.3105), (20, 1.8017), (10, 2.5105), (20, 2.4105)],
            "eval_loss": [(20, 1.912)],
        }
    ),
}
