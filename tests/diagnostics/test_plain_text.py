"""The generic text reader: what it takes from lines people write by hand."""

from __future__ import annotations

import math

import pytest

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD
from floatscope_diagnostics.readers.lines import plain_text
from floatscope_diagnostics.readers.lines.plain_text import MAX_CHARS, REFUSED, PlainText, certainty
from floatscope_diagnostics.readers.piece import EVAL, TRAIN, Piece
from floatscope_diagnostics.readers.template import MAX_LEARNT
from floatscope_diagnostics.readers.words import Pair, pairs


def read(*lines: str) -> list[Piece]:
    parser = PlainText()
    return [piece for n, text in enumerate(lines) for piece in parser.line(n, text)]


def place(piece: Piece) -> tuple[int | None, float | None, int | None, int | None]:
    return piece.step, piece.epoch, piece.batch, piece.batches


@pytest.mark.parametrize(
    ("line", "where", "values"),
    [
        ("step 10: loss 2.31, lr 3e-4", (10, None, None, None), {"loss": 2.31, "lr": 3e-4}),
        ("Epoch [3/10] Step [200/500] Loss: 0.53", (None, 3, 200, 500), {"loss": 0.53}),
        ("[123/1000] loss=0.53", (None, None, 123, 1000), {"loss": 0.53}),
        ("[0/25][7/782] Loss: 1.5 acc: 2", (None, 0, 7, 782), {"loss": 1.5, "acc": 2}),
        ("[1,  2000] loss: 2.196", (None, 1, 2000, None), {"loss": 2.196}),
        ("Train Epoch: 1 [2560/60000 (4%)]\tLoss: 0.5", (None, 1, 2560, 60000), {"loss": 0.5}),
        ("100: loss 2.5", (100, None, None, None), {"loss": 2.5}),
        ("{'step': 20, 'loss': tensor(2.4, device='cuda:0')}", (20, None, None, None), {"loss": 2.4}),
        ('{"iter": 7, "train/loss": 1.5}', (7, None, None, None), {"loss": 1.5}),
        ("INFO:root:iteration 1,200 loss 2.5", (1200, None, None, None), {"loss": 2.5}),
        ("10:00:00 | INFO | main:train:42 - Step 5 - loss: 1.25", (5, None, None, None), {"loss": 1.25}),
        ("05/01 10:00:00 Step: 5 | Loss: 1 | Tokens: 1M", (5, None, None, None), {"loss": 1, "tokens": 1e6}),
        ("step 5 loss 1.0 time (ms): 160", (5, None, None, None), {"loss": 1.0, "step_time_s": 0.16}),
        ("step 5 loss 1.0 acc 55.3%", (5, None, None, None), {"loss": 1.0}),
        ("step 5 loss: 1.0 acc: 55.3%", (5, None, None, None), {"loss": 1.0, "acc_pct": 55.3}),
        ("epoch 2, cls loss 0.3, total loss 0.5", (None, 2, None, None), {"cls loss": 0.3, "loss": 0.5}),
        ("step=9 loss=1.5 epoch=0.25", (9, 0.25, None, None), {"loss": 1.5}),
        ("Iteration 180, loss = -6.5e+02", (180, None, None, None), {"loss": -650.0}),
        ("[rank3]: step 5 loss 2.0", (5, None, None, None), {"loss": 2.0}),
    ],
)  # fmt: skip
def test_a_line(line: str, where: tuple[float | None, ...], values: dict[str, float]) -> None:
    (piece,) = read(line)
    assert place(piece) == where
    assert dict(piece.values) == pytest.approx(values)
    assert piece.kind == TRAIN
    assert piece.rank == (3 if "rank" in line else None)


@pytest.mark.parametrize(
    "line",
    ["Iter 10, loss = [nan]", "loss   nan | ppl nan", "step 3 loss: NaN", "loss=-nan", "loss = -1.#IND00"],
)
def test_nan_in_its_spellings(line: str) -> None:
    (piece,) = read(line)
    assert math.isnan(piece.values["loss"])


def test_infinity_and_zero_are_themselves() -> None:
    (first, second) = read("step 1 loss: inf", "step 2 loss: 0.0")
    assert first.values["loss"] == math.inf
    assert second.values["loss"] == 0.0


def test_train_and_validation_on_one_line() -> None:
    (piece,) = read("step 10: train loss 0.53 | val loss 0.61")
    assert dict(piece.values) == {"loss": 0.53, "eval_loss": 0.61}


def test_a_line_of_an_evaluation() -> None:
    (piece,) = read("Validation: loss 1.8 accuracy: 41.2%")
    assert piece.kind == EVAL
    assert dict(piece.values) == {"eval_loss": 1.8, "val_accuracy_pct": 41.2}


def test_what_a_line_does_not_say_it_has_from_its_header() -> None:
    lines = ("Epoch 2/10", "-" * 10, "train Loss: 0.6 Acc: 0.7", "val Loss: 0.5 Acc: 0.8")
    parser = PlainText()
    found = [parser.line(n, text) for n, text in enumerate(lines)]
    assert found[0] is HELD
    pieces = [p for x in found for p in x]
    assert [(p.epoch, p.kind) for p in pieces] == [(2, TRAIN), (2, EVAL)]


@pytest.mark.parametrize(
    "line",
    [
        "Saving checkpoint at step 1000 to out",
        "Training on 4 GPUs",
        "batch_size: 32",
        "learning rate: 0.001",
        "Iteration 200 took 3.4 seconds",
        "loss function: CrossEntropy",
        "the quick brown fox",
        "version 1.2.3 of the loss",
        "-" * 80,
    ],
)
def test_no_record(line: str) -> None:
    assert read(line) == []


def test_losses_that_should_not_fall_keep_their_names() -> None:
    (gan,) = read("epoch 1 D_loss: 0.5 G_loss: 1.2")
    (policy,) = read("Episode 10 reward: 5.0 loss: 0.4")
    assert "loss" not in gan.values
    assert "play against each other" in str(gan.note)
    assert "loss" not in policy.values
    assert "rewards" in str(policy.note)


def test_names_that_were_mapped_are_told() -> None:
    parser = PlainText()
    parser.line(1, "Step: 1 | Train Loss: 2.0 | Learning Rate: 0.1")
    assert parser.mapping == {"Train Loss": "loss", "Learning Rate": "lr"}


def test_each_of_our_names_goes_to_one_name_of_the_log() -> None:
    first, second = read("step 1 loss: 2.0", "step 1 total_loss: 5.0")
    assert dict(first.values) == {"loss": 2.0}
    assert dict(second.values) == {"total_loss": 5.0}


def test_learnt_templates_read_what_the_slow_way_reads() -> None:
    lines = [
        f"2024-01-01 10:00:{k % 60:02d},{k} INFO step {k}/9000 (x{k}) loss: {k / 7:.4f} lr={k}e-5"
        for k in range(300)
    ]
    fresh = [piece for text in lines for piece in PlainText().line(1, text)]
    assert read(*lines) == fresh
    assert [p.step for p in fresh] == list(range(300))


def test_a_log_of_ever_other_lines_is_still_read() -> None:
    lines = [f"{'x' * (k % 300)}, step {k}, loss: {k}.5" for k in range(3 * MAX_LEARNT)]
    assert [p.values["loss"] for p in read(*lines)] == [k + 0.5 for k in range(3 * MAX_LEARNT)]


@pytest.mark.parametrize(
    "line",
    ["a " * 40_000, "1" * 70_000, "[" * 70_000, "loss " * 20_000, "1/" * 40_000, "=" * 70_000, "a=1 " * 9000,
     "x" * 70_000, "- " * 40_000, "10:" * 30_000, "aaaa bbbb cccc dddd eeee ffff gggg " * 2_000],
)  # fmt: skip
def test_no_line_takes_long(line: str) -> None:
    for _ in range(20):  # a pattern that backtracks would take minutes
        read(line[:MAX_CHARS], "step 1 loss 2 " + line)


def test_certainty() -> None:
    assert certainty(Head(b"step 1 loss: 2\nstep 2 loss: 2\nstep 3 loss: 1\n")) == 0.3
    assert certainty(Head(b"step 1 loss: 2\n")) == 0.2
    assert certainty(Head(b"loss nan\n")) == 0.1
    assert certainty(Head(b"batch_size: 32\nlearning rate: 0.1\n")) == 0.0


def test_a_probe_reads_only_what_says_its_step_and_then_no_old_step_is_lent() -> None:
    parser = PlainText()
    assert [p.step for p in parser.line(1, "step 5 loss 2.0")] == [5]
    assert list(parser.probe().line(2, "val loss 2.5")) == []
    assert [p.step for p in parser.line(3, "val loss 2.5")] == [5]
    assert [p.step for p in parser.probe().line(4, "step 900 loss 1.0")] == [900]
    assert [p.step for p in parser.line(5, "val loss 1.5")] == [None]


@pytest.mark.parametrize(
    ("word", "value"), [("1.#INF", math.inf), ("-1.#INF00", -math.inf), ("1.#QNAN0", math.nan)]
)
def test_numbers_of_the_old_microsoft_runtime(word: str, value: float) -> None:
    (piece,) = read(f"step 3, loss: {word}, lr 0.1")
    assert piece.values["loss"] == pytest.approx(value, nan_ok=True)
    assert piece.values["lr"] == 0.1


def test_a_printed_tensor_is_its_number() -> None:
    found = read(
        "step 1 loss tensor(2.31, device='cuda:0', grad_fn=<NllLossBackward0>) lr 0.1",
        "step 2 loss tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>) lr 0.1",
    )
    assert [(p.step, sorted(p.values)) for p in found] == [(1, ["loss", "lr"]), (2, ["loss", "lr"])]
    assert found[0].values["loss"] == 2.31
    assert math.isnan(found[1].values["loss"])


def test_lines_that_are_no_records_again_and_again_are_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[str] = []

    def counting(text: str, begin: int) -> list[Pair]:
        looked_at.append(text)
        return pairs(text, begin)

    monkeypatch.setattr(plain_text, "pairs", counting)
    lines = [
        text
        for k in range(100)
        for text in (f"step {k} loss {k}.5", f"WARNING worker {k % 8} error in shard-{k}: retry {k}")
    ]
    assert [(p.step, p.values) for p in read(*lines)] == [(k, {"loss": k + 0.5}) for k in range(100)]
    assert len(looked_at) == 1 + REFUSED
