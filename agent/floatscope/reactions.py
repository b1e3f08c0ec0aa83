"""What a training loop does about findings: a callback, and whether to stop."""

from __future__ import annotations

from floatscope.capture import Captures
from floatscope.config import MonitorConfig
from floatscope.findings import FindingBoard
from floatscope.guard import Guard
from floatscope.protocol.judgement import SEVERITIES, BriefFinding

OPEN_CAUSE = "undetermined"  # the confidence of such a finding is that of its best guess, not of the finding


class Reactions:
    """Takes new findings from the board in the training thread, once a step.

    should_stop: turns true with the first finding that is as severe and as sure as the settings ask, and
    stays so until the loop goes back.  is_calling: true while the user's function runs.
    """

    def __init__(
        self, config: MonitorConfig, board: FindingBoard, *, captures: Captures | None = None, guard: Guard
    ) -> None:
        self.should_stop = False
        self.is_calling = False
        self._is_over = False
        self._board = board
        self._captures = captures
        self._on_finding = config.on_finding
        self._from_severity = SEVERITIES.index(config.stop_on) if config.stop_on in SEVERITIES else None
        self._from_confidence = config.stop_confidence
        self._calling = guard.area("on_finding", loses="what your function does about findings")

    def react(self) -> None:
        """Passes on what is new. should_stop is up to date when the function is called."""
        if self.is_calling or self._is_over:
            return
        new = self._board.take_new()
        for finding in new:
            if self._captures is not None:
                self._captures.on_finding(finding)
        self.should_stop = self.should_stop or any(map(self._asks_to_stop, new))
        if self._on_finding is None:
            return
        self.is_calling = True
        try:
            for finding in new:
                if self._is_over or self._calling.tripped:
                    return
                with self._calling:
                    self._on_finding(finding)
        finally:
            self.is_calling = False

    def go_back(self, step: int, *, peak: int) -> None:
        """The loop goes on at ``step`` after ``peak``: what asked to stop was about steps that are gone."""
        self._board.go_back(step, peak=peak)
        self.should_stop = False

    def end(self) -> None:
        """Nothing is called from here on."""
        self._is_over = True

    def _asks_to_stop(self, finding: BriefFinding) -> bool:
        return (
            self._from_severity is not None
            and finding.is_alarm
            and SEVERITIES.index(finding.severity) >= self._from_severity
            and (
                finding.cause == OPEN_CAUSE
                or finding.confidence is None
                or finding.confidence >= self._from_confidence
            )
        )
