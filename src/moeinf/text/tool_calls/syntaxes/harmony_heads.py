"""The heads of harmony's messages: role, channel, recipient, and the kind of their text.

A head is split by its tokens before it is text, since these decode to nothing: in `to=functions.f<|constrain|>json` the
name ends where the token stands. Models also write text where a head should be, or go on with text behind one that no
<|message|> has ended; that text is theirs to show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from moeinf.text.text_stream import TokenStream

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN = "<|constrain|>"  # what the text of a message is: json
_ROLES = ("assistant", "user", "system", "developer", "tool")
_CHANNELS = ("analysis", "commentary", "final")
_KINDS = ("json", "code", "text")
# What may stand behind a token of a head, before its recipient and behind that.
_WORDS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    START: (_ROLES, ()),
    END: (_ROLES, ()),  # where the next <|start|> was forgotten
    CHANNEL: (_CHANNELS, _KINDS),
    CONSTRAIN: (_KINDS, ()),
}
_TO = r"to=[\w./:-]*"
_TO_MODEL = "to=assistant"  # in the head of a tool's result, behind its name
_TOOL = rf"[\w./:-]+(?=\s+{_TO_MODEL}\b)"
_ONE_WORD = re.compile(r"\W*[\w./:-]*\s*")


class _Part:
    """The part of a head behind one of its tokens."""

    def __init__(self, mark: str, prompted: str = "") -> None:
        """prompted: what the prompt has of its text."""
        self.text, self._num_prompted = prompted, len(prompted)
        first, last = _WORDS[mark]
        self._words = (*(() if prompted.strip() else first), *last)
        # Some answers have dashes in front of a channel.
        begins = rf"\W*{_one_of(first)}" if mark == CHANNEL else rf"\s*{_one_of((*first, _TOOL))}"
        self._form = re.compile(rf"(?:{begins}|\s*)(?:\s*{_TO})?(?:\s*{_one_of(last)})?\s*")

    @property
    def num_head_chars(self) -> int:
        """How much of the text has the form of a head, or is the prompt's."""
        match = self._form.match(self.text)
        return max(match.end() if match else 0, self._num_prompted)

    @property
    def may_go_on(self) -> bool:
        """Whether the text may be a part of a head. One unknown word may, as long as no other follows."""
        rest = self.text[self.num_head_chars :]
        if any(word.startswith(rest) for word in (*self._words, "to=")):
            return True
        return _TO_MODEL.startswith(_ONE_WORD.sub("", self.text, count=1))

    @property
    def shown(self) -> str:
        """The text that is no head, once nothing follows."""
        rest = self.text[self.num_head_chars :]
        return "" if any(word.startswith(rest) for word in self._words) else rest


def _one_of(words: Sequence[str]) -> str:
    return rf"(?:(?:{'|'.join(words)})(?!\w))" if words else ""


class Head:
    """A head as far as it has come."""

    def __init__(self, tokenizer: Tokenizer, mark: str, context: Sequence[int] = ()) -> None:
        """mark: the token that begins it. context: the end of the prompt, where that has begun it."""
        self._tokenizer = tokenizer
        self._stream = TokenStream(tokenizer, list(context), skip_special=True)
        self._parts = [_Part(*part) for part in _begun(tokenizer, context) or [(mark, "")]]

    def add_mark(self, mark: str) -> None:
        self._parts.append(_Part(mark))
        self._stream = TokenStream(self._tokenizer, [], skip_special=True)

    def add(self, token: int) -> bool:
        """Takes a token that is no mark; says whether it may be a part of the head."""
        self._parts[-1].text += self._stream.step([token])
        return self._parts[-1].may_go_on

    def end_in_text(self) -> tuple[str, TokenStream]:
        """Ends a head whose last part goes on as text; returns that, and what decodes the tokens behind it."""
        part = self._parts[-1]
        is_role = len(self._parts) > 1 or not self.is_made_up  # and not the first word of a text
        at = part.num_head_chars if is_role else 0
        text, part.text = part.text[at:], part.text[:at]
        return text, self._stream

    def flush(self) -> str:
        """Ends a head that nothing follows; returns the text that was none of it."""
        self._parts[-1].text += self._stream.flush()
        return self._parts[-1].shown

    @property
    def is_analysis(self) -> bool:
        return any(word.lstrip("-–—") == "analysis" for word in self._words())

    @property
    def is_made_up(self) -> bool:
        """Whether it is a message of somebody else, such as a tool's result, which a model makes up now and then."""
        role, behind = [*self._words(), "", ""][:2]
        return role in _ROLES[1:] or (behind == _TO_MODEL and role not in (_ROLES[0], *_CHANNELS))

    @property
    def recipient(self) -> str | None:
        """Whom the message goes to, where it says so."""
        return next((word[3:] for word in self._words() if word.startswith("to=")), None)

    def _words(self) -> Iterator[str]:
        return (word for part in self._parts for word in part.text.split())


def _begun(tokenizer: Tokenizer, context: Sequence[int]) -> list[tuple[str, str]]:
    """The tokens of the head that ends a prompt, each with the text behind it."""
    found: list[tuple[str, list[int]]] = []
    for token in context:
        name = tokenizer.id_to_token(token)
        if name in _WORDS:
            found = [*([] if name == START else found), (name, [])]
        elif found:
            found[-1][1].append(token)
    return [(mark, tokenizer.decode(ids)) for mark, ids in found]
