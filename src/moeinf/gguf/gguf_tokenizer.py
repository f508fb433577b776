"""The tokenizer and its small configs out of the metadata of a GGUF file."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping

from moeinf.errors import CheckpointError
from moeinf.gguf.gguf_vocabulary import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary, quiet
from moeinf.gguf.header import Gguf
from moeinf.gguf.metadata import shortest
from moeinf.turn_ends import TURN_ENDS
from moeinf.types import JsonObject

_LONGEST_PIECE = 128
_SPACE = "\u2581"  # that SentencePiece writes for a space
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_SPECIALS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3.5


def tokenizer_files(gguf: Gguf, note: Callable[[str], None] = quiet) -> Mapping[str, bytes]:
    """tokenizer.json, tokenizer_config.json, generation_config.json and, if there is one, chat_template.jinja.

    note: is given a line for each thing that is taken otherwise than the file says it. Raises CheckpointError for a
    tokenizer that moeinf cannot build, naming it.
    """
    made = _Files(Vocabulary.of(gguf, note))
    config = made.config()
    files: JsonObject = {"tokenizer.json": made.tokenizer(), "generation_config.json": made.generation()}
    found = {}
    template, named = made.v.text("tokenizer.chat_template"), made.v.named_templates()
    if named:
        config["chat_template"] = [{"name": "default", "template": template}] * bool(template) + named
    elif template:
        found["chat_template.jinja"] = template.encode()
    files["tokenizer_config.json"] = config
    return found | {name: json.dumps(value, ensure_ascii=False).encode() for name, value in files.items()}


class _Files:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.v = vocabulary

    def config(self) -> JsonObject:
        found: JsonObject = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": self.v.adds_bos and self.v.special("bos") is not None,
            "add_eos_token": self.v.adds_eos,
        }
        for name, role in _SPECIALS.items():
            number = self.v.special(role)
            if number is not None:
                found[f"{name}_token"] = self.v.tokens[number]
        return found

    def generation(self) -> JsonObject:
        named = [number for number in range(len(self.v.tokens)) if self._ends_answers(number)]
        ends = [self.v.special("eos"), self.v.special("eot"), self.v.special("eom"), *named]
        found: JsonObject = {"eos_token_id": sorted({number for number in ends if number is not None})}
        for name, role in (("bos", "bos"), ("pad", "padding")):
            number = self.v.special(role)
            if number is not None:
                found[f"{name}_token_id"] = number
        asked = {}
        for key, value in self.v.metadata.items():
            name = key.removeprefix("general.sampling.")
            if name != key and type(value) in (int, float, str):
                asked[_SAMPLING.get(name, name)] = shortest(value) if isinstance(value, float) else value
        return found | ({"do_sample": True} | asked if asked else {})

    def _ends_answers(self, number: int) -> bool:
        return self.v.types[number] == CONTROL and self.v.tokens[number] in TURN_ENDS

    def tokenizer(self) -> JsonObject:
        vocabulary, steps = self._vocabulary(), list(self.v.pre.steps)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            "normalizer": self._normalizer(),
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if steps else None,
            "post_processor": self._post_processor(),
            "decoder": self._decoder(),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": self._unknown() if self.v.of_pieces else None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": self.v.of_pieces,
                "byte_fallback": self.v.of_pieces,
                "ignore_merges": self.v.pre.whole_words,
                "vocab": vocabulary,
                "merges": self._merges_of_scores(vocabulary) if self.v.model == "llama" else self.v.merges,
            },
        }

    def _vocabulary(self) -> dict[str, int]:
        """All tokens that have a meaning, added ones among them, so that every token keeps its number."""
        found: dict[str, int] = {}
        for number, (token, kind) in enumerate(zip(self.v.tokens, self.v.types, strict=True)):
            if kind == UNUSED:
                continue
            if found.setdefault(token, number) != number:
                raise CheckpointError(
                    f"{self.v.where}: tokens {found[token]} and {number} are both {token!r:.50}; the file is damaged"
                )
        return found

    def _unknown(self) -> str | None:
        number = self.v.special("unknown")
        return None if number is None else self.v.tokens[number]

    def _added(self) -> list[JsonObject]:
        strips = self.v.metadata.get("general.architecture") == "phimoe"  # as published; files do not say it
        added = (UNKNOWN, CONTROL, USER_DEFINED)
        return [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and kind != UNKNOWN and token not in _UNSTRIPPED,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for number, (token, kind) in enumerate(zip(self.v.tokens, self.v.types, strict=True))
            if kind in added and token
        ]

    def _normalizer(self) -> JsonObject | None:
        if self.v.model == "gpt2":
            return {"type": "NFC"} if self.v.pre.composes else None
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        prefix = (
            [{"type": "Prepend", "prepend": _SPACE}] if self.v.flag("add_space_prefix", self.v.model == "llama") else []
        )
        return {"type": "Sequence", "normalizers": [*prefix, spaces]}

    def _decoder(self) -> JsonObject:
        if self.v.model == "gpt2":
            return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        strip = (
            [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
            if self.v.flag("add_space_prefix", self.v.model == "llama")
            else []
        )
        spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}

    def _post_processor(self) -> JsonObject | None:
        """The tokens around a text."""
        bos = self.v.special("bos") if self.v.adds_bos else None
        eos = self.v.special("eos") if self.v.adds_eos else None
        if bos is None and eos is None:
            return None

        def around(name: str, kind: int) -> list[JsonObject]:
            text = [{"Sequence": {"id": name, "type_id": kind}}]
            before, behind = (
                [] if number is None else [{"SpecialToken": {"id": self.v.tokens[number], "type_id": kind}}]
                for number in (bos, eos)
            )
            return [*before, *text, *behind]

        tokens = {
            self.v.tokens[number]: {"id": self.v.tokens[number], "ids": [number], "tokens": [self.v.tokens[number]]}
            for number in (bos, eos)
            if number is not None
        }
        single, second = around("A", 0), around("B", 1)
        return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": tokens}

    def _merges_of_scores(self, vocabulary: Mapping[str, int]) -> list[list[str]]:
        """SentencePiece joins the two neighbours whose union has the highest score: as merges, in that order."""
        scores = self.v.metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, array) or len(scores) != len(self.v.tokens):
            raise CheckpointError(
                f"{self.v.where}: tokenizer.ggml.scores must have a number for each token; the file is damaged"
            )
        pieces = {
            token: number
            for token, number in vocabulary.items()
            if self.v.types[number] in (NORMAL, USER_DEFINED) and len(token) <= _LONGEST_PIECE
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
