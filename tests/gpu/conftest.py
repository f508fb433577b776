"""Tests of what only a GPU can show. They run by themselves (`make gpu-test`): Triton's interpreter must be off."""

from __future__ import annotations

import os

import pytest
import torch


def missing() -> str:
    """Why the tests cannot run here; empty where they can."""
    if os.environ.get("TRITON_INTERPRET") and not os.environ.get("REHEARSED"):  # which tests/rehearsal sets
        return "Triton's interpreter is on, as other tests need it: `make gpu-test` runs these by themselves"
    return "" if torch.cuda.is_available() else "no CUDA device"


@pytest.fixture(autouse=True, scope="session")
def gpu() -> torch.device:
    reason = missing()
    if reason:
        pytest.skip(reason)
    return torch.device("cuda", 0)
