"""The fused kernels, on a GPU or under triton's interpreter (TRITON_INTERPRET=1 before the process starts).

``make test-integrations`` runs them interpreted; KERNELS_MUST_RUN makes a missing triton a failure.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

has_triton = importlib.util.find_spec("triton") is not None
is_able = has_triton and (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1")
if os.environ.get("KERNELS_MUST_RUN") and not is_able:
    raise pytest.UsageError("KERNELS_MUST_RUN is set, but there is no triton, or neither GPU nor interpreter")

collect_ignore = [] if is_able else ["test_counters.py"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``gpu`` say why they did not run."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and there is none here")
