"""Tokenizers out of metadata: the same ids as the tokenizer.json that a file was made from."""

from __future__ import annotations

import json
import struct
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.gguf.header import read_gguf
from moeinf.gguf.pretokenizers import PRE_TOKENIZERS
from moeinf.text.tokenizer import Tokenizer as StoredTokenizer
from tests.support.gguf_bytes import header
from tests.support.gguf_files import tokenizer_fields
from tests.support.vocabularies import PIECES, STRINGS, TEXT, built, gpt2, pieces, read, refused, trained


@pytest.mark.parametrize("pre", {id(pre): name for name, pre in PRE_TOKENIZERS.items()}.values())
def test_ids_are_those_of_the_tokenizer_that_the_file_was_made_of(pre: str) -> None:
    original = trained(pre)
    ours = built(tokenizer_fields(json.loads(original.to_str()), pre, size=500))
    texts = [*TEXT, "a<think>b<|im_end|><s> [PAD450]"]

    @given(STRINGS)
    @settings(max_examples=40, deadline=None, derandomize=True)
    def same(text: str) -> None:
        for plain in (False, True):
            original.encode_special_tokens = ours.encode_special_tokens = plain
            ids = original.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special_tokens=False).ids == ids
            assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)

    same()
    for text in texts:
        assert ours.encode(text, add_special_tokens=False).ids == original.encode(text, add_special_tokens=False).ids
    assert ours.get_vocab() == original.get_vocab()  # tokens keep their numbers, and unused ones are none


# How each cuts a text. On 836 texts llama.cpp's own tokenizer cut as these patterns do, but for kimi-k2, where it joins
# words like KeyError, which the published pattern does not.
CUTS = {
    "qwen2": "I|'LL| don|'t| |1|2|3|4|5| nai|\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "qwen35": "I|'LL| don|'t| |1|2|3|4|5| nai\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "tekken": "I|'LL| don|'t| |1|2|3|4|5| nai\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "glm4": "I|'LL| don|'t| |123|45| nai|\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "llama-bpe": "I|'LL| don|'t| |123|45| nai|\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "gpt-4o": "I'LL| don't| |123|45| nai\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "deepseek-llm": "I|'|LL| don|'|t| |1|2|3|4|5| nai|\u0308|ve| \xc9|Cole|_|Ab| |\u5317\u4eac|kana|.|\r|\n|\n| | y",
    "deepseek-coder": "I|'|LL| don|'|t| |1|2|3|4|5| nai|\u0308|ve| \xc9Cole|_|Ab| |\u5317\u4eac|kana|.|\r|\n|\n| | y",
    "deepseek-v3": "I|'LL| don|'t| |123|45| nai\u0308ve| \xc9Cole|_Ab| |\u5317\u4eac|kana| x|.\r\n\n| | y",
    "afmoe": "I|'LL| don|'t| |12|345| nai\u0308ve| \xc9Cole|_Ab| |\u5317\u4eac|kana| x|.\r\n\n| | y",
    "bailingmoe2": "I|'LL| don|'t| |1|2|3|4|5| nai|\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "exaone-moe": "I|'LL| don|'t| |1|2|3|4|5| nai\u0308ve \xc9Cole|_Ab \u5317\u4eackana x|.\r|\n\n| | y",
    "cohere2moe": "I'LL| don't| |12|345| nai\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r\n\n| | y",
    "laguna": "I|'LL| don|'t| |1|2|3|4|5| nai|\u0308ve| \xc9Cole|_Ab| \u5317\u4eackana| x|.\r|\n\n| | y",
    "kimi-k2": "I'LL| don't| |123|45| nai\u0308ve| \xc9Cole|_Ab| |\u5317\u4eac|kana| x|.\r\n\n| | y",
    "gpt-2": "I|'|LL| don|'t| 12345| nai|\u0308|ve| \xc9Cole|_|Ab| \u5317\u4eackana| x|.|\r\n\n | y",
    "refact": "I|'|LL| don|'t| |1|2|3|4|5| nai|\u0308|ve| \xc9Cole|_|Ab| \u5317\u4eackana| x|.|\r\n\n | y",
}


@pytest.mark.parametrize("pre", CUTS)
def test_texts_are_cut_as_the_name_of_the_pre_tokenizer_says(pre: str) -> None:
    text = CUTS[pre].replace("|", "")
    cut = trained(pre).pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == CUTS[pre].split("|")


class Test_spm:
    """SentencePiece's byte pairs, against the algorithm itself."""

    @classmethod
    def by_hand(cls, text: str, prefix: bool = True) -> list[str]:
        """Joins the two neighbours whose union is best, the leftmost first, until there are none."""
        symbols = list(("▁" if prefix else "") + text.replace(" ", "▁")) if text else []
        while True:
            joined = [
                (PIECES.index(left + right), at)
                for at, (left, right) in enumerate(pairwise(symbols))
                if left + right in PIECES
            ]
            if not joined:
                break
            _, at = min(joined)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        return [
            piece
            for symbol in symbols
            for piece in ([symbol] if symbol in PIECES else [f"<0x{byte:02X}>" for byte in symbol.encode()])
        ]

    @given(st.text(alphabet="abc  é日\n", max_size=30))
    @settings(max_examples=200, deadline=None)
    def test_the_best_neighbours_are_joined_first(self, text: str) -> None:
        tokenizer = built(pieces())
        assert tokenizer.encode(text, add_special_tokens=False).tokens == self.by_hand(text)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text

    def test_no_space_is_put_in_front_where_the_file_says_so(self) -> None:
        tokenizer = built(pieces(add_space_prefix=False))
        assert tokenizer.encode("abc ab", add_special_tokens=False).tokens == self.by_hand("abc ab", prefix=False)
        assert tokenizer.decode(tokenizer.encode(" abc").ids) == " abc"

    @given(st.text(alphabet="abc  é日\n", max_size=30))
    @settings(max_examples=50, deadline=None)
    def test_gemmas_are_joined_in_the_order_of_the_files_merges(self, text: str) -> None:
        merges = [
            f"{piece[:at]} {piece[at:]}"
            for piece in PIECES
            for at in range(1, len(piece))
            if piece[:at] in PIECES and piece[at:] in PIECES
        ]
        tokenizer = built(pieces(model="gemma4", merges=merges, scores=None, bos_token_id=1))
        assert tokenizer.encode(text, add_special_tokens=False).tokens == self.by_hand(text, prefix=False)
        assert tokenizer.encode(text).tokens[0] == "<s>" and tokenizer.decode(tokenizer.encode(text).ids) == text

    def test_bos_unk_and_eos_have_numbers_by_default(self) -> None:
        tokenizer = built(pieces(add_eos_token=True))
        assert tokenizer.encode("a").tokens == ["<s>", "▁a", "</s>"]
        assert tokenizer.encode("a<tool>b").tokens == ["<s>", "▁a", "<tool>", "▁b", "</s>"]
        config = json.loads(tokenizer_files(read(pieces()))["tokenizer_config.json"])
        assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
        assert config["add_bos_token"] is True and config["add_eos_token"] is False

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"scores": None}, "scores"),
            ({"scores": array("f", [1.0])}, "scores"),
            ({"token_type": array("i", [1])}, "token_type"),
            ({"bos_token_id": 10_000}, "bos_token_id is 10000"),
            ({"add_bos_token": 1}, "must be true or false"),
            ({"model": "t5"}, "'t5'"),
            ({"tokens": []}, "has no tokenizer"),
            ({"tokens": array("i", [1])}, "list of texts"),
        ],
    )
    def test_what_is_damaged_is_refused(self, more: dict[str, Any], words: str) -> None:
        refused(pieces(**more), words)


def test_a_pre_tokenizer_that_is_not_known_is_refused_by_name() -> None:
    line = refused(gpt2(pre="somebody-new"), "'somebody-new'", "pull the checkpoint", "docs/contributing/gguf.md")
    assert "llama.cpp" not in line  # a newer one writes the same name
    unnamed = gpt2()
    del unnamed["tokenizer.ggml.pre"]
    refused(unnamed, "names no pre-tokenizer", "newer llama.cpp")
    refused(gpt2(pre=7), "has the pre-tokenizer 7")


def test_tokens_and_merges_that_contradict_each_other_are_refused() -> None:
    tokens = gpt2()["tokenizer.ggml.tokens"]
    refused(gpt2(tokens=[*tokens[:-1], tokens[5]]), "are both")
    refused(gpt2(merges=["a nothing"]), "of no two tokens")
    refused(gpt2(merges=["ab"]), "of no two tokens")


def test_granite_cuts_words_as_gpt_2_did_whatever_its_files_say() -> None:
    fields = tokenizer_fields(json.loads(trained("gpt-2").to_str()), "refact") | {"general.architecture": "granitemoe"}
    text = "Ⅻ ½ 12"
    assert built(fields).encode(text).ids == trained("gpt-2").encode(text).ids


def test_tokens_of_phi_swallow_the_space_behind_them() -> None:
    more = {"general.architecture": "phimoe"}
    tokenizer = built(pieces() | more)
    assert (
        tokenizer.encode("a<tool>  b", add_special_tokens=False).ids
        == tokenizer.encode("a<tool>b", add_special_tokens=False).ids
    )


def test_ends_templates_and_sampling_come_along() -> None:
    end, turn = (trained("gpt-2").token_to_id(token) or 0 for token in ("</s>", "<|im_end|>"))
    fields = tokenizer_fields(json.loads(trained("gpt-2").to_str()), eos=end, eot=turn, bos=0, eom=4294967295)
    fields |= {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
        "general.sampling.temp": struct.unpack("<f", struct.pack("<f", 0.7))[0],
        "general.sampling.top_k": 20,
    }
    files = tokenizer_files(read(fields))
    assert files["chat_template.jinja"] == b"{{ messages }}"
    assert json.loads(files["generation_config.json"]) == {
        "eos_token_id": [end, turn],
        "bos_token_id": 0,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
    }
    assert built(fields).encode("a").tokens == ["<s>", "a"]
    fields |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    files = tokenizer_files(read(fields))
    assert "chat_template.jinja" not in files
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]


def test_control_tokens_that_end_answers_are_found_by_name() -> None:
    fields = tokenizer_fields(json.loads(trained("gpt-2").to_str()), eos=1)
    end = trained("gpt-2").token_to_id("<|im_end|>")
    assert json.loads(tokenizer_files(read(fields))["generation_config.json"])["eos_token_id"] == [1, end]
    fields["tokenizer.ggml.token_type"][end] = 5  # unused
    assert json.loads(tokenizer_files(read(fields))["generation_config.json"])["eos_token_id"] == [1]


def test_what_old_converters_filled_up_with_is_no_token() -> None:
    fields = gpt2()
    number = len(fields["tokenizer.ggml.tokens"])
    fields["tokenizer.ggml.tokens"] += [f"[PAD{number}]", "[PAD7]"]
    fields["tokenizer.ggml.token_type"] += [4, 4]
    tokenizer = built(fields)
    assert tokenizer.token_to_id(f"[PAD{number}]") is None and tokenizer.token_to_id("[PAD7]") == number + 1


def test_a_model_folder_made_of_a_file_works(tmp_path: Path) -> None:
    fields = gpt2(bos_token_id=0, add_bos_token=True) | {
        "general.architecture": "x",
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}<|im_end|>",
    }
    (tmp_path / "x.gguf").write_bytes(header(fields))
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in tokenizer_files(read_gguf(tmp_path / "x.gguf")).items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text("{}")
    end = trained("gpt-2").token_to_id("<|im_end|>")
    with StoredTokenizer(folder) as tokenizer:
        text, _ = tokenizer.render([{"role": "user", "content": "It's <|im_end|>."}])
        ids = tokenizer.encode_chat(text)
        assert ids[0] == 0 and ids[-1] == end and end not in ids[:-1]
        assert tokenizer.encode("It's")[0] == 0 and tokenizer.eos_ids == {1, end}
        assert tokenizer.decode(tokenizer.encode(TEXT[1])) == TEXT[1]
