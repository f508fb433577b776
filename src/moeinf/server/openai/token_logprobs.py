"""How probable the tokens of a text were, as completions without a chat tell it."""

from __future__ import annotations

import codecs

from moeinf.server.ask import Chance, Chosen
from moeinf.types import JsonObject


class TokenLogprobs:
    """Four lists with an element for each token: its text, the logarithm of its probability, those of the likeliest
    tokens and of itself, and how many characters of the answer were whole before it. A token that is a part of a
    character only is told by its bytes, as OpenAI does."""

    def __init__(self) -> None:
        self._tokens = list[Chosen]()
        self._characters, self._before = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def add(self, token: Chosen) -> None:
        self._tokens.append(token)

    def taken(self) -> JsonObject:
        """Of the tokens that were added since the last time."""
        tokens, self._tokens = self._tokens, []
        return {
            "tokens": [_text(each.token) for each in tokens],
            "token_logprobs": [each.token.logprob for each in tokens],
            "top_logprobs": [{_text(other): other.logprob for other in (*each.top, each.token)} for each in tokens],
            "text_offset": [self._offset(each.token) for each in tokens],
        }

    def _offset(self, token: Chance) -> int:
        offset = self._before
        self._before += len(self._characters.decode(token.token))
        return offset


def _text(chance: Chance) -> str:
    try:
        return chance.token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in chance.token)
