"""Values inside a tqdm bar: Lightning, diffusers' ``Steps:  10%|#| 100/1000 [.., loss=0.12, lr=1e-5]``,
NeMo and loops of one's own.

``Epoch 0:  17%|##  | 3/18 [00:14<01:13,  4.87s/it, loss=10.047, v_num=193315]``
A bar is drawn again before and after its values change: of each position the last drawing counts. Lightning
before 2.0 shows the mean of the last 20 losses. Bars of validation show the training's values and are passed
over; lines between the bars may name the losses of an epoch in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from floatscope_diagnostics.readers.head import Head
from floatscope_diagnostics.readers.line_format import HELD, LineFormat
from floatscope_diagnostics.readers.lines import epoch_blocks
from floatscope_diagnostics.readers.numbers import NUMBER, to_float, to_int
from floatscope_diagnostics.readers.pairs import COLON, EQUALS, pairs, renamed
from floatscope_diagnostics.readers.piece import EVAL, Piece

_BAR = re.compile(
    r"^(?P<desc>[^\n]{0,300}?)\s{0,4}\d{1,3}%\|[^|\n]{0,400}\|\s{0,4}(?P<n>\d{1,12})/(?P<of>\d{1,12})\s{0,4}\[(?P<rest>.*)$"
)
# Lightning's rich bar: Epoch 0/9 ---- 18/18 0:00:10 * 0:00:00 1.5it/s train_loss: 2.3
_RICH = re.compile(
    r"^(?P<desc>[^\u2501\n]{0,200}?)\s\u2501[\u2501\u2578\u257a\s]{0,200}\s(?P<n>\d{1,12})/(?P<of>\d{1,12})\s(?P<rest>.*)$"
)
_COUNT = re.compile(r"^(?P<desc>[^|\n]{0,200}?):?\s(?P<n>\d{1,12})it \[(?P<rest>.*)$")
_DRAWN = (("\u2501", _RICH), ("%|", _BAR), ("it [", _COUNT))  # what each needs is quicker to look for
_EPOCH = re.compile(r"\bepoch\W{0,3}(\d{1,9})", re.I)
_DESC_LOSS = re.compile(rf"\bloss\W{{0,3}}({NUMBER})", re.I)
_OTHER = re.compile(
    r"\b(?:valid\w{0,7}|val|eval\w{0,7}|test\w{0,4}|sanity|predict\w{0,4}|sampling|map|tokeniz\w{0,5})\b",
    re.I,
)
_OURS = {
    "train_loss": "loss", "train/loss": "loss", "train_loss_step": "loss", "reduced_train_loss": "loss",
    "loss_step": "loss", "train/loss_step": "loss", "val_loss": "eval_loss", "valid_loss": "eval_loss",
    "learning_rate": "lr", "step_loss": "loss", "t_loss": "loss", "v_num": None, "consumed_samples": None,
    "s": "step_time_s",  # NeMo's "train_step_timing in s"
}  # fmt: skip
_AGAINST = "losses of networks that play against each other: not judged as a falling loss"
_SMOOTH = "Lightning's bar shows the mean of the last 20 losses (before version 2.0)"


def certainty(head: Head) -> float:
    """Fairly sure of several bars that hold a loss."""
    others = [line for line in head.lines if _read(line) is None]
    drawn = len(head.lines) - len(others)
    if drawn < 2:
        return 0.4 if drawn else 0.0
    blocks = sum(bool(epoch_blocks.read_values(line, None)) for line in others if "%|" not in line)
    return 0.7 if drawn > 2 * blocks else 0.4


def _read(text: str) -> Piece | None:
    bar = next(filter(None, (pattern.match(text) for mark, pattern in _DRAWN if mark in text)), None)
    if bar is None or _OTHER.search(bar["desc"]):
        return None
    values = renamed(pairs(bar["rest"], COLON if bar.re is _RICH else EQUALS), _OURS)
    in_desc = _DESC_LOSS.search(bar["desc"])
    value = to_float(in_desc[1]) if in_desc else None
    if value is not None:
        values.setdefault("loss", value)
    if not any("loss" in name.lower() for name in values) or int(bar["n"]) == 0:
        return None
    counted = values.pop("global_step", None)
    epoch = _EPOCH.search(bar["desc"])
    return Piece(
        values,
        step=to_int(str(counted)) if counted is not None else None,
        epoch=float(epoch[1]) if epoch else None,
        batch=int(bar["n"]),
        batches=int(bar["of"]) if "of" in bar.groupdict() else None,
        note=_note(text, values),
    )


def _note(text: str, values: Mapping[str, float]) -> str | None:
    if "loss" not in values and any(n.lower().startswith(("d_loss", "loss_d", "disc")) for n in values):
        return _AGAINST
    return _SMOOTH if "v_num=" in text and " loss=" in text else None


class Parser:
    """Holds one position of the bar until the next is drawn."""

    def __init__(self) -> None:
        self._held: Piece | None = None
        self._shown: float | None = None  # the evaluation loss that the bar repeats

    def line(self, number: int, text: str) -> Iterable[Piece]:
        piece = _read(text)
        if piece is None:
            if "%|" in text or self._held is None:
                return ()
            words = epoch_blocks.read_values(text, self._held.epoch)
            return (*self.end(), *(p for p in words if p.kind == EVAL))
        held = self._held
        same = held is not None and (held.epoch, held.batch) == (piece.epoch, piece.batch)
        out = () if same else self.end()
        self._held = piece
        return out or HELD

    def end(self) -> tuple[Piece, ...]:
        held, self._held = self._held, None
        if held is None:
            return ()
        values = dict(held.values)
        shown = values.pop("eval_loss", None)
        pieces = [replace(held, values=values)] if values else []
        if shown is not None and shown != self._shown:
            self._shown = shown
            pieces.append(replace(held, values={"eval_loss": shown}, kind=EVAL, note=None))
        return tuple(pieces)


FORMAT = LineFormat("tqdm", "progress bars with a loss", certainty, Parser)
