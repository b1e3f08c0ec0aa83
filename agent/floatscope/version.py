"""The installed version of floatscope."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """As in pyproject.toml; ``0+unknown`` when the package runs without having been installed."""
    try:
        return metadata.version("floatscope")
    except metadata.PackageNotFoundError:
        return "0+unknown"
