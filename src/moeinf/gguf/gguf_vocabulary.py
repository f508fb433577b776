"""The vocabulary in a GGUF file's metadata: tokens, kinds, merges and roles, checked field by field."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf, Value
from moeinf.gguf.metadata import texts_of
from moeinf.gguf.pretokenizers import OF_ARCHITECTURES, PRE_TOKENIZERS, PreTokenizer
from moeinf.turn_ends import TURN_ENDS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of tokens
_MARK = re.compile("<\\|[^|<>\\s]+\\|>|<\uff5c[^\uff5c<>\\s]+\uff5c>|<start_of_turn>|<\\|turn>|\\[BOS\\]")
_MOST_TOKENS = 1_000_000
# Models of tokenizers whose tokens are texts with marks in place of spaces; bytes have tokens where a letter has none.
_OF_PIECES = ("llama", "gemma4")
_PIECES_OF_GPT2 = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")  # pre-tokenizers with which gpt2 is the same
_DEFAULTS = {"bos": 1, "eos": 2, "unknown": 0}  # of llama
_ROLES = ("bos", "eos", "unknown", "padding", "eot", "eom")


def quiet(line: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the metadata say, checked as far as one field goes."""

    where: str
    metadata: Mapping[str, Value]
    tokens: Sequence[str]
    types: Sequence[int]
    model: str  # gpt2, llama or gemma4
    pre: PreTokenizer
    note: Callable[[str], None]
    merges: Sequence[tuple[str, str]] = ()  # none of llama, whose order is that of scores
    roles: Mapping[str, int | None] = field(default_factory=dict)  # ids, by what they are for

    @staticmethod
    def of(gguf: Gguf, note: Callable[[str], None]) -> Vocabulary:
        """Raises CheckpointError for what is damaged, UnsupportedModelError for what is not known."""
        where, metadata = gguf.where, gguf.metadata
        tokens = texts_of(metadata, "tokenizer.ggml.tokens", where)
        if not tokens:
            raise CheckpointError(f"{where} has no tokenizer (tokenizer.ggml.tokens); take a file that has one")
        types: Any = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        if len(tokens) > _MOST_TOKENS or not isinstance(types, array | list) or len(types) != len(tokens):
            raise CheckpointError(
                f"{where}: tokenizer.ggml.token_type must have a number for each token; the file is damaged"
            )
        kinds = [  # old converters filled vocabularies up with tokens that they called user-defined
            UNUSED if kind == USER_DEFINED and token == f"[PAD{number}]" else kind
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        ]
        model, pre = _model_of(gguf)
        found = Vocabulary(where, metadata, tokens, kinds, model, pre, note)
        found = replace(found, merges=() if model == "llama" else found._read_merges())
        found = replace(found, types=found._kinds())
        return replace(found, roles={name: found._role(name) for name in _ROLES})

    @property
    def of_pieces(self) -> bool:
        return self.model in _OF_PIECES

    # ---- single fields

    def text(self, name: str) -> str:
        value = self.metadata.get(name, "")
        if not isinstance(value, str):
            raise CheckpointError(f"{self.where}: {name} is {value!r:.100}; must be a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.where}: tokenizer.ggml.{name} is {value!r:.100}; must be true or false")
        return value

    def special(self, role: str) -> int | None:
        """The id of a token with a role; None where no token has it."""
        return self.roles[role]

    @property
    def adds_bos(self) -> bool:
        return self.flag("add_bos_token", self.pre.begins)

    @property
    def adds_eos(self) -> bool:
        return self.flag("add_eos_token", False)

    def named_templates(self) -> list[dict[str, str]]:
        names = texts_of(self.metadata, "tokenizer.chat_templates", self.where)
        return [{"name": name, "template": self.text(f"tokenizer.chat_template.{name}")} for name in names]

    # ---- what several fields say together

    def _role(self, role: str) -> int | None:
        """An id that is none of a token is refused where texts are given it, else left out, as llama.cpp does."""
        default = _DEFAULTS.get(role) if self.model == "llama" else None
        default = None if default is None or default >= len(self.tokens) else default
        value = self.metadata.get(f"tokenizer.ggml.{role}_token_id", default)
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        if type(value) is int and 0 <= value < len(self.tokens):
            return value
        said = f"{self.where}: tokenizer.ggml.{role}_token_id is {value!r:.50}, and there are {len(self.tokens)} tokens"
        if (role == "bos" and self.adds_bos) or (role == "eos" and self.adds_eos):
            raise CheckpointError(f"{said}, though it is added to texts; the file is damaged")
        self.note(f"{said}; it is left out")
        return default

    def _kinds(self) -> list[int]:
        """The kinds of tokens, with control tokens that the file calls words: by name, or as nothing joins them."""
        control = [
            number
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if (token in TURN_ENDS and kind in (NORMAL, USER_DEFINED)) or (kind == NORMAL and _MARK.fullmatch(token))
        ]
        joined = self._joined({self.tokens[number] for number in control} - TURN_ENDS)
        control = [number for number in control if self.tokens[number] not in joined]
        if not control:
            return list(self.types)
        more = f" and {len(control) - 1} more" if len(control) > 1 else ""
        self.note(
            f"{self.where}: {self.tokens[control[0]]}{more} are taken for control tokens, which the file calls words "
            "(tokenizer.ggml.token_type)"
        )
        chosen = set(control)
        return [CONTROL if number in chosen else kind for number, kind in enumerate(self.types)]

    def _joined(self, tokens: set[str]) -> set[str]:
        """Those which shorter ones make, so that a text can hold them as a word."""
        if self.model != "llama":
            return tokens & {left + right for left, right in self.merges} if tokens else set()
        known = set(self.tokens)
        return {
            token for token in tokens if any(token[:at] in known and token[at:] in known for at in range(1, len(token)))
        }

    def _read_merges(self) -> list[tuple[str, str]]:
        """Those of known tokens; others can join nothing."""
        said = texts_of(self.metadata, "tokenizer.ggml.merges", self.where)
        if not said:
            raise CheckpointError(
                f"{self.where} says nothing of how letters are joined (tokenizer.ggml.merges); take a file of a newer "
                "llama.cpp, or pull the checkpoint that it was made from"
            )
        known = {token for token, kind in zip(self.tokens, self.types, strict=True) if kind != UNUSED}
        found, lost = [], []
        for merge in said:
            left, _, right = merge[1:].partition(" ")
            left = merge[:1] + left
            if left in known and right in known and left + right in known:
                found.append((left, right))
            else:
                lost.append(merge)
        if lost and not found:
            raise CheckpointError(
                f"{self.where}: the merge {lost[0]!r:.100} is of no two tokens, and neither is any other; the file is "
                "damaged"
            )
        if lost:
            self.note(
                f"{self.where}: {len(lost)} of {len(said)} merges are of no two tokens, such as {lost[0]!r:.100}; they "
                "are left out"
            )
        return found


def _model_of(gguf: Gguf) -> tuple[str, PreTokenizer]:
    """How the tokenizer works, and how it cuts texts."""
    where, model, pre = gguf.where, *(gguf.metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model in _OF_PIECES:
        return str(model), PreTokenizer((), begins=True)
    if model != "gpt2":
        raise UnsupportedModelError(
            f"{where} has a tokenizer of model {model!r:.50}, and moeinf builds gpt2, llama and gemma4; "
            "pull the checkpoint that it was made from"
        )
    if pre in _PIECES_OF_GPT2:
        return "gemma4", PreTokenizer(())
    pair = (str(gguf.metadata.get("general.architecture")), str(pre))
    found = OF_ARCHITECTURES.get(pair, PRE_TOKENIZERS.get(pair[1]))
    if found is None and pre is None:
        raise UnsupportedModelError(
            f"{where} names no pre-tokenizer (tokenizer.ggml.pre), without which words would be cut by a guess; "
            "take a file of a newer llama.cpp, or pull the checkpoint that it was made from"
        )
    if found is None:
        raise UnsupportedModelError(
            f"{where} has the pre-tokenizer {pre!r:.50} (tokenizer.ggml.pre), which this version does not build; "
            "pull the checkpoint that it was made from (docs/contributing/gguf.md has the names that it builds)"
        )
    return "gpt2", found
