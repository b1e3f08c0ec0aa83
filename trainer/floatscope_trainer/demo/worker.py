"""A process that trains one run after the other: a job a line on standard input, progress as JSON lines on
output.

One process for many runs, because importing torch costs as much as sixty steps.
"""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any, TextIO

from floatscope_trainer.cli import main as train
from floatscope_trainer.training import StepRecord


class JsonProgress:
    """Tells the parent about every step."""

    def __init__(self, output: TextIO, *, run: str) -> None:
        self._output, self._run = output, run

    def __enter__(self) -> JsonProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def show(self, record: StepRecord) -> None:
        """One line. The loss is text, since JSON has no NaN."""
        tell(self._output, {"run": self._run, "step": record.step, "loss": str(record.loss)})


def tell(output: TextIO, message: dict[str, Any]) -> None:
    """Writes a message as one line at once."""
    output.write(json.dumps(message) + "\n")
    output.flush()


def work(jobs: TextIO, output: TextIO) -> None:
    """Trains until `jobs` ends."""
    for line in jobs:
        job = json.loads(line)
        code = 0
        for argv in job["commands"]:
            code = code or _train(argv, JsonProgress(output, run=job["run"]))
        tell(output, {"run": job["run"], "exit": code})


def _train(argv: list[str], progress: JsonProgress) -> int:
    try:
        return train(argv, progress=progress)
    except SystemExit as error:  # argparse has refused the options
        return int(error.code or 0)


def main() -> int:
    """What a run prints goes to standard error, so that it does not mix with the messages."""
    output, sys.stdout = sys.stdout, sys.stderr
    work(sys.stdin, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
