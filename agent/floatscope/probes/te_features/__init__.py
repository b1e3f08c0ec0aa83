"""The folder that nvdlfw-inspect loads features from: it runs every file in here by itself."""

from __future__ import annotations

from pathlib import Path


def directory() -> str:
    """This folder, for the ``feature_dirs`` of ``nvdlfw_inspect.api.initialize``."""
    return str(Path(__file__).resolve().parent)
