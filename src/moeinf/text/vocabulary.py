"""The tokens of a vocabulary that are no text, and those that are written alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenizers import Regex, Tokenizer, normalizers

from moeinf.text.harmony_channels import is_harmony
from moeinf.types import JsonMapping

_ONE_SPACE: Final = "\ue000"  # stands for the text of one space, which would be stripped; no token has this letter
_UNKNOWN: Final = "\ufffd"  # in what is decoded of a part of a letter

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Ends of a turn that checkpoints forget to list as end of sequence; without them a chat never stops.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|end_of_msg|>",  # Kimi K3's
    "<|call|>",
)


def end_ids(
    tokenizer: Tokenizer, specials: Mapping[str, str], model: JsonMapping, generation: JsonMapping
) -> list[int]:
    """The tokens that end an answer: those of the configs, the tokenizer's own, and known ends of turn."""
    listed = [generation.get("eos_token_id"), model.get("eos_token_id")]
    for part in ("thinker_config", "text_config"):
        if isinstance(model.get(part), dict):
            model = model[part]
            listed.append(model.get("eos_token_id"))
    ids = {i for entry in listed for i in (entry if isinstance(entry, list) else [entry]) if type(i) is int}
    names = [name for name in _END_OF_TURN if not (name == "<|end|>" and is_harmony(tokenizer))]  # ends a channel
    named = (tokenizer.token_to_id(name) for name in [specials.get("eos_token", ""), *names])
    return sorted(ids | {i for i in named if i is not None})


def special_tokens(config: JsonMapping, token_map: JsonMapping) -> dict[str, str]:
    """What chat templates are given as bos_token, eos_token and so on."""
    tokens: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name) or token_map.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def control_tokens(tokenizer: Tokenizer, config: JsonMapping) -> list[str]:
    """Returns the special tokens. Where tokenizer_config.json says which they are, it decides, as in transformers."""
    listed = config.get("added_tokens_decoder")
    entries = [entry for entry in listed.values() if isinstance(entry, dict)] if isinstance(listed, dict) else []
    said = {entry.get("content"): entry.get("special") for entry in entries}
    tokens = tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in tokens if said.get(token.content, token.special) and token.content.strip()]


def token_kinds(tokenizer: Tokenizer) -> list[int]:
    """A number for each token, counted from 0 by first appearance: the same of those that are written alike but for
    case, accents and spaces, as tables of n-grams count them (DeepSeek-V4.1)."""
    alike = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _ONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_ONE_SPACE, " "),
        ]
    )
    kinds: dict[str | None, int] = {}
    found = list[int]()
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        written = tokenizer.id_to_token(token) if _UNKNOWN in text else alike.normalize_str(text) or text
        found.append(kinds.setdefault(written, len(kinds)))
    return found
