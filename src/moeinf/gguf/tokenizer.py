"""The tokenizer and its small configs out of the metadata of a GGUF file."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf, Value
from moeinf.gguf.metadata import shortest, texts_of
from moeinf.gguf.pretokenizers import OF_ARCHITECTURES, PRE_TOKENIZERS, PreTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # token types
_MOST_TOKENS, _LONGEST_PIECE = 1_000_000, 128
_SPACE = "\u2581"  # that SentencePiece writes for a space
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_SPECIALS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# Control tokens that end an answer, which files with one eos_token_id do not list; <|end|> is left to moeinf.text,
# since in gpt-oss it ends a message and not the answer.
_ENDS = {
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek's
    "[EOT]",  # Kimi's
    "[EOS]",
    "<turn|>",  # Gemma's
}
# Models of tokenizers whose tokens are texts with marks in place of spaces; bytes have tokens where a letter has none.
_OF_PIECES = ("llama", "gemma4")
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3.5


def tokenizer_files(gguf: Gguf) -> Mapping[str, bytes]:
    """tokenizer.json, tokenizer_config.json, generation_config.json and, if there is one, chat_template.jinja.

    Raises CheckpointError for a tokenizer that moeinf cannot build, naming it.
    """
    source = _Source.of(gguf)
    config = source.config()
    files: dict[str, Any] = {"tokenizer.json": source.tokenizer(), "generation_config.json": source.generation()}
    found = {}
    template, named = source.text("tokenizer.chat_template"), source.named_templates()
    if named:
        config["chat_template"] = [{"name": "default", "template": template}] * bool(template) + named
    elif template:
        found["chat_template.jinja"] = template.encode()
    files["tokenizer_config.json"] = config
    return found | {name: json.dumps(value, ensure_ascii=False).encode() for name, value in files.items()}


@dataclass(frozen=True, slots=True)
class _Source:
    """What the metadata say, checked as far as one field goes."""

    where: str
    metadata: Mapping[str, Value]
    tokens: Sequence[str]
    types: Sequence[int]
    model: str  # gpt2, llama or gemma4
    pre: PreTokenizer

    @staticmethod
    def of(gguf: Gguf) -> _Source:
        where, metadata = gguf.where, gguf.metadata
        model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        tokens = texts_of(metadata, "tokenizer.ggml.tokens", where)
        if not tokens:
            raise CheckpointError(f"{where} has no tokenizer (tokenizer.ggml.tokens); take a file that has one")
        types: Any = metadata.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
        if len(tokens) > _MOST_TOKENS or not isinstance(types, array | list) or len(types) != len(tokens):
            raise CheckpointError(
                f"{where}: tokenizer.ggml.token_type must have a number for each token; the file is damaged"
            )
        if model in _OF_PIECES:
            chosen = PreTokenizer((), begins=True)
        elif model == "gpt2":
            pair = (str(metadata.get("general.architecture")), str(pre))
            found = OF_ARCHITECTURES.get(pair, PRE_TOKENIZERS.get(pair[1]))
            if found is None:
                what = "names no pre-tokenizer" if pre is None else f"has the pre-tokenizer {pre!r:.50}"
                raise UnsupportedModelError(
                    f"{where} {what} (tokenizer.ggml.pre), and moeinf builds {', '.join(PRE_TOKENIZERS)}; "
                    "take a file of a newer llama.cpp, or pull the checkpoint that it was made from"
                )
            chosen = found
        else:
            raise UnsupportedModelError(
                f"{where} has a tokenizer of model {model!r:.50}, and moeinf builds gpt2, llama and gemma4; "
                "pull the checkpoint that it was made from"
            )
        kinds = [  # old converters filled vocabularies up with tokens that they called user-defined
            _UNUSED if kind == _USER_DEFINED and token == f"[PAD{number}]" else kind
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        ]
        return _Source(where, metadata, tokens, kinds, str(model), chosen)

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

    def id_of(self, name: str, default: int | None = None) -> int | None:
        """The id of a token with a role; None where no token has it."""
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise CheckpointError(
                f"{self.where}: tokenizer.ggml.{name}_token_id is {value!r:.50} of {len(self.tokens)}; is damaged"
            )
        return value

    def special(self, name: str) -> int | None:
        defaults = {"bos": 1, "eos": 2, "unknown": 0} if self.model == "llama" else {}
        default = defaults.get(name)
        return self.id_of(name, default if default is not None and default < len(self.tokens) else None)

    @property
    def adds_bos(self) -> bool:
        return self.flag("add_bos_token", self.pre.begins)

    def named_templates(self) -> list[dict[str, str]]:
        names = texts_of(self.metadata, "tokenizer.chat_templates", self.where)
        return [{"name": name, "template": self.text(f"tokenizer.chat_template.{name}")} for name in names]

    # ---- files

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self.adds_bos and self.special("bos") is not None,
            "add_eos_token": self.flag("add_eos_token", False),
        }
        for name, role in _SPECIALS.items():
            number = self.special(role)
            if number is not None:
                found[f"{name}_token"] = self.tokens[number]
        return found

    def generation(self) -> dict[str, Any]:
        named = [number for number in range(len(self.tokens)) if self._ends_answers(number)]
        ends = [self.special("eos"), self.id_of("eot"), self.id_of("eom"), *named]
        found: dict[str, Any] = {"eos_token_id": sorted({number for number in ends if number is not None})}
        for name, role in (("bos", "bos"), ("pad", "padding")):
            number = self.special(role)
            if number is not None:
                found[f"{name}_token_id"] = number
        asked = {}
        for name, field in _SAMPLING.items():
            value = self.metadata.get(f"general.sampling.{name}")
            if type(value) in (int, float):
                asked[field] = shortest(value) if isinstance(value, float) else value
        return found | ({"do_sample": True} | asked if asked else {})

    def _ends_answers(self, number: int) -> bool:
        return self.types[number] == _CONTROL and self.tokens[number] in _ENDS

    def tokenizer(self) -> dict[str, Any]:
        vocabulary = self._vocabulary()
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            "normalizer": self._normalizer(),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(self.pre.steps)} if self.pre.steps else None,
            "post_processor": self._post_processor(),
            "decoder": self._decoder(),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": self._unknown() if self.model in _OF_PIECES else None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": self.model in _OF_PIECES,
                "byte_fallback": self.model in _OF_PIECES,
                "ignore_merges": self.pre.whole_words,
                "vocab": vocabulary,
                "merges": self._merges_of_scores(vocabulary) if self.model == "llama" else self._merges(vocabulary),
            },
        }

    def _vocabulary(self) -> dict[str, int]:
        """All tokens that have a meaning, added ones among them, so that every token keeps its number."""
        found: dict[str, int] = {}
        for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind == _UNUSED:
                continue
            if found.setdefault(token, number) != number:
                raise CheckpointError(
                    f"{self.where}: tokens {found[token]} and {number} are both {token!r:.50}; the file is damaged"
                )
        return found

    def _unknown(self) -> str | None:
        number = self.special("unknown")
        return None if number is None else self.tokens[number]

    def _added(self) -> list[dict[str, Any]]:
        strips = self.metadata.get("general.architecture") == "phimoe"  # as published; files do not say it
        added = (_UNKNOWN, _CONTROL, _USER_DEFINED)
        return [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and kind != _UNKNOWN and token not in _UNSTRIPPED,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in added and token
        ]

    def _normalizer(self) -> dict[str, Any] | None:
        if self.model == "gpt2":
            return {"type": "NFC"} if self.pre.composes else None
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        prefix = (
            [{"type": "Prepend", "prepend": _SPACE}] if self.flag("add_space_prefix", self.model == "llama") else []
        )
        return {"type": "Sequence", "normalizers": [*prefix, spaces]}

    def _decoder(self) -> dict[str, Any]:
        if self.model == "gpt2":
            return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        strip = (
            [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
            if self.flag("add_space_prefix", self.model == "llama")
            else []
        )
        spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}

    def _post_processor(self) -> dict[str, Any] | None:
        """The tokens around a text."""
        bos = self.special("bos") if self.adds_bos else None
        eos = self.special("eos") if self.flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return None

        def around(name: str, kind: int) -> list[dict[str, Any]]:
            text = [{"Sequence": {"id": name, "type_id": kind}}]
            before, behind = (
                [] if number is None else [{"SpecialToken": {"id": self.tokens[number], "type_id": kind}}]
                for number in (bos, eos)
            )
            return [*before, *text, *behind]

        tokens = {
            self.tokens[number]: {"id": self.tokens[number], "ids": [number], "tokens": [self.tokens[number]]}
            for number in (bos, eos)
            if number is not None
        }
        single, second = around("A", 0), around("B", 1)
        return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": tokens}

    def _merges(self, vocabulary: Mapping[str, int]) -> list[list[str]]:
        merges = []
        for merge in texts_of(self.metadata, "tokenizer.ggml.merges", self.where):
            left, _, right = merge[1:].partition(" ")
            left = merge[:1] + left
            if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
                raise CheckpointError(
                    f"{self.where}: the merge {merge!r:.100} is of no two tokens; the file is damaged"
                )
            merges.append([left, right])
        return merges

    def _merges_of_scores(self, vocabulary: Mapping[str, int]) -> list[list[str]]:
        """SentencePiece joins the two neighbours whose union has the highest score: as merges, in that order."""
        scores = self.metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, array) or len(scores) != len(self.tokens):
            raise CheckpointError(
                f"{self.where}: tokenizer.ggml.scores must have a number for each token; the file is damaged"
            )
        pieces = {
            token: number
            for token, number in vocabulary.items()
            if self.types[number] in (_NORMAL, _USER_DEFINED) and len(token) <= _LONGEST_PIECE
        }
        found = []
        for token, number in pieces.items():
            halves = [
                (pieces[token[:at]], pieces[token[at:]], token[:at], token[at:])
                for at in range(1, len(token))
                if token[:at] in pieces and token[at:] in pieces
            ]
            found += [(-scores[number], number, *half) for half in sorted(halves)]
        found.sort(key=lambda merge: (merge[0], merge[1]))
        return [[left, right] for *_, left, right in found]
