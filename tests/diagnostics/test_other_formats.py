"""Text logs of vision, speech, reinforcement learning, JAX, boosting and small loops: what is read from each,
with its traps."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest

from floatscope_diagnostics.readers.formats import open_runs

LOGS = Path(__file__).parent / "logs"
NAN, INF = math.nan, math.inf
Series = dict[str, list[tuple[int, float]]]

# Fixture -> series -> (step, value), in full.
READ: dict[str, Series] = {
    # running means: the last of an epoch, and the first bar that broke
    "keras": {
        "loss": [(500, 1.5023), (1000, 1.26), (1125, NAN), (1500, NAN)],
        "eval_loss": [(500, 1.3307), (1000, 1.2055), (1500, NAN)],
        "lr": [(500, 0.001), (1000, 0.001), (1500, 0.001)],
    },
    # one epoch: bar by bar; a message glued to the number does not hide it
    "keras-one-epoch": {"loss": [(1, 8.912), (2, 8.7004), (3, 91.2203), (4, 3.0112e5), (5, INF)]},
    "keras-three": {
        "loss": [(120, 1.7012), (240, 1.2212)],
        "eval_loss": [(120, 1.402), (240, 1.151)],
        "lr": [(120, 5e-4), (240, 5e-4)],
    },
    "keras-quiet": {"loss": [(782, 1.632), (1564, 1.2514), (2346, 1.0901), (3128, 0.9903)]},
    # grad_norm is nan while the AMP scale is sought, the loss is not
    "mmengine": {
        "loss": [(50, 1.912), (100, 1.501), (200, 1.202), (250, NAN)],
        "grad_norm": [(50, NAN), (100, 6.221), (200, 5.101), (250, NAN)],
        "lr": [(50, 1.982e-3), (100, 3.984e-3), (200, 7.988e-3), (250, 0.01)],
        "step_time_s": [(50, 0.512), (100, 0.498), (200, 0.497), (250, 0.502)],
        "coco/bbox_mAP": [(200, 0.112)],
    },
    "mmengine-old": {
        "loss": [(100, 1.9085), (200, 0.9186), (300, 0.7986)],
        "grad_norm": [(100, 11.2002), (200, 3.9772), (300, 3.0772)],
        "box_loss": [(100, 0.6328), (200, 0.3265), (300, 0.3065)],
    },
    # exact zeros beside nan stay zeros
    "mmengine-iter": {
        "loss": [(9950, 0.77), (10000, NAN)],
        "frame_0_loss_cls": [(9950, 0.21), (10000, 0.0)],
        "frame_0_enc_loss_cls": [(9950, 0.41), (10000, NAN)],
    },
    # the loss that broke is in an exception only
    "detectron2": {
        "loss": [(19, 4.107), (39, 2.979), (59, 2.274), (72, NAN)],
        "step_time_s": [(19, 0.2293), (39, 0.2296), (59, 0.2296)],
    },
    "detectron2-maskrcnn": {"loss": [(20, 1.4451), (40, 1.1296), (60, 1.3268)]},
    "espnet": {
        "loss": [(500, 165.129), (1000, 120.129), (1500, 99.129)],
        "eval_loss": [(1000, 84.1)],
        "lr": [(500, 1.485e-05), (1000, 2.485e-05), (1500, 3.485e-05)],
    },
    # a task without labels in a batch is no fault; all tasks nan is one
    "wetts": {
        "loss": [(0, 1.610886), (20, 1.210886), (40, 0.910886), (50, NAN)],
        "polyphone_loss": [(0, 1.450879), (10, 1.344452), (20, 1.050879), (40, 0.850879), (50, NAN)],
        "eval_polyphone_loss": [(40, 0.75)],
    },
    "paddle": {
        "loss": [(100, 88.165695), (200, 70.393478), (300, 61.498108), (400, NAN)],
        "lr": [(100, 5e-4), (200, 5e-4), (300, 5e-4), (400, 4.9e-4)],
    },
    "paddle-slim": {"loss": [(0, 10.200229), (10, NAN), (20, NAN)]},
    "paddle-detection": {
        "loss": [(0, 5.123734), (20, 3.123734), (60, 2.023734)],
        "step_time_s": [(0, 2.3), (20, 0.9), (60, 0.9)],
    },
    "paddle-ocr": {"loss": [(10, 7.811), (20, 6.111)], "data_time_s": [(10, 0.8), (20, 0.1)]},
    "paddle-seg": {"loss": [(10, 2.21), (20, 1.81)], "lr": [(10, 0.009991), (20, 0.009981)]},
    "paddle-clas": {
        "loss": [(0, 7.01), (10, 6.91), (500, 5.91)],
        "eval_loss": [(10, 6.01)],
        "lr": [(0, 0.1), (10, 0.1), (500, 0.1)],
    },
    "paddle-nlp": {"loss": [(10, 0.69122), (20, 0.65122), (30, 0.59122)], "eval_loss": [(20, 0.601)]},
    # the rate stands on another line of the iteration
    "caffe": {
        "loss": [(0, 2.3901), (100, 1.6622), (200, NAN)],
        "lr": [(0, 0.01), (100, 0.01), (200, 0.01)],
        "eval_loss": [(0, 2.3912)],
        "eval_accuracy": [(0, 0.1012)],
    },
    # batches start anew with every epoch
    "word_lm": {
        "loss": [(200, 7.49), (400, 6.64), (800, 6.12), (1000, NAN)],
        "lr": [(200, 20.0), (400, 20.0), (800, 5.0), (1000, 5.0)],
        "eval_loss": [(600, 6.21), (1200, NAN)],
        "step_time_s": [(200, 0.00767), (400, 0.00756), (800, 0.00761), (1000, 0.00756)],
    },
    "word_lm-xl": {"loss": [(200, 7.58), (400, 6.81), (600, 6.41)], "eval_loss": [(400, 6.52)]},
    "cyclegan": {"D_A": [(100, 0.28), (200, 0.188), (300, 0.221), (400, 0.18), (500, 0.15), (700, 0.11)]},
    "stylegan": {"augment": [(0, 0.0), (1, 0.004), (2, 0.009)], "fid50k_full": [(0, 301.25)]},
    # "best validation loss so far" is no evaluation
    "epoch_blocks": {
        "loss": [(1, 7.3251), (2, 6.2979), (3, NAN)],
        "eval_loss": [(1, 6.5378), (2, 6.1302), (3, NAN)],
        "lr": [(1, 9.98e-5), (2, 9.90e-5), (3, 9.70e-5)],
        "test_loss": [(3, 6.1011)],
    },
    "epoch_blocks-tutorial": {
        "loss": [(1, 0.694), (2, 0.612), (3, 0.502)],
        "eval_loss": [(1, 0.696), (2, 0.585), (3, 0.511)],
        "train_acc": [(1, 50.12), (2, 66.02), (3, 75.90)],
    },
    # a bar is drawn before and after its values change; val_loss is repeated until the next validation
    "tqdm": {
        "loss": [(1, 10.473), (2, 10.224), (3, 10.047), (7, 9.926), (8, NAN)],
        "eval_loss": [(7, 9.511)],
    },
    "tqdm-steps": {
        "loss": [(1, 0.412), (2, 0.0911), (3, 0.251), (4, 0.177)],
        "lr": [(1, 1e-5), (2, 1e-5), (3, 1e-5), (4, 1e-5)],
    },
    "mlperf": {
        "eval_loss": [(57, 4.1615), (114, 4.0336), (171, 3.8337)],
        "eval_accuracy": [(57, 0.36938), (114, 0.38265), (171, 0.40357)],
    },
    "mlperf-accuracy": {"eval_accuracy": [(20, 6.6e-11)], "lr": [(1, 0.04), (20, 0.08)]},
    "mlperf-dll": {
        "loss": [(95, 166.62), (190, 40.78), (285, 31.86)],
        "lr": [(95, 7.2e-3), (190, 7.2e-3), (285, 7.2e-3)],
    },
    "tf_slim": {
        "loss": [(10, 2.428), (20, 1.737), (30, 5.111), (40, NAN)],
        "step_time_s": [(10, 0.419), (20, 0.416), (30, 5.4), (40, 0.435)],
    },
    "average_meter": {
        "loss": [(0, 7.1123), (10, 7.0012), (5000, 4.8012), (5005, NAN)],
        "eval_loss": [(5005, 4.4)],
        "data_time_s": [(0, 4.01), (10, 0.01), (5000, 0.01), (5005, 4.01)],
    },
    "average_meter-torchvision": {
        "loss": [(0, 6.9812), (10, 6.9012), (1251, 6.1012)],
        "lr": [(0, 1e-4), (10, 1e-4), (1251, 2e-4)],
        "eval_loss": [(2502, 5.25)],
    },
    "average_meter-timm": {
        "loss": [(0, 6.954539), (50, 6.94812), (1251, 6.914539)],
        "eval_loss": [(1251, 6.9056)],
        "lr": [(0, 1e-6), (50, 1e-6), (1251, 2.008e-4)],
        "step_time_s": [(0, 5.512), (50, 0.312), (1251, 1.512)],
    },
    "average_meter-swin": {
        "loss": [(0, 6.9412), (10, 6.9312), (1251, 6.8312)],
        "grad_norm": [(0, 1.9012), (10, INF), (1251, 1.4012)],
    },
    # the objective is a log-likelihood that rises
    "kaldi": {
        "loss": [(99, 0.4112), (199, 0.2012), (299, NAN)],
        "objective_output-xent": [(99, -4.4112), (199, -3.1112)],
    },
    "boosting": {
        "loss": [(0, 0.6612), (1, 0.6102), (2, 0.5711), (3, 0.5411)],
        "eval_loss": [(0, 0.6631), (1, 0.6201), (2, 0.591), (3, NAN)],
        "train_auc": [(0, 0.71), (1, 0.75), (2, 0.78), (3, 0.80)],
    },
    "boosting-lightgbm": {"loss": [(10, 0.5012), (20, 0.4012)], "eval_loss": [(10, 0.5501), (20, 0.4701)]},
    "boosting-catboost": {"learn": [(0, 0.672011), (1, 0.652011), (2, 0.633011)]},
    "jax_clu": {
        "loss": [(100, 2.31), (200, 2.01), (300, NAN)],
        "lr": [(100, 0.01), (200, 0.02), (300, 0.03)],
        "eval_loss": [(200, 1.95)],
    },
    "jax_clu-t5x": {"loss": [(1000, 8.31), (2000, 6.10)], "eval_loss": [(1000, 8.21)]},
    # #na# is missing, nan is nan
    "stdout_table": {
        "loss": [(0, 1.234012), (1, 0.834012), (2, 0.634012), (3, NAN)],
        "eval_loss": [(0, 0.987), (1, 0.787), (3, NAN)],
    },
    # a blank column is missing
    "stdout_table-chainer": {
        "loss": [(100, 2.10023), (200, 1.50023), (300, NAN)],
        "eval_loss": [(200, 1.4112)],
        "lr": [(100, 0.1), (200, 0.1), (300, 0.1)],
    },
    "rl_table": {"ep_rewmean": [(256, 12.5)], "value_loss": [(128, 63.725853), (256, 93.725853)]},
    "rl_table-sb3": {"train/loss": [(400, NAN)], "rollout/ep_rew_mean": [(400, 20.1)], "lr": [(400, 1e-4)]},
    "yolo": {
        "loss": [(0, 0.20982), (1, NAN)],
        "mAP@.5": [(0, 0.42), (1, 0.0)],
    },
    "yolo-v8": {"loss": [(1, 4.425), (2, 3.825)], "mAP50-95": [(1, 0.18), (2, 0.21)]},
    "yolo_results": {
        "loss": [(0, 0.168133), (1, 0.161153), (2, NAN)],
        "eval_loss": [(0, 0.157627), (1, 0.14879), (2, NAN)],
        "lr": [(0, 4e-05), (1, 9e-05), (2, 0.00013994)],
    },
    "yolo_results-old": {"loss": [(0, 0.20982), (1, 0.18882)], "eval_loss": [(0, 0.18142), (1, 0.16042)]},
    "darknet": {
        "loss": [(1, 1500.232101), (2, 1480.111101), (3, NAN)],
        "lr": [(1, 0.0), (2, 0.0), (3, 1e-5)],
        "mAP@0.50": [(3, 0.0125)],
    },
    # every record is printed twice, by two loggers
    "tf_detection": {
        "loss": [(100, 1.273), (200, NAN)],
        "lr": [(100, 0.0319994), (200, 0.0373328)],
        "eval_loss": [(200, 1.3011)],
    },
    "mxnet": {"loss": [(100, 2.01), (200, 1.61), (300, NAN)], "eval_loss": [(200, 1.51)]},
    "coqui": {
        "loss": [(0, 2.9), (25, 1.9), (50, 1.5)],
        "grad_norm": [(0, 5.1), (25, NAN)],
        "eval_loss": [(25, 1.81)],
        "lr": [(0, 1e-4), (25, 1e-4)],
    },
    # the first row is one batch, the others sums since the row before
    "spacy": {"loss_ner": [(200, 2301.2), (400, 1101.2)], "score": [(0, 0.0), (200, 0.41), (400, 0.61)]},
    "tacotron2": {
        "loss": [(0, 32.11), (1, 28.11), (2, NAN)],
        "grad_norm": [(0, 12.11), (1, 22.11), (2, NAN)],
        "eval_loss": [(1, 27.5012)],
    },
    "tacotron2-waveglow": {"loss": [(0, 0.521), (1, -0.121), (2, -2.321), (3, NAN)]},
    "rl_lines": {"value_function_loss": [(0, 0.01), (1, NAN)], "mean_reward": [(0, 0.1), (1, 0.2)]},
    "rl_lines-agents": {"mean_reward": [(12000, 1.202), (24000, 1.602)]},
    # the same box, but a loss that has to fall
    "rl_table-diffusion": {
        "loss": [(0, 0.991), (10, NAN)],
        "grad_norm": [(0, 0.512), (10, NAN)],
        "param_norm": [(0, 1010.0), (10, 1010.0)],
    },
    # thousands comma in the step
    "basicsr": {"loss": [(100, 0.121), (1200, 0.0421)], "lr": [(100, 1e-4), (1200, 1e-4)]},
    "basicsr-gan": {"l_d_real": [(100, 0.68), (200, 0.48)], "step_time_s": [(100, 0.3), (200, 0.3)]},
    "paddle-speech": {"loss": [(100, 200.11), (200, 150.11)], "eval_loss": [(200, 110.2)]},
    "average_meter-pcdet": {
        "loss": [(0, 9.234), (50, 5.234), (464, 3.234)],
        "step_time_s": [(0, 2.21), (50, 0.51), (464, 2.21)],
    },
    "tqdm-rich": {"loss": [(2, 2.31), (18, 2.11), (27, 1.91)], "eval_loss": [(27, 2.011)]},
    "nemo": {
        "loss": [(0, 11.03), (1, 11.02), (2, NAN)],
        "lr": [(0, 1.499e-7), (1, 2.999e-7), (2, 4.499e-7)],
        "step_time_s": [(0, 13.5), (1, 3.512), (2, 3.501)],
        "eval_loss": [(2, 10.98)],
    },
    "tqdm-nemo": {
        "loss": [(0, 10.9), (1, 10.7)],
        "step_time_s": [(0, 4.1), (1, 1.2)],
    },
    "maxtext": {"loss": [(0, 10.871), (1, 10.812), (2, NAN)], "eval_loss": [(1, 10.801)]},
    "tqdm-gan": {"d_loss": [(100, 0.69), (200, 0.49)]},
    # a test is the validation of a log that has no other; the training loss may be called just "loss"
    "epoch_blocks-one-line": {
        "loss": [(1, 1.2), (2, 0.8), (3, 0.6)],
        "eval_loss": [(1, 1.1), (2, 0.9), (3, 0.7)],
    },
}

NO_LOSS = (
    "cyclegan",
    "stylegan",
    "rl_table",
    "rl_table-sb3",
    "mlperf",
    "mlperf-accuracy",
    "boosting-catboost",
    "spacy",
    "rl_lines",
    "rl_lines-agents",
    "basicsr-gan",
    "tqdm-gan",
)

NOTES = {
    "keras": "last value of each epoch",
    "keras-one-epoch": "mean since the epoch's start",
    "cyclegan": "play against each other",
    "stylegan": "play against each other",
    "basicsr-gan": "play against each other",
    "rl_lines": "reinforcement learning",
    "rl_table": "nan of an episode mean",
    "rl_table-sb3": "reinforcement learning",
    "wetts": "no label in the batch",
    "espnet": "leaves an update out",
    "kaldi": "negative of Kaldi's objective",
    "mlperf": "status aborted",
    "mlperf-accuracy": "an accuracy and no loss",
    "boosting": "metric logloss taken as the loss",
    "boosting-catboost": "does not name its metric",
    "yolo": "sum of the printed losses",
    "yolo_results": "no header",
    "tqdm-gan": "play against each other",
    "tqdm": "mean of the last 20 losses",
}


def read(name: str) -> tuple[str, Series, tuple[str, ...]]:
    """Format, series and notes of the one run in a fixture."""
    series: Series = defaultdict(list)
    found = []
    with open_runs(str(LOGS / f"{name}.log")) as runs:
        for log in runs:
            found.append(log)
            for _, batch in log.batches:
                for key in batch.scalar_names:
                    rows = zip(batch.step, *batch.scalar(key), strict=True)
                    series[key] += [(int(step), float(value)) for step, value, here in rows if here]
    assert len(found) == 1
    return found[0].format, series, tuple(found[0].tally.notes)


@pytest.mark.parametrize("name", READ)
def test_steps_and_values(name: str) -> None:
    format_name, series, _ = read(name)
    assert format_name == name.partition("-")[0]
    for key, expected in READ[name].items():
        got = series[key]
        assert [s for s, _ in got] == [s for s, _ in expected], key
        assert [v for _, v in got] == pytest.approx([v for _, v in expected], nan_ok=True), key


@pytest.mark.parametrize("name", NO_LOSS)
def test_what_need_not_fall_is_no_loss(name: str) -> None:
    _, series, _ = read(name)
    assert series
    assert "loss" not in series


@pytest.mark.parametrize("name", NOTES)
def test_the_report_says_how_it_was_understood(name: str) -> None:
    _, _, notes = read(name)
    assert any(NOTES[name] in note for note in notes), notes


def test_updates_left_out_are_counted_though_only_warned_of() -> None:
    _, series, _ = read("espnet")
    assert [v for _, v in series["skipped_steps"]] == [1.0, 2.0]
    assert [v for _, v in series["grad_norm"]] == pytest.approx([112.01, NAN, NAN, 12.01], nan_ok=True)


def test_ranks_of_wenet_stay_apart() -> None:
    ranks: dict[int, list[float]] = defaultdict(list)
    with open_runs(str(LOGS / "wenet.log")) as runs:
        for run in runs:
            for rank, batch in run.batches:
                values, present = batch.scalar("loss")
                ranks[rank] += [float(v) for v, p in zip(values, present, strict=True) if p]
    assert ranks[0] == pytest.approx([390.077545, INF, 90.077545])
    assert ranks[1] == pytest.approx([381.977545, 170.104248])


def test_steps_with_sums_of_their_epochs_between_are_read_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            "".join(
                f"Epoch {e}, Step {10 * k}, Loss: {3 - 0.1 * k:.4f}\n" for k in range(5 * e - 4, 5 * e + 1)
            )
            + f"Epoch {e} finished: train loss: {3.2 - e:.4f}, val loss: {3.1 - e:.4f}\n"
            for e in (1, 2)
        )
    )
    with open_runs(str(path)) as runs:
        steps = [int(s) for run in runs for _, batch in run.batches for s in batch.step]
    assert steps == list(range(10, 110, 10))
