"""An answer that the client has begun: a last message of the assistant's is continued, whichever API it comes by."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.server.http_errors import Refusal
from moeinf.types import Message

_SAID = ("content", "tool_calls", "reasoning_content")


def begun_answer(
    messages: Sequence[Message], *, continues: bool | None = None, new_turn: bool | None = None
) -> tuple[list[Message], bool]:
    """The chat, and whether its last message is the beginning of the answer. An empty beginning is none.

    continues, new_turn: what the client says of that; None where it says nothing. Raises Refusal for what cannot be.
    """
    if continues and new_turn:
        raise Refusal(400, "continue_final_message and add_generation_prompt are both true; give one of them")
    if not messages:
        raise Refusal(400, "the messages hold nothing that a model reads; give at least one with text")
    last = messages[-1]
    if last["role"] == "assistant" and not any(last.get(name) for name in _SAID):
        messages = messages[:-1]
        if not messages:
            raise Refusal(400, "the only message is an answer that is empty; give one of the user's")
        last = {"role": "nobody"}
    if last["role"] != "assistant":
        _refuse_other_ends(continues=continues, new_turn=new_turn)
        return list(messages), False
    if new_turn or continues is False:
        return list(messages), False
    if last.get("tool_calls"):
        raise Refusal(400, "the last message calls tools; give their results behind it")
    return list(messages), True


def _refuse_other_ends(*, continues: bool | None, new_turn: bool | None) -> None:
    """Raises Refusal for a chat that does not end in an answer, and is to end in no new one either."""
    if continues:
        raise Refusal(400, "continue_final_message: the last message is not the assistant's, or is empty")
    if new_turn is False:
        raise Refusal(400, "add_generation_prompt is false, but the last message is not the beginning of an answer")
