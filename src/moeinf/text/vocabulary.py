"""The tokens of a vocabulary that are no text, and those that are written alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, normalizers

from moeinf.errors import MALFORMED
from moeinf.text.harmony_channels import is_harmony
from moeinf.turn_ends import ENDS_BESIDE, ENDS_MESSAGE, TURN_ENDS
from moeinf.types import Json, JsonMapping, JsonObject

_ONE_SPACE: Final = "\ue000"  # stands for the text of one space, which would be stripped; no token has this letter
_UNKNOWN: Final = "\ufffd"  # in what is decoded of a part of a letter

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


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
    of_messages = is_harmony(tokenizer) or all(tokenizer.token_to_id(name) for name in ENDS_BESIDE)
    names = TURN_ENDS if of_messages else TURN_ENDS | {ENDS_MESSAGE}
    named = (tokenizer.token_to_id(name) for name in {specials.get("eos_token", ""), *names})
    return sorted(ids | {i for i in named if i is not None})


def special_tokens(config: JsonMapping, token_map: JsonMapping) -> dict[str, str]:
    """What chat templates are given as bos_token, eos_token and so on, and as image_token and others of the model."""
    extra = config.get("extra_special_tokens")
    said = {name: value for name, value in config.items() if name.endswith("_token")}
    said |= {name: config.get(name) or token_map.get(name) for name in _SPECIAL_NAMES}
    said |= extra if isinstance(extra, dict) else {}
    return {name: token for name, value in said.items() if (token := _content(value))}


def add_listed(tokenizer: Tokenizer, config: JsonMapping, token_map: JsonMapping, older: JsonMapping) -> None:
    """Makes the tokens that the files beside tokenizer.json list tokens of the tokenizer, as transformers does.

    tokenizer.json may lack some of them, or say otherwise what they swallow and whether they are special. older: the
    contents of added_tokens.json, which counts where tokenizer_config.json lists none.
    """
    by_role = special_tokens(config, token_map)
    named = [by_role[role] for role in ("bos_token", "eos_token") if role in by_role]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        further = config.get(key) or token_map.get(key)
        named += [name for name in map(_content, further if isinstance(further, list) else []) if name]
    # The others have roles that text has no part in; some files name a letter for them, such as "!" for padding.
    named += [name for name in by_role.values() if tokenizer.token_to_id(name) is None]
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict):
        entries = [_fields(listed[number]) for number in sorted(listed, key=_number)]
    else:
        numbered = sorted(older, key=lambda name: _number(older[name]))
        entries = [{"content": name, "special": name in by_role.values()} for name in numbered]
    tokenizer.add_tokens([AddedToken(**entry) for entry in entries if entry.get("content")])
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([AddedToken(name, special=True) for name in dict.fromkeys(named) if name not in known])


def _fields(entry: Json) -> JsonObject:
    """What an entry of a list says of a token."""
    said = entry if isinstance(entry, dict) else {}
    return {name: said[name] for name in _FIELDS if isinstance(said.get(name), str if name == "content" else bool)}


def _content(entry: Json) -> str:
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def _number(said: Json) -> int:
    try:
        return int(said)
    except MALFORMED:
        return 0


def control_tokens(tokenizer: Tokenizer) -> list[str]:
    """Returns the special tokens."""
    tokens = tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in tokens if token.special and token.content.strip()]


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
