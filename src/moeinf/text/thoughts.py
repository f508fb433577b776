"""Tells thoughts from the answer where a model writes them between tags, such as <think>...</think>."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from tokenizers import Tokenizer

from moeinf.text.stops import num_begun
from moeinf.text.text_stream import Piece, TokenStream

Tags = tuple[str, str]  # what opens a thought, and what closes it
_TAGS: tuple[Tags, ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3's
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere's
    ("<|channel>", "<channel|>"),  # Gemma 4's
    ("<ifm|think>", "</ifm|think>"),  # K2 Horizon's
)
_SHORTER: Mapping[Tags, tuple[Tags, ...]] = {  # which a template opens instead, where less thinking is asked for; a
    # model may close those with the tag of the longest, too
    _TAGS[-1]: (("<ifm|think_fast>", "</ifm|think_fast>"), ("<ifm|think_faster>", "</ifm|think_faster>"))
}
_LABELS = {"<|channel>": "thought"}  # words that follow a tag, and are no part of the thought
_HUNYUAN: Tags = ("<think:opensource>", "</think:opensource>")  # whose template puts the names of tokens together
SOLAR_TAGS: Tags = ("<|think|>", "<|end|>")  # which also end other messages
SOLAR_BEGIN, SOLAR_CONTENT = "<|begin|>", "<|content|>"  # what begins a message, and an answer in one
XTML_TAGS: Tags = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")  # Kimi K3's, whose template puts them together
_RESPONSE: Tags = ("<response>", "</response>")  # Granite 3.3's, around what it says behind its thought
_AGAIN: Tags = ("assistant", SOLAR_TAGS[1])  # Solar's answer is a message of its own: <|begin|>assistant<|content|>


def tags_of(template: str) -> Tags | None:
    """Returns the tags by which a chat template knows thoughts; None for a model that does not think.

    The closing tag decides: some templates have no other, as the model opens its thought unasked.
    """
    if "'</think{}>'" in template and "':opensource'" in template:
        return _HUNYUAN
    if "'<|open|>' + tag" in template and "'think'" in template:
        return XTML_TAGS
    if f"{SOLAR_BEGIN}assistant{SOLAR_TAGS[0]}" in template:
        return SOLAR_TAGS
    return next((tags for tags in _TAGS if tags[1] in template), None)


def without_label(thought: str, tags: Tags) -> str:
    """A whole thought without the word that follows the tag that opens it."""
    return thought.strip().removeprefix(_LABELS.get(tags[0], "")).lstrip()


def answer_tags_of(template: str) -> Tags | None:
    """Returns the tags that a chat template has a model put its answer between, behind a thought; None for others."""
    if tags_of(template) == SOLAR_TAGS:
        return _AGAIN
    return _RESPONSE if _RESPONSE[0] in template else None


def tag_ids(tokenizer: Tokenizer, tags: Tags) -> tuple[int, int] | None:
    """Returns the tokens of the tags; None where they are written in letters, as none but added tokens are found."""
    ids = {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    return (ids[tags[0]], ids[tags[1]]) if ids.keys() >= set(tags) else None


def opened_by(tokenizer: Tokenizer, context: Sequence[int], tags: Tags) -> Tags:
    """Returns the tags of the thought that a prompt's end has opened: these, or those of a shorter thought."""
    if tags not in _SHORTER:
        return tags
    prompt = tokenizer.decode(list(context), skip_special_tokens=False).rstrip()
    return next((each for each in _SHORTER[tags] if prompt.endswith(each)), tags)


def state_behind(
    tokenizer: Tokenizer, context: Sequence[int], tags: Tags, begun: str = ""
) -> Literal["begin", "opened", "thought", "closed"]:
    """Returns whether a prompt that ends with `context` has opened a thought, or closed it; else it may begin.

    begun: the beginning of the answer, with which the prompt ends, and which may end in the middle of a "thought".
    """
    opens = begun.rfind(tags[0])
    if opens >= 0 and opens > begun.rfind(tags[1]) and begun[opens + len(tags[0]) :].strip():
        return "thought"
    prompt = tokenizer.decode(list(context), skip_special_tokens=False).rstrip()
    opened = prompt.removesuffix(_LABELS.get(tags[0], "")).endswith(tags[0])
    return "opened" if opened else "closed" if prompt.endswith(tags[1]) else "begin"


class ThoughtStream:
    """Turns token ids into pieces of text, each of which is either thought or answer.

    A thought is what the prompt's end has opened, or what opens the answer; tags elsewhere are text. An answer that
    begins with the closing tag, as MiniMax-M3's do, has no thought. Where the tags are tokens of the vocabulary only
    those count, and not their letters. Space around a thought is dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int],
        tags: Tags | None,
        *,
        skip_special: bool,
        marked: Mapping[int, str] | None = None,
        told: Mapping[int, str] | None = None,
        answer_tags: Tags | None = None,
        begun: str = "",
    ) -> None:
        """context: the end of the prompt. tags: None where everything is text. marked, told: as for TokenStream.

        answer_tags: are taken off an answer behind a thought. begun: as of `state_behind`.
        """
        self._answer = _Unwrapped(answer_tags) if answer_tags else None
        self._tokenizer, self._skip_special, self._marked, self._told = tokenizer, skip_special, marked, told
        self._text = self._token_stream(context)
        self._held = ""  # text that is not yet known to be thought or answer
        self._has_thought = False
        self._state: Literal["begin", "opened", "thought", "closed", "text"] = "text"
        self._letters: Tags | None = None  # the tags, where they are no tokens
        self._label = _LABELS.get(tags[0], "") if tags else ""  # until it has come
        self._ids: tuple[int, int] | None = None
        self._closing = set[int]()
        if tags is not None:
            longest, tags = tags, opened_by(tokenizer, context, tags)
            self._state = state_behind(tokenizer, context, tags, begun)
            self._has_thought = self._state == "closed"
            self._label = "" if self._state in ("opened", "thought") else self._label  # which the prompt then has
            self._ids = tag_ids(tokenizer, tags)
            self._closing = {ids[1] for ids in (self._ids, tag_ids(tokenizer, longest)) if ids}
            self._letters = tags if self._ids is None else None

    def _token_stream(self, context: Sequence[int]) -> TokenStream:
        return TokenStream(
            self._tokenizer, list(context), skip_special=self._skip_special, marked=self._marked, told=self._told
        )

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return [piece for token in ids for piece in self._step_one(token)]

    def _step_one(self, token: int) -> Iterator[Piece]:
        if self._ids is not None and token == self._ids[0] and self._state == "begin" and not self._held.strip():
            self._held, self._state = "", "opened"
            self._text = self._token_stream([])
        elif self._ids is not None and token == self._ids[0] and self._state == "opened" and not self._held.strip():
            pass  # once more, behind the prompt's own
        elif token in self._closing and self._closes_nothing():
            self._held, self._state = "", "closed"
            self._text = self._token_stream([])
        elif token in self._closing and self._state in ("opened", "thought"):
            yield from self._close(self._held + self._text.flush())
            self._text = self._token_stream([])
        else:
            yield from self._push(self._text.step([token]))

    def _closes_nothing(self) -> bool:
        """Whether a closing tag that comes now closes no thought, but opens the answer, or comes once more."""
        return self._state in ("begin", "closed") and not self._held.strip()

    def _push(self, text: str) -> Iterator[Piece]:
        self._held += text
        if self._state == "begin":
            self._open()
        if self._state in ("opened", "thought"):
            yield from self._think()
        if self._state == "closed":
            self._leave_thought()
        if self._state == "text" and self._held:
            text, self._held = self._held, ""
            yield from self._said(text)

    def _open(self) -> None:
        """Leaves the beginning of the answer once it is clear whether a thought opens it."""
        start, (opens, closes) = self._held.lstrip(), self._letters or ("", "")
        if opens and start.startswith(opens):
            self._held, self._state = start[len(opens) :], "opened"
        elif closes and start.startswith(closes):
            self._held, self._state = start[len(closes) :], "closed"
        elif start and not opens.startswith(start) and not closes.startswith(start):
            self._state = "text"

    def _think(self) -> Iterator[Piece]:
        """Yields the text of a thought, but holds back what may be the space or the tag at its end."""
        if self._state == "opened":
            self._held = self._held.lstrip()
            opens = self._letters[0] if self._letters else ""
            if opens and self._held.startswith(opens):
                self._held = self._held[len(opens) :].lstrip()
            elif opens.startswith(self._held):
                return
            if self._held.startswith(self._label):
                self._held, self._label = self._held[len(self._label) :].lstrip(), ""
            elif self._label.startswith(self._held):
                return
            self._state = "thought" if self._held else "opened"
        tag = self._letters[1] if self._letters else ""
        thought, found, rest = self._held.partition(tag) if tag else (self._held, "", "")
        if found:
            yield from self._close(thought)
            self._held = rest
            return
        shown = self._held[: len(self._held) - num_begun(self._held, (tag,))].rstrip()
        self._held = self._held[len(shown) :]
        if shown:
            yield Piece(shown, thought=True)

    def _leave_thought(self) -> None:
        """Leaves what stands behind a thought once it is no space, and not its closing tag once more."""
        rest, closes = self._held.lstrip(), self._letters[1] if self._letters else ""
        while closes and rest.startswith(closes):
            rest = rest[len(closes) :].lstrip()
        self._held = rest
        if rest and not closes.startswith(rest):
            self._state = "text"

    def _said(self, text: str) -> Iterator[Piece]:
        shown = self._answer.push(text) if self._answer and self._has_thought else text
        if shown:
            yield Piece(shown)

    def _close(self, thought: str) -> Iterator[Piece]:
        self._held, self._state, self._has_thought = "", "closed", True
        if thought := thought.rstrip():
            yield Piece(thought, thought=True)

    def flush(self, *, cut: bool = False) -> list[Piece]:
        """Returns what was held back, when no more comes; bytes that never became characters become U+FFFD."""
        pieces = list(self._push(self._text.flush()))
        if rest := self._held if self._state != "closed" else self._held.lstrip():
            pieces.append(Piece(rest, thought=self._state in ("opened", "thought")))
        if self._answer and (held := self._answer.flush()):
            pieces.append(Piece(held))
        return pieces


class _Unwrapped:
    """Takes the tags off text that stands between them. Other text, and text behind them, stays as it is."""

    def __init__(self, tags: Tags) -> None:
        self._opens, self._closes = tags
        self._held = ""
        self._state: Literal["begin", "inside", "behind"] = "begin"

    def push(self, text: str) -> str:
        """Takes text, which begins with no space; returns what can be shown now."""
        text, self._held = self._held + text, ""
        if self._state == "begin":
            if text.startswith(self._opens):
                text, self._state = text[len(self._opens) :], "inside"
            elif self._opens.startswith(text):
                self._held = text
                return ""
            else:
                self._state = "behind"
        if self._state == "inside":
            inner, found, behind = text.partition(self._closes)
            if found:
                self._state = "behind"
                return inner.rstrip() + behind
            shown = text[: len(text) - num_begun(text, (self._closes,))].rstrip()
            self._held = text[len(shown) :]
            return shown
        return text

    def flush(self) -> str:
        """Returns what was held back, when no more comes."""
        held, self._held = self._held, ""
        return held
