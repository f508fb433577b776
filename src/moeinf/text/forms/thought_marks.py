"""The tokens by which thoughts are known while an answer is made: so that they can be bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from moeinf.text.channels.xtml import begun_in, is_xtml, marks_in
from moeinf.text.harmony_channels import in_head
from moeinf.text.thoughts import Tags, state_behind, tag_ids
from moeinf.text.tool_calls.syntaxes.harmony_heads import CHANNEL, END, MESSAGE, START


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """opens, closes: the tokens that begin and end a thought, behind which others follow that are no part of it.

    ends: what is written where a thought is to end now. opened: whether the prompt has begun one.
    """

    opens: tuple[int, ...]
    closes: int
    ends: tuple[int, ...]
    opened: bool


def marks_of_tags(tokenizer: Tokenizer, context: Sequence[int], tags: Tags, begun: str = "") -> ThoughtMarks | None:
    """None where the tags are written in letters. begun: as of `state_behind`."""
    if is_xtml(tokenizer, tags):
        return _marks_of_xtml(tokenizer, context)
    ids = tag_ids(tokenizer, tags)
    if ids is None:
        return None
    opened = state_behind(tokenizer, context, tags, begun) in ("opened", "thought")
    return ThoughtMarks((ids[0],), ids[1], (ids[1],), opened)


def _marks_of_xtml(tokenizer: Tokenizer, context: Sequence[int]) -> ThoughtMarks:
    """Of Kimi K3: behind the first token of the tag that closes a thought stand the others, and the answer's tag."""
    opens, closes, sep = marks_in(tokenizer)
    think, response = (list(tokenizer.encode(name, add_special_tokens=False).ids) for name in ("think", "response"))
    ends = (closes, *think, sep, opens, *response, sep)
    return ThoughtMarks((opens, *think, sep), closes, ends, begun_in(tokenizer, context) == "think")


def marks_of_harmony(tokenizer: Tokenizer, context: Sequence[int]) -> ThoughtMarks | None:
    """Of gpt-oss: its analysis begins with a channel of that name, and what follows it is the final message."""
    controls = {name: tokenizer.token_to_id(name) for name in (START, CHANNEL, MESSAGE, END)}
    if None in controls.values() or not in_head(tokenizer, context):
        return None

    def letters(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    start, channel, message, end = (int(token) for token in controls.values() if token is not None)
    ends = (end, start, *letters("assistant"), channel, *letters("final"), message)
    return ThoughtMarks((channel, *letters("analysis"), message), end, ends, opened=False)
