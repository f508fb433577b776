"""How texts are cut before byte pairs are merged, by the name that GGUF files give to it (tokenizer.ggml.pre).

The patterns are those of the tokenizer.json that were published with the models, of which llama.cpp's are adaptations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.types import JsonObject


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    steps: tuple[JsonObject, ...]
    composes: bool = False  # texts are brought into Unicode's form NFC
    whole_words: bool = False  # a piece that is a token is not merged (ignore_merges)
    begins: bool = False  # unless the file says otherwise, texts begin with the bos token


def _split(pattern: str) -> JsonObject:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(*, words: bool) -> JsonObject:
    """words: cuts as GPT-2 did."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


_DIGITS: JsonObject = {"type": "Digits", "individual_digits": True}
_GPT_2 = (_bytes(words=True),)
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(numbers: str) -> tuple[JsonObject, ...]:
    return _split(rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}|{_REST}"), _bytes(words=False)


def _cased(suffix: str, numbers: str) -> tuple[JsonObject, ...]:
    """Words whose large letters come first, as o200k and tekken cut them."""
    front = r"[^\r\n\p{L}\p{N}]?"
    words = f"{front}{_UPPER}*{_LOWER}+{suffix}|{front}{_UPPER}+{_LOWER}*{suffix}"
    return _split(f"{words}|{numbers}|{_REST_WITH_SLASH}"), _bytes(words=False)


_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_ASIAN = _split("[一-龥ࠀ-一가-\ud7ff]+")
_DEEPSEEK = (
    _split("[\r\n]"),
    _split(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
    _split("\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
    _split(r"\s+$"),
    _DEEPSEEK_ASIAN,
    _DIGITS,
    _bytes(words=False),
)
_DEEPSEEK_CODER = (
    _split("[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _DEEPSEEK_ASIAN,
    _DIGITS,
    _bytes(words=False),
)
_DEEPSEEK_3 = (
    _split(r"\p{N}{1,3}"),
    _split("[一-龥\u3040-ゟ゠-ヿ]+"),
    _split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
    _bytes(words=False),
)
_QWEN_3_5 = (
    _split(
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    _bytes(words=False),
)
_KIMI = (
    _split(
        r"[\p{Han}]+"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER[1:-1]}&&[^\p{{Han}}]]*[{_LOWER[1:-1]}&&[^\p{{Han}}]]+{_SUFFIX}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER[1:-1]}&&[^\p{{Han}}]]+[{_LOWER[1:-1]}&&[^\p{{Han}}]]*{_SUFFIX}?"
        rf"|\p{{N}}{{1,3}}|{_REST}"
    ),
    _bytes(words=False),
)
_AFMOE_ASIAN = (
    "一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdf\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f"
    "\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff"
)
_AFMOE = (  # numbers in threes from their end
    _split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
    _split(f"[{_AFMOE_ASIAN}]+"),
    *_DEEPSEEK_3[2:],
)
_LING = (
    _split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"),
    _bytes(words=False),
)
_EXAONE = (  # a piece has several words, up to a mark that is neither a letter nor a space
    _split(
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    _bytes(words=False),
)
_COHERE = (_split(r"\d{1,3}(?=(?:\d{3})*\b)"), *_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"))  # threes from their end
_LAGUNA = (_split(r"[^\n]+|[\n]+"), *_words(r"\p{N}"))
_SEED_CODER = (
    _split(rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
    _bytes(words=False),
)
_YOUTU_ASIAN = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
_BLOOM = (_split(r" ?[^(\s|.,!?…。，、।۔،)]+"), _bytes(words=False))

# Granite's files say "refact", to which its tokenizer came nearest; it cuts words as GPT-2 did.
OF_ARCHITECTURES: Mapping[tuple[str, str], PreTokenizer] = {
    ("granitemoe", "refact"): PreTokenizer(_GPT_2),
    ("granitemoe", "starcoder"): PreTokenizer(_GPT_2),
    ("granite_swa", "refact"): PreTokenizer(_GPT_2),
}
_OWN: Mapping[str, PreTokenizer] = {
    "qwen2": PreTokenizer(_words(r"\p{N}"), composes=True),
    "qwen35": PreTokenizer(_QWEN_3_5, composes=True),
    "llama-bpe": PreTokenizer(_words(r"\p{N}{1,3}"), whole_words=True, begins=True),
    "dbrx": PreTokenizer(_words(r"\p{N}{1,3}")),
    "glm4": PreTokenizer(_words(r"\p{N}{1,3}"), whole_words=True),
    "gpt-4o": PreTokenizer(_cased(f"{_SUFFIX}?", r"\p{N}{1,3}")),
    "granite-embed-multi-97m": PreTokenizer(_cased(f"{_SUFFIX}?", r"\p{N}{1,3}"), whole_words=True),
    "tekken": PreTokenizer(_cased("", r"\p{N}"), whole_words=True, begins=True),
    "youtu": PreTokenizer((_split(_YOUTU_ASIAN), *_cased(f"{_SUFFIX}?", r"\p{N}")), whole_words=True),
    "deepseek-llm": PreTokenizer(_DEEPSEEK),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_3),
    "kimi-k2": PreTokenizer(_KIMI),
    "hunyuan": PreTokenizer(_words(r"\p{N}"), composes=True),
    "solar-open": PreTokenizer(_words(r"\p{N}")),
    "minicpm5": PreTokenizer((_split(r"\p{N}{1,3}"), *_words(r"\p{N}+")), whole_words=True),
    "seed-coder": PreTokenizer(_SEED_CODER),
    "ufakzeka": PreTokenizer((_split(rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"), _bytes(words=False))),
    "laguna": PreTokenizer(_LAGUNA),
    "afmoe": PreTokenizer(_AFMOE),
    "exaone-moe": PreTokenizer(_EXAONE),
    "cohere2moe": PreTokenizer(_COHERE),
    "bailingmoe": PreTokenizer(_LING),
    "gpt-2": PreTokenizer(_GPT_2),
    "olmo": PreTokenizer(_GPT_2, composes=True),
    "starcoder": PreTokenizer((_DIGITS, *_GPT_2)),
    "bloom": PreTokenizer(_BLOOM),
    "viking": PreTokenizer((_BLOOM[0], _DIGITS, _BLOOM[1])),
}
_SAME = {  # other names of each, as llama.cpp's loader has them
    "qwen2": "deepseek-r1-qwen kormo f2llmv2 megrez",
    "llama-bpe": "llama3 llama-v3 lfm2 pixtral falcon3 falcon-h1 midm-2.0 jina-v5-nano",
    "dbrx": "smaug-bpe chatglm-bpe",
    "glm4": "glm5",
    "gpt-4o": "llama4 minimax-m2 kanana2 talkie",
    "deepseek-v3": "hunyuan-dense hy_v4 joyai-llm",
    "solar-open": "stablelm2 grok-2",
    "cohere2moe": "tiny_aya",
    "bailingmoe": "bailingmoe2 llada-moe",
    "gpt-2": "phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 mpt jais trillion granite-docling roberta-bpe jina-es "
    "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code",
    "starcoder": "refact mellum2 command-r smollm codeshell exaone minerva-7b",
    "bloom": "poro-chat gpt3-finnish",
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **_OWN,
    **{name: _OWN[own] for own, names in _SAME.items() for name in names.split()},
}
