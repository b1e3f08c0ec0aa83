"""TensorBoard event files, as its writers make them and as they get damaged."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from pathlib import Path

import pytest

from floatscope_diagnostics.readers.crc32c import crc32c, masked
from floatscope_diagnostics.readers.run_log import UnreadableLog
from tests.diagnostics.read_back import read_one
from tests.diagnostics.tracker_files import event, events, field, first_event, simple, tensor, tfrecord

LOSS = {s: 3.0 - s / 64 for s in range(0, 100, 2)}


def write(folder: Path, data: bytes, name: str = "events.out.tfevents.1700000000.host.1.0") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4 uses the same polynomial


def test_scalars_keep_their_steps_times_and_names(tmp_path: Path) -> None:
    val = {50: 2.5, 98: 2.25}
    run = read_one(write(tmp_path, events({"train/loss": LOSS, "eval/loss": val, "custom": {4: 7.0}})))
    assert run.format == "tensorboard"
    assert run.curves["loss"] == LOSS
    assert run.curves["eval_loss"] == val
    assert run.curves["custom"] == {4: 7.0}
    assert run.times[4] == 1.7e9 + 4
    assert run.mapping == {"train/loss": "loss", "eval/loss": "eval_loss"}


@pytest.mark.parametrize(
    ("proto", "value"),
    [
        (field(1, 1) + field(4, struct.pack("<f", 2.5)), 2.5),
        (field(1, 2) + field(4, struct.pack("<d", 0.1)), 0.1),
        (field(1, 1) + field(2, b"") + field(5, struct.pack("<f", 2.5)), 2.5),
        (field(1, 1) + field(5, 2.5), 2.5),
        (field(1, 2) + field(6, 0.1, double=True), 0.1),
        (field(1, 3) + field(7, -5), -5.0),
        (field(1, 9) + field(10, b"\x07"), 7.0),
        (field(1, 9) + field(4, struct.pack("<q", -3)), -3.0),
        (field(1, 19) + field(13, 0x4100), 2.5),
        (field(1, 14) + field(13, 0x4020), 2.5),
        (field(1, 14) + field(4, b"\x20\x40"), 2.5),
        (field(1, 19) + field(4, b"\x00\x7e"), math.nan),
        (field(1, 10) + field(11, 1), 1.0),
    ],
)
def test_scalars_of_version_2_in_every_type(tmp_path: Path, proto: bytes, value: float) -> None:
    run = read_one(write(tmp_path, first_event() + event(3, 1.7e9, tensor("loss", proto))))
    assert run.curves["loss"][3] == pytest.approx(value, nan_ok=True)


def test_text_pictures_and_whole_tensors_are_passed_over(tmp_path: Path) -> None:
    text = tensor("text", field(1, 7) + field(8, "hello"))
    many = tensor("pr", field(1, 1) + field(4, struct.pack("<3f", 1, 2, 3)))
    picture = field(1, "im") + field(4, field(4, b"\x89PNG"))
    run = read_one(write(tmp_path, first_event() + event(1, 1.7e9, text, many, picture, simple("loss", 2.0))))
    assert set(run.curves) == {"loss"}


def test_nan_and_inf_stay_what_they_are(tmp_path: Path) -> None:
    run = read_one(write(tmp_path, events({"loss": {1: math.nan, 2: math.inf, 3: 0.0}})))
    assert math.isnan(run.curves["loss"][1])
    assert run.curves["loss"][2] == math.inf
    assert run.curves["loss"][3] == 0.0


def test_a_file_that_was_being_written_is_read_to_its_last_whole_record(tmp_path: Path) -> None:
    data = events({"loss": LOSS})
    run = read_one(write(tmp_path, data[:-7]))
    assert run.steps[-1] == 96
    assert any("cut off" in n for n in run.notes)


def test_a_damaged_record_is_passed_over_and_counted(tmp_path: Path) -> None:
    data = bytearray(events({"loss": LOSS}))
    data[len(data) // 2] ^= 0x55
    run = read_one(write(tmp_path, bytes(data)))
    assert len(run.steps) >= len(LOSS) - 2
    assert any("damaged" in n for n in run.notes)


def test_rubbish_between_records_is_passed_over(tmp_path: Path) -> None:
    parts = [first_event(), *(event(s, 1.7e9, simple("loss", v)) for s, v in LOSS.items())]
    parts.insert(20, random.Random(1).randbytes(5000))
    run = read_one(write(tmp_path, b"".join(parts)))
    assert run.curves["loss"] == LOSS


def test_several_files_of_a_folder_are_one_run_with_its_restart(tmp_path: Path) -> None:
    write(tmp_path, events({"loss": {s: 2.0 for s in range(10)}}), "run/events.out.tfevents.1700000001.a")
    write(tmp_path, events({"loss": {s: 1.0 for s in range(6, 15)}}), "run/events.out.tfevents.1700000002.a")
    write(tmp_path, b"", "run/events.out.tfevents.1700000003.a")
    run = read_one(tmp_path)
    assert run.steps == [*range(10), *range(6, 15)]
    assert any("1 of 3 files could not be read" in n for n in run.notes)


def test_training_and_validation_folders_are_one_run(tmp_path: Path) -> None:
    write(tmp_path, events({"epoch_loss": {0: 2.0, 1: 1.5}}), "logs/train/events.out.tfevents.1.a.v2")
    write(tmp_path, events({"epoch_loss": {0: 2.5, 1: 2.0}}), "logs/validation/events.out.tfevents.2.a.v2")
    run = read_one(tmp_path)
    assert run.curves == {"loss": {0: 2.0, 1: 1.5}, "eval_loss": {0: 2.5, 1: 2.0}}


def test_losses_of_reinforcement_learning_are_not_judged(tmp_path: Path) -> None:
    run = read_one(write(tmp_path, events({"loss": LOSS, "rollout/ep_rew_mean": LOSS})))
    assert "loss" not in run.curves
    assert run.curves["curve/loss"] == LOSS


def test_points_without_a_step_are_counted(tmp_path: Path) -> None:
    data = first_event() + b"".join(event(None, 1.7e9, simple("loss", float(k))) for k in range(5))
    run = read_one(write(tmp_path, data))
    assert run.curves["loss"] == {k: float(k) for k in range(5)}
    assert any("without a step" in n for n in run.notes)


def test_curves_over_samples_are_left_out(tmp_path: Path) -> None:
    curves = {"lm loss": LOSS, "lm loss vs samples": {s * 512: v for s, v in LOSS.items()}}
    run = read_one(write(tmp_path, events(curves)))
    assert run.steps == list(LOSS)


def test_curves_that_play_against_each_other_are_no_loss(tmp_path: Path) -> None:
    run = read_one(write(tmp_path, events({"Loss/generator": LOSS, "Loss/discriminator": LOSS})))
    assert "loss" not in run.curves
    assert any("play against each other" in n for n in run.notes)


def test_a_single_curve_called_loss_is_the_loss_and_the_user_may_say_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, events({"my_model/xent_loss": LOSS, "other": LOSS}))
    assert read_one(path).curves["loss"] == LOSS
    assert "my_model/xent_loss" in read_one(path, mapping={"other": "loss"}).curves
    with pytest.raises(UnreadableLog, match="has no curve 'nothing'; it has my_model/xent_loss, other"):
        read_one(path, mapping={"nothing": "loss"})


def test_a_file_without_scalars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="no scalar"):
        read_one(write(tmp_path, first_event() * 3))


def test_absurd_steps_and_names_are_left_out(tmp_path: Path) -> None:
    data = first_event() + event(-5, 1.7e9, simple("loss", 1.0)) + event(1, 1.7e9, simple("a\x00b", 1.0))
    data += event(2, 1.7e9, simple("loss", 2.0), simple("step", 9.0))
    run = read_one(write(tmp_path, data))
    assert run.curves == {"loss": {2: 2.0}, "curve/step": {2: 9.0}}
    assert len(run.notes) >= 2


def test_a_record_that_claims_to_be_huge_takes_no_memory(tmp_path: Path) -> None:
    huge = bytearray(tfrecord(b"x"))
    length = struct.pack("<Q", 1 << 30)
    huge[:12] = length + struct.pack("<I", masked(crc32c(length)))
    run = read_one(write(tmp_path, events({"loss": LOSS}) + bytes(huge)))
    assert run.curves["loss"] == LOSS
    assert any("cut off" in n for n in run.notes)


def test_any_damage_gives_a_run_or_a_refusal(tmp_path: Path) -> None:
    data = events({"train/loss": LOSS, "lr": LOSS})
    for seed in range(60):
        rng = random.Random(seed)
        bad = bytearray(data[: rng.randrange(16, len(data))])
        for _ in range(rng.randrange(6)):
            bad[rng.randrange(16, len(bad)) if len(bad) > 16 else 0] = rng.randrange(256)
        with contextlib.suppress(UnreadableLog):
            read_one(write(tmp_path, bytes(bad)))
