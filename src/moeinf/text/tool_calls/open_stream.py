"""Opens what turns the tokens of an answer into text, thoughts and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from moeinf.text.channels.xtml import XtmlStream, is_xtml, marks_in
from moeinf.text.harmony_channels import HarmonyStream, is_harmony
from moeinf.text.thoughts import Tags, ThoughtStream
from moeinf.text.tool_calls.call_stream import CallStream, TextStream
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.whole_json import WholeJson
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
    json_calls: bool = False,
    begun: str = "",
    told: Mapping[int, str] | None = None,
) -> TextStream:
    """Opens a stream for what follows `context`, the end of a prompt.

    tags: of thoughts; None where there are none. answer_tags: of the answer behind a thought. tools: those that may
    be called, in `syntax`; [] where text that looks like a call is text. json_calls: whether an answer that is
    nothing but JSON objects calls the tools that they name. begun: the beginning of the answer that the prompt ends
    with. told: tokens that come out as characters of their own, but for those of the syntax and the tags.
    """
    schemas = ToolSchemas(tools) if tools else None
    if skip_special and is_harmony(tokenizer):
        return HarmonyStream(tokenizer, context, schemas)
    syntax = syntax if schemas is not None else None
    if skip_special and is_xtml(tokenizer, tags):
        tagged = XtmlStream(tokenizer, context)
        return CallStream(tagged, syntax, schemas or ToolSchemas(()), frozenset(marks_in(tokenizer).values()))
    added = tokenizer.get_added_tokens_decoder()
    names = {*(syntax.marks if syntax else ()), *(tags or ())}
    marked = {
        token: entry.content
        for token, entry in added.items()
        if entry.content in names and _is_made(tokenizer, token, entry.content)
    }
    hidden = [
        entry.content for entry in added.values() if skip_special and entry.special and entry.content in (tags or ())
    ]
    stream = ThoughtStream(
        tokenizer,
        context,
        tags,
        skip_special=skip_special,
        marked=marked,
        told=told,
        answer_tags=answer_tags,
        begun=begun,
    )
    calls = CallStream(stream, syntax, schemas or ToolSchemas(()), frozenset(marked.values()), tags, hidden)
    return calls if schemas is None or not json_calls else WholeJson(calls, schemas)


def _is_made(tokenizer: Tokenizer, token: int, mark: str) -> bool:
    """Whether the letters of a mark become its token, which then is all that counts: a model that was trained on the
    letters writes these."""
    tokenizer.encode_special_tokens = False
    return bool(tokenizer.encode(mark, add_special_tokens=False).ids == [token])
