"""What a vocabulary says wrongly of itself and llama.cpp passes over: told, and taken as it has to be meant."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.turn_ends import TURN_ENDS
from tests.support.vocabularies import built, gpt2, pieces, read, refused, trained

_OPENERS = (
    "<|im_start|>",
    "<|start_header_id|>",
    "<|begin_of_text|>",
    "<\uff5cUser\uff5c>",
    "<|turn>",
    "<start_of_turn>",
)


def noted(fields: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    tokenizer_files(read(fields), lines.append)
    assert all(line.startswith("x.gguf: ") and "\n" not in line for line in lines)
    return lines


def with_words(tokens: list[str], kind: int, merges: list[str] | None = None) -> dict[str, Any]:
    """A vocabulary of byte pairs that has these tokens, too, as if they were words."""
    fields = gpt2()
    new = [token for token in tokens if token not in fields["tokenizer.ggml.tokens"]]
    fields["tokenizer.ggml.tokens"] += new
    fields["tokenizer.ggml.token_type"] += [kind] * len(new)
    for token in tokens:
        fields["tokenizer.ggml.token_type"][fields["tokenizer.ggml.tokens"].index(token)] = kind
    fields["tokenizer.ggml.merges"] += merges or []
    return fields


@pytest.mark.parametrize("token", [*sorted(TURN_ENDS), *_OPENERS])
def test_a_control_token_that_is_said_to_be_a_word_is_one_token_all_the_same(token: str) -> None:
    fields = with_words([token], 1)
    number = fields["tokenizer.ggml.tokens"].index(token)
    tokenizer = built(fields)
    assert tokenizer.encode(f"a{token}b", add_special_tokens=False).ids[1:-1] == [number]
    assert tokenizer.decode([number]) == "" and tokenizer.decode([number], skip_special_tokens=False) == token
    [line] = noted(fields)
    assert token in line and "control" in line
    ends = json.loads(tokenizer_files(read(fields))["generation_config.json"])["eos_token_id"]
    assert (number in ends) == (token in TURN_ENDS)


def test_several_of_them_are_told_in_one_line() -> None:
    [line] = noted(with_words(["<|im_start|>", "<|im_end|>", "<|eot_id|>"], 1))
    assert "and 2 more" in line
    assert noted(gpt2()) == []


def test_all_are_found_where_the_file_has_no_kinds_of_tokens() -> None:
    fields = with_words(["<|im_start|>", "<|im_end|>"], 1)
    del fields["tokenizer.ggml.token_type"]
    tokens = fields["tokenizer.ggml.tokens"]
    ids = built(fields).encode("<|im_start|>a<|im_end|>", add_special_tokens=False).ids
    assert [ids[0], ids[-1]] == [tokens.index("<|im_start|>"), tokens.index("<|im_end|>")]


def test_an_end_that_is_said_to_be_defined_by_a_user_ends_answers() -> None:
    fields = with_words(["<|im_end|>"], 4)
    end = fields["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert end in json.loads(tokenizer_files(read(fields))["generation_config.json"])["eos_token_id"]


@pytest.mark.parametrize("token", ["<|x|>", "<|", "|>", "</s>", "<b>", "a|>", "<|a b|>"])
def test_words_stay_words(token: str) -> None:
    """Those of another shape, and those that shorter ones make."""
    merges = ["< |", "| >", "<| x", "<|x |>"]
    made = ["<|", "|>", "<|x", "<|x|>"]
    fields = with_words(list(dict.fromkeys([*made, token])), 1, merges)
    assert noted(fields) == [] and not any(
        added["content"] == token for added in json.loads(built(fields).to_str())["added_tokens"]
    )


def test_pieces_of_sentencepiece_are_looked_at_likewise() -> None:
    fields = pieces()
    tokens, scores, types = (fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    more = ["<|im_start|>", "<end_of_turn>", "<|a", "|>", "<|a|>"]
    fields |= {
        "tokenizer.ggml.tokens": tokens + more,
        "tokenizer.ggml.scores": scores + array("f", [0.0] * 5),
        "tokenizer.ggml.token_type": types + array("i", [1] * 5),
    }
    added = {each["content"] for each in json.loads(built(fields).to_str())["added_tokens"]}
    assert {"<|im_start|>", "<end_of_turn>"} <= added and "<|a|>" not in added


@pytest.mark.parametrize("role", ["padding", "unknown", "eot", "eom", "bos", "eos"])
@pytest.mark.parametrize("value", [99999, 1 << 31, "x", -7, 1.5])
def test_an_id_of_no_token_that_nothing_uses_is_told_and_left_out(role: str, value: Any) -> None:
    [line] = noted(gpt2() | {f"tokenizer.ggml.{role}_token_id": value})
    assert f"{role}_token_id" in line and "left out" in line
    files = tokenizer_files(read(gpt2() | {f"tokenizer.ggml.{role}_token_id": value}))
    assert str(value) not in files["generation_config.json"].decode()
    assert noted(gpt2() | {f"tokenizer.ggml.{role}_token_id": 0xFFFFFFFF}) == []


@pytest.mark.parametrize("role", ["bos", "eos"])
def test_an_id_of_no_token_that_texts_are_given_is_refused(role: str) -> None:
    fields = gpt2() | {f"tokenizer.ggml.{role}_token_id": 99999, f"tokenizer.ggml.add_{role}_token": True}
    refused(fields, f"{role}_token_id is 99999", "added to texts")


def test_an_id_of_no_token_leaves_the_usual_one_of_sentencepiece() -> None:
    config = json.loads(tokenizer_files(read(pieces(eos_token_id=70000)))["tokenizer_config.json"])
    assert config["eos_token"] == "</s>"


@pytest.mark.parametrize("pre", ["gpt-2", "sarvam-moe"])
def test_byte_pairs_without_merges_are_refused(pre: str) -> None:
    fields = gpt2(pre=pre)
    del fields["tokenizer.ggml.merges"]
    refused(fields, "tokenizer.ggml.merges", "pull the checkpoint")


@pytest.mark.parametrize("merge", ["a nothing", "nothing a", "ab", "a", "", " a", "\u00e9 \u00e9"])
def test_merges_of_no_two_tokens_are_told_and_left_out(merge: str) -> None:
    fields = gpt2()
    fields["tokenizer.ggml.merges"] = [merge, *fields["tokenizer.ggml.merges"]]
    [line] = noted(fields)
    assert f"1 of {len(fields['tokenizer.ggml.merges'])} merges" in line and repr(merge) in line
    text = "The quick brown fox doesn't jump"
    assert built(fields).encode(text).ids == trained("gpt-2").encode(text).ids
