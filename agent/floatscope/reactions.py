"""What a training loop does about findings: a callback, and whether to stop."""

from __future__ import annotations

from floatscope.config import MonitorConfig
from floatscope.findings import FindingBoard
from floatscope.guard import Guard
from floatscope.protocol.judgement import SEVERITIES, BriefFinding


class Reactions:
    """Takes new findings from the board in the training thread, once a step.

    should_stop: turns true with the first finding that is as severe and as sure as the settings ask, and
    stays so.
    """

    def __init__(self, config: MonitorConfig, board: FindingBoard, *, guard: Guard) -> None:
        self.should_stop = False
        self._board = board
        self._on_finding = config.on_finding
        self._from_severity = None if config.stop_on is None else SEVERITIES.index(config.stop_on)
        self._from_confidence = config.stop_confidence
        self._calling = guard.area("on_finding", loses="what your function does about findings")

    def react(self) -> None:
        """Passes on what is new."""
        for finding in self._board.take_new():
            if self._asks_to_stop(finding):
                self.should_stop = True
            if self._on_finding is not None and not self._calling.tripped:
                with self._calling:
                    self._on_finding(finding)

    def _asks_to_stop(self, finding: BriefFinding) -> bool:
        return (
            self._from_severity is not None
            and finding.is_alarm
            and SEVERITIES.index(finding.severity) >= self._from_severity
            and (finding.confidence is None or finding.confidence >= self._from_confidence)
        )
