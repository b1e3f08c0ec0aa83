"""Transformer Engine's real Python package on the CPU; without it these tests are not collected."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    """The package with empty global buffers, no record of casts and its debug API off."""
    _package.manager.reset()
    _package.casts.clear()
    end_debug()
    yield _package
    end_debug()
    _package.manager.reset()


@pytest.fixture
def api(engine: TransformerEngine) -> Any:
    """nvdlfw-inspect, as in a process that has built no module yet."""
    return importlib.import_module("nvdlfw_inspect.api")


def end_debug() -> None:
    """As in a process that has built no module yet and not initialised nvdlfw-inspect."""
    api = importlib.import_module("nvdlfw_inspect.api")
    if api.DEBUG_MANAGER is not None:
        api.end_debug()
    state = importlib.import_module("transformer_engine.debug.pytorch.debug_state")
    state.TEDebugState._reset()
