"""Which chats end in the beginning of an answer."""

from __future__ import annotations

import pytest

from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.continuing import begun_answer


def test_a_chat_that_ends_in_a_call_wants_its_result_in_the_words_of_every_api() -> None:
    """Anthropic's are blocks of a user's message, those of the Responses API items: neither has a role for them."""
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(Refusal, match=r"give their results behind it$"):
        begun_answer([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}])
