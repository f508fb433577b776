"""XTML, in which Kimi K3 writes: an answer is elements, whose tags stand between three control tokens.

    <|open|>think<|sep|>...<|close|>think<|sep|><|open|>response<|sep|>...<|close|>response<|sep|>
    <|open|>tools<|sep|>...<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

Its prompt opens the first of them. Letters of a tag are text: only the tokens count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from moeinf.text.text_stream import TOKEN_MARK, Piece, TokenStream
from moeinf.text.thoughts import XTML_TAGS, Tags

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
_MOST_TAG_CHARS = 300
_THINK, _TOOLS = "think", "tools"
_TAG = re.compile(
    rf"{TOKEN_MARK}(?P<kind>{re.escape(OPEN)}|{re.escape(CLOSE)})(?P<name>[^{TOKEN_MARK}]*){TOKEN_MARK}{re.escape(SEP)}"
)


def is_xtml(tokenizer: Tokenizer, tags: Tags | None) -> bool:
    """Whether the template of such tags belongs to a tokenizer that has the tokens."""
    return tags == XTML_TAGS and all(tokenizer.token_to_id(mark) is not None for mark in (OPEN, CLOSE, SEP))


def marks_in(tokenizer: Tokenizer) -> dict[int, str]:
    return {token: mark for mark in (OPEN, CLOSE, SEP) if (token := tokenizer.token_to_id(mark)) is not None}


def begun_in(tokenizer: Tokenizer, context: Sequence[int]) -> str:
    """The name of the element that a prompt which ends with `context` has opened last and not closed, or ""."""
    text = tokenizer.decode(list(context), skip_special_tokens=False)
    tags = re.findall(rf"({re.escape(OPEN)}|{re.escape(CLOSE)})(\w+)[^<]*{re.escape(SEP)}", text)
    return tags[-1][1] if tags and tags[-1][0] == OPEN and tags[-1][1] != "message" else ""


class XtmlStream:
    """Turns token ids into thoughts and answer, and leaves out their tags. Tools come as they are written.

    What stands in `think` is thought; in `response`, and outside of all elements, answer. Space at the ends of a
    thought and in front of the answer behind one is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        """context: the end of the prompt, which may have opened an element."""
        self._text = TokenStream(tokenizer, list(context), skip_special=True, marked=marks_in(tokenizer))
        self._element = begun_in(tokenizer, context)
        self._held = ""
        self._begun = False  # whether something of this element was given out

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return list(self._push(self._text.step(list(ids))))

    def flush(self, *, cut: bool = False) -> list[Piece]:
        pieces = list(self._push(self._text.flush()))
        rest, self._held = self._held, ""
        if cut and TOKEN_MARK in rest:  # a tag that was cut is no text
            rest = rest[: rest.index(TOKEN_MARK)]
        return [*pieces, *self._said(rest.rstrip() if self._element == _THINK else rest)]

    def _push(self, text: str) -> Iterator[Piece]:
        self._held += text
        while (tag := _TAG.search(self._held)) is not None:
            if self._element == _TOOLS and not self._ends(tag):
                before, self._held = self._held[: tag.end()], self._held[tag.end() :]
                yield from self._said(before)
                continue
            before, self._held = self._held[: tag.start()], self._held[tag.end() :]
            yield from self._said(before.rstrip() if self._element == _THINK else before)
            yield from self._entered(tag)
        yield from self._certain()

    def _ends(self, tag: re.Match[str]) -> bool:
        return tag["kind"] == CLOSE and tag["name"] == self._element

    def _entered(self, tag: re.Match[str]) -> Iterator[Piece]:
        """Takes a tag between elements. Those of the message and of elements that end are no text."""
        opens = tag["kind"] == OPEN
        if opens:  # also in a thought, whose end some answers leave out
            self._element = tag["name"]
        if _TOOLS in (tag["name"], self._element):
            yield from self._said(tag[0])
        if not opens:
            self._element = ""
        self._begun = self._begun and not opens

    def _certain(self) -> Iterator[Piece]:
        """Gives out what cannot be the beginning of a tag, nor the space at the end of a thought."""
        at = self._held.find(TOKEN_MARK)
        if at >= 0 and len(self._held) - at > _MOST_TAG_CHARS:
            at = len(self._held)
        text = self._held if at < 0 else self._held[:at]
        text = text.rstrip() if self._element == _THINK else text
        self._held = self._held[len(text) :]
        yield from self._said(text)

    def _said(self, text: str) -> Iterator[Piece]:
        text = text if self._begun or self._element == _TOOLS else text.lstrip()
        if text:
            self._begun = True
            yield Piece(text, thought=self._element == _THINK)
