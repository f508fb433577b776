"""A model folder with a tiny tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.text_models import write_text_model


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """`write_text_model` for this test's folder."""
    return partial(write_text_model, tmp_path)
