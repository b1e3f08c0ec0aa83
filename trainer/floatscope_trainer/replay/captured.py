"""A captured batch in the place of the one that a run draws itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from floatscope.protocol.capture_folder import (
    BATCH_PREFIX,
    RANDOM_PREFIX,
    TENSORS_FILE,
    CaptureInfo,
    read_info,
)
from floatscope.protocol.errors import ProtocolError
from floatscope_trainer.data import TokenBatch
from floatscope_trainer.faults.fault import Fault


class CaptureError(ValueError):
    """A capture that cannot be replayed; the message names the file and what is wrong."""


class CapturedBatch(Fault):
    """Trains the captured micro-batches of one step, with the random state they met.

    info: what is known of the capture.  is_same: whether the run would have drawn the same batch; None before
    the step.
    """

    def __init__(self, folder: Path) -> None:
        self.info, self._tensors = read_capture(folder)
        self.is_same: bool | None = None

    def begin_step(self, step: int) -> None:
        """Puts the random state back."""
        state = self._tensors.get(f"{RANDOM_PREFIX}torch")
        if step == self.info.step and state is not None:
            torch.set_rng_state(state)

    def batch(self, step: int, micro: int, batch: TokenBatch) -> TokenBatch:
        """The captured micro-batch of that number."""
        ids = self._tensors.get(f"{BATCH_PREFIX}{micro}/input_ids")
        labels = self._tensors.get(f"{BATCH_PREFIX}{micro}/labels")
        if step != self.info.step or ids is None or labels is None:
            return batch
        is_same = torch.equal(ids, batch.ids) and torch.equal(labels, batch.labels)
        self.is_same = is_same and self.is_same is not False
        return replace(batch, ids=ids, labels=labels)


def read_capture(folder: Path) -> tuple[CaptureInfo, dict[str, Tensor]]:
    """A capture's description and tensors. Raises CaptureError."""
    try:
        info = read_info(folder)
        return info, load_file(folder / TENSORS_FILE)
    except FileNotFoundError as error:
        raise CaptureError(
            f"{folder}: not a capture ({error.filename} is missing); give the folder of one, "
            "as in .../captures/step120-rank0"
        ) from error
    except ProtocolError as error:
        raise CaptureError(str(error)) from error
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"{folder}: its tensors cannot be read ({error})") from error
