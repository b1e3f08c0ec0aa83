"""Transformer Engine's real Python package on the CPU; without it these tests are not collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.te_contract.te_cpu import TransformerEngine

collect_ignore_glob = [] if importlib.util.find_spec("transformer_engine") else ["test_*.py"]


@pytest.fixture(scope="session")
def _package() -> TransformerEngine:
    from tests.te_contract.te_cpu import TransformerEngine

    return TransformerEngine()


@pytest.fixture
def engine(_package: TransformerEngine) -> Iterator[TransformerEngine]:
    """The package with empty global buffers and no record of casts."""
    _package.manager.reset()
    _package.casts.clear()
    yield _package
    _package.manager.reset()
