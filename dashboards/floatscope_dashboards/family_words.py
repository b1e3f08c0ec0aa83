"""Families of findings as people read them."""

from __future__ import annotations

from collections.abc import Mapping

from floatscope_dashboards.say import later

FAMILIES: Mapping[str, str] = {
    "input_nan": later("Non-finite input"),
    "scale_calibration_blowup": later("Scales and calibration"),
    "slow_truncation_drift": later("Slow loss of precision"),
    "activation": later("Activations"),
    "data": later("Data"),
    "optimization": later("Optimization"),
    "kernel": later("Kernels and communication"),
    "hardware": later("Hardware and ranks"),
    "undetermined": later("Cause not determined"),
}
"""Family -> its words, in the order in which they are shown; said when shown."""
