"""Opens what turns the tokens of an answer into text, thoughts and calls."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from moeinf.text.harmony_channels import HarmonyStream, is_harmony
from moeinf.text.thoughts import Tags, ThoughtStream
from moeinf.text.tool_calls.call_stream import CallStream, TextStream
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import JsonMapping


def open_stream(
    tokenizer: Tokenizer,
    context: Sequence[int],
    *,
    skip_special: bool,
    tags: Tags | None,
    answer_tags: Tags | None = None,
    syntax: Syntax | None,
    tools: Sequence[JsonMapping],
) -> TextStream:
    """Opens a stream for what follows `context`, the end of a prompt.

    tags: of thoughts; None where there are none. answer_tags: of the answer behind a thought. tools: those that may
    be called, in `syntax`; [] where text that looks like a call is text.
    """
    schemas = ToolSchemas(tools) if tools else None
    if skip_special and is_harmony(tokenizer):
        return HarmonyStream(tokenizer, context, schemas)
    syntax = syntax if schemas is not None else None
    added = tokenizer.get_added_tokens_decoder()
    names = {*(syntax.marks if syntax else ()), *(tags or ())}
    marked = {token: entry.content for token, entry in added.items() if entry.content in names}
    hidden = [
        entry.content for entry in added.values() if skip_special and entry.special and entry.content in (tags or ())
    ]
    stream = ThoughtStream(tokenizer, context, tags, skip_special=skip_special, marked=marked, answer_tags=answer_tags)
    return CallStream(stream, syntax, schemas or ToolSchemas(()), frozenset(marked.values()), tags, hidden)
