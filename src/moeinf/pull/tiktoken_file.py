"""Kimi's tokenizer, which is published as tiktoken.model: ranks of pieces of bytes, in base64, a line each.

Two neighbours that make a piece are merged, those of the lowest rank first; a word that is a piece is not cut
(tokenization_kimi.py of moonshotai/Kimi-K2-Instruct). How texts are cut into words is no part of the file, but the same
in all that are published. Behind the pieces follow 256 control tokens, of which tokenizer_config.json names some.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from moeinf.errors import CheckpointError
from moeinf.gguf.pretokenizers import PRE_TOKENIZERS
from moeinf.store.files import parse_json_object
from moeinf.types import Json, JsonObject

TIKTOKEN_FILE: Final = "tiktoken.model"
_CODE: Final = "tokenization_kimi"  # which config of a tokenizer names the code that reads such a file
_NUM_CONTROL, _MOST_PIECES, _LONGEST_PIECE = 256, 1_000_000, 1024


def made_tokenizer(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """tokenizer.json, where a checkpoint has none but Kimi's tiktoken.model. Raises CheckpointError for a damaged one.

    files: the small files of the checkpoint.
    """
    said = files.get("tokenizer_config.json")
    if "tokenizer.json" in files or TIKTOKEN_FILE not in files or said is None:
        return {}
    config = parse_json_object(said, "tokenizer_config.json", CheckpointError)
    if _CODE not in json.dumps(config.get("auto_map")):
        return {}
    return {"tokenizer.json": json.dumps(_tokenizer(_ranks(files[TIKTOKEN_FILE]), config), ensure_ascii=False).encode()}


def _ranks(data: bytes) -> list[bytes]:
    """The pieces in the order of their ranks, from 0 on without a gap."""
    found: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        piece, _, rank = line.partition(b" ")
        try:
            place, letters = int(rank), base64.b64decode(piece, validate=True)
        except ValueError:
            place, letters = -1, b""
        if place in found or not 0 <= place < _MOST_PIECES or not 0 < len(letters) <= _LONGEST_PIECE:
            raise CheckpointError(f"{TIKTOKEN_FILE}: line {number} is no new piece and its rank; fetch that file again")
        found[place] = letters
    pieces = [found[place] for place in sorted(found)]
    if max(found, default=-1) != len(pieces) - 1 or len(set(pieces)) < max(len(pieces), 1):
        raise CheckpointError(f"{TIKTOKEN_FILE}: ranks have gaps, or a piece has two; fetch that file again")
    if not {bytes([value]) for value in range(256)} <= set(pieces):
        raise CheckpointError(f"{TIKTOKEN_FILE}: not every byte is a piece; fetch that file again")
    return pieces


def _tokenizer(pieces: list[bytes], config: JsonObject) -> JsonObject:
    letters, places = _letters(), {piece: place for place, piece in enumerate(pieces)}

    def written(piece: bytes) -> str:
        return "".join(letters[value] for value in piece)

    merges: list[list[str]] = []
    for piece in pieces:
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        known = [(places[left], places[right]) for left, right in halves if left in places and right in places]
        merges += [[written(pieces[left]), written(pieces[right])] for left, right in sorted(known)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _control_tokens(len(pieces), config),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(PRE_TOKENIZERS["kimi-k2"].steps)},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {written(piece): place for place, piece in enumerate(pieces)},
            "merges": merges,
        },
    }


def _control_tokens(first: int, config: JsonObject) -> list[Json]:
    named = config.get("added_tokens_decoder")
    found = list[Json]()
    for place in range(first, first + _NUM_CONTROL):
        said: Any = named.get(str(place)) if isinstance(named, dict) else None
        text = said.get("content") if isinstance(said, dict) else None
        special = bool(said.get("special", True)) if isinstance(said, dict) else True
        name = text if isinstance(text, str) and text else f"<|reserved_token_{place}|>"
        kept = {"id": place, "content": name, "single_word": False, "lstrip": False, "rstrip": False}
        found.append(kept | {"normalized": False, "special": special})
    return found


def _letters() -> list[str]:
    """The letters by which byte-level tokenizers write the 256 bytes (GPT-2's bytes_to_unicode)."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(value if value in shown else next(others)) for value in range(256)]
