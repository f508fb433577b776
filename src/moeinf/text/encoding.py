"""Token ids of text in which control tokens of the template count, and those that others typed are letters."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from moeinf.types import Json

# What tokens swallow beside them: Unicode's White_Space, as tokenizers has it (str.strip takes more).
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Encoder:
    """Encodes the pieces of a text one by one, with the ids that they have in the whole of it."""

    def __init__(self, tokenizer: Tokenizer, control: Sequence[str] = ()) -> None:
        """control: tokens that no letters of others may become, in chats."""
        self._tokenizer, self._control = tokenizer, frozenset(control)
        self._control_ids = {tokenizer.token_to_id(token) for token in control}
        added = tokenizer.get_added_tokens_decoder().values()
        self._swallow_before = tuple(token.content for token in added if token.lstrip)
        self._swallow_behind = tuple(token.content for token in added if token.rstrip)
        self._first, self._further = _pre_tokenizers(tokenizer)

    def chat_ids(self, pieces: Sequence[tuple[str, bool]]) -> list[int]:
        """pieces: as for `ids`; of those with False, the control tokens are pieces of their own.

        A normalizer may make control tokens of other letters, such as wide ones; then all letters are taken apart.
        """
        ids = self.ids(_joined(pieces), specials=False)
        written = [piece for piece, plain in pieces if not plain and piece in self._control]
        if sum(each in self._control_ids for each in ids) > len(written):
            return self.ids([(piece, plain or piece not in self._control) for piece, plain in pieces], specials=False)
        return ids

    def ids(self, pieces: Sequence[tuple[str, bool]], *, specials: bool) -> list[int]:
        """pieces: with True for those whose control tokens are letters; they end where a control token stands.

        specials: whether the tokenizer adds its own to each.
        """
        found: list[int] = []
        for number, (piece, plain) in enumerate(pieces):
            if plain and number and pieces[number - 1][0].endswith(self._swallow_behind):
                piece = piece.lstrip(_SPACES)
            if plain and number + 1 < len(pieces) and pieces[number + 1][0].startswith(self._swallow_before):
                piece = piece.rstrip(_SPACES)
            self._tokenizer.encode_special_tokens = plain
            if self._further is not None:
                self._tokenizer.pre_tokenizer = self._further if number else self._first
            found += self._tokenizer.encode(piece, add_special_tokens=specials).ids
        if self._further is not None:
            self._tokenizer.pre_tokenizer = self._first
        return found


def _joined(pieces: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Joins neighbouring pieces of one kind, so that text without marked tokens is encoded at once."""
    joined: list[tuple[str, bool]] = []
    for text, plain in pieces:
        if joined and joined[-1][1] == plain:
            joined[-1] = (joined[-1][0] + text, plain)
        else:
            joined.append((text, plain))
    return joined


def _pre_tokenizers(tokenizer: Tokenizer) -> tuple[PreTokenizer | None, PreTokenizer | None]:
    """The tokenizer's own, and that for pieces which do not begin the text; None where there is no difference."""
    own = tokenizer.pre_tokenizer
    made = None if own is None else json.loads(bytes(own.__getstate__()))  # not all of the tokenizer, which is large
    further = _without_first(made)
    if further == made:
        return None, None
    bare = json.loads(Tokenizer(BPE()).to_str())
    return own, Tokenizer.from_str(json.dumps(bare | {"pre_tokenizer": further})).pre_tokenizer


def _without_first(value: Json) -> Json:
    """A pre-tokenizer that puts no space in front of the first word of a text."""
    if isinstance(value, list):
        return [_without_first(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _without_first(each) for name, each in value.items()}
    return found | {"prepend_scheme": "never"} if value.get("prepend_scheme") == "first" else found
