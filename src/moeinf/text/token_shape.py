"""How few tokens a text can have, told by its length: encoding megabytes takes minutes with some tokenizers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeinf.types import JsonMapping

if TYPE_CHECKING:  # for whoever has loaded it
    from tokenizers import Tokenizer
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

# Bytes of a text for one byte of what a normalizer makes of it, at most. Composed letters of the canonical forms have a
# third of the bytes; the compatible forms make an ASCII letter of a mathematical one as well.
_SHRINKS = {"NFC": 3, "NFD": 3, "NFKC": 12, "NFKD": 12, "Prepend": 1}


@dataclass(frozen=True, slots=True)
class TokenShape:
    """num_bytes: bytes of UTF-8 that a token stands for at most. spaces: whether white space counts."""

    num_bytes: int
    spaces: bool

    def least_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least."""
        return len((text if self.spaces else "".join(text.split())).encode(errors="replace")) // self.num_bytes


def token_shape(tokenizer: Tokenizer) -> TokenShape | None:
    """The shape of a tokenizer's tokens; None where one token may stand for any length of text.

    That is so of unknown words and runs of unknown letters, and where letters are left out. What a tokenizer makes of
    every byte has neither.
    """
    vocabulary = tokenizer.get_vocab()
    splits, shrinks = _is_whole(_state(tokenizer.pre_tokenizer)), _shrinks(_state(tokenizer.normalizer))
    if not splits or shrinks is None:
        return None
    if _is_byte_level(_state(tokenizer.pre_tokenizer)) and type(tokenizer.model).__name__ == "BPE":
        complete = all(letter in vocabulary for letter in _byte_letters())
        longest = max(map(len, vocabulary), default=0)  # a letter for each byte
    else:
        complete = _falls_back(tokenizer.model) and all(f"<0x{value:02X}>" in vocabulary for value in range(256))
        longest = max((len(token.encode()) for token in vocabulary), default=0)
    added = list(tokenizer.get_added_tokens_decoder().values())
    longest = max([longest, *(len(token.content.encode()) for token in added)])
    swallows = any(token.lstrip or token.rstrip for token in added)
    return TokenShape(longest * shrinks, spaces=not swallows) if complete else None


def _state(part: PreTokenizer | Normalizer | Model | None) -> JsonMapping:
    """A part of a tokenizer as tokenizer.json has it, {} for none."""
    found: JsonMapping = {} if part is None else json.loads(bytes(part.__getstate__()))
    return found


def _is_whole(state: JsonMapping) -> bool:
    """Whether a pre-tokenizer leaves nothing of the text out."""
    kind = state.get("type", "")
    if kind == "Sequence":
        return all(map(_is_whole, state["pretokenizers"]))
    if kind in ("Split", "Punctuation"):
        return bool(state["behavior"] != "Removed")
    return kind in ("", "ByteLevel", "Metaspace", "Digits")


def _is_byte_level(state: JsonMapping) -> bool:
    return state.get("type") == "ByteLevel" or any(map(_is_byte_level, state.get("pretokenizers", ())))


def _shrinks(state: JsonMapping) -> int | None:
    """Bytes that a normalizer makes one byte of, at most; None for any number."""
    kind = state.get("type", "Prepend")
    if kind == "Sequence":
        product = 1
        for part in state["normalizers"]:
            factor = _shrinks(part)
            if factor is None:
                return None
            product *= factor
        return product
    if kind == "Replace":
        pattern = state["pattern"].get("String")
        return None if pattern is None or len(state["content"].encode()) < len(pattern.encode()) else 1
    return _SHRINKS.get(kind)


def _falls_back(model: Any) -> bool:
    """Whether a model writes the bytes of what it has no token for."""
    kind = type(model).__name__
    return bool(kind == "BPE" and model.byte_fallback) or (kind == "Unigram" and bool(_state(model)["byte_fallback"]))


def _byte_letters() -> list[str]:
    """The letters by which byte-level tokenizers write the 256 bytes (GPT-2's bytes_to_unicode)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(value) for value in shown] + [chr(256 + i) for i in range(256 - len(shown))]
