"""What is shown of an answer: its text, and its thoughts apart from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from moeinf.text.text_stream import Piece
from moeinf.text.tokenizer import TextStream, Tokenizer


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if not piece.thought)


def all_text(stream: TextStream, ids: Sequence[int]) -> str:
    return "".join(text_of(stream.step(token)) for token in ids) + text_of(stream.flush())


def apart(pieces: Iterable[Piece]) -> tuple[str, str]:
    """What was thought, and what was answered."""
    pieces = list(pieces)
    return "".join(piece.text for piece in pieces if piece.thought), text_of(pieces)


def shown(folder: Path, answer: str, prompt: str = "<|start|>assistant") -> tuple[str, str]:
    """What was thought, and what was answered, where `answer` goes on behind the text of `prompt`."""
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode(prompt, control_tokens=True))
        pieces = [piece for token in tokenizer.encode(answer, control_tokens=True) for piece in stream.step(token)]
        return apart([*pieces, *stream.flush()])


def shown_in_chat(
    folder: Path, answer: str, *, chat: bool = True, variables: dict[str, object] | None = None
) -> tuple[str, str]:
    """What was thought, and what was answered, where `answer` answers a turn that the chat template rendered."""
    with Tokenizer(folder) as tokenizer:
        prompt, _ = tokenizer.render([{"role": "user", "content": "hi"}], variables)
        stream = tokenizer.stream(tokenizer.encode_chat(prompt), chat=chat)
        ids = tokenizer.encode(answer, control_tokens=True, bos=False)
        return apart([*(piece for token in ids for piece in stream.step(token)), *stream.flush()])
