"""Text from outside made harmless; the report itself is in ``reports``."""

from __future__ import annotations

from floatscope_diagnostics.reports.terminal import WIDTH, Style, plain

__all__ = ["WIDTH", "Style", "plain"]
