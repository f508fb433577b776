"""Tests of published tokenizers and chat templates, which are too large for the repository.

They are collected only where the folder PUBLISHED_DATA has them, as models/<checkpoint>/tokenizer.json and the like.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.published_data import PUBLISHED_DATA

if not PUBLISHED_DATA.is_dir():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def published() -> Path:
    """The folder of a folder for each checkpoint."""
    return PUBLISHED_DATA / "models"
