"""Prompts that cannot be answered are told apart: clients shorten a chat whose prompt is too long."""

from __future__ import annotations

import pytest

from moeinf.engine.answers.prompts import check_length
from moeinf.errors import ContextLengthError, UsageError


def test_an_empty_prompt_is_not_told_as_one_that_is_too_long() -> None:
    with pytest.raises(UsageError, match="empty"):
        check_length(0, 10, 20)
    with pytest.raises(ContextLengthError, match="10 tokens"):
        check_length(10, 10, 20)
    check_length(9, 10, 20)
    with pytest.raises(ContextLengthError, match="8 tokens"):
        check_length(8, 10, 20, room=3)
    check_length(7, 10, 20, room=3)
