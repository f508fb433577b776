"""Text becomes token ids and comes back piece by piece, never half a character; stop strings end it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

import moeinf
from moeinf.errors import TextError
from moeinf.text.stops import StopMatcher
from moeinf.text.tokenizer import Tokenizer
from tests.support.shown_text import all_text, text_of
from tests.support.text_models import SPECIALS, byte_level_tokenizer

MakeFolder = Callable[..., Path]
MIXED = "naïve 日本語テスト 🎉👩‍👩‍👧 ok €"


def spm_tokenizer() -> Library:
    """As sentencepiece makes them: ▁ for a space, bytes for what is not in the vocabulary."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *"▁thecasonmwrld"]
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("▁", "the"),
        ("a", "t"),
        ("c", "at"),
        ("▁", "cat"),
        ("s", "at"),
        ("▁", "sat"),
        ("o", "n"),
        ("▁", "on"),
        ("m", "at"),
        ("▁", "mat"),
    ]
    vocabulary = list(dict.fromkeys([*words, *("".join(pair) for pair in merges)]))
    tokenizer = Library(
        models.BPE(
            {word: at for at, word in enumerate(vocabulary)},
            merges,
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize("text", [MIXED, "plain", " leading and  double spaces ", "line\nline\ttab", "🎉" * 20])
def test_streamed_text_is_the_text_and_never_half_a_character(model_folder: MakeFolder, text: str) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        pieces = [text_of(stream.step(token)) for token in ids]
        assert "".join(pieces) + text_of(stream.flush()) == text
        assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_split_over_tokens_is_held_until_it_is_whole(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        ids = tokenizer.encode("🎉")
        assert len(ids) == 4
        stream = tokenizer.stream()
        assert [text_of(stream.step(token)) for token in ids] == ["", "", "", "🎉"]


def test_bytes_that_never_become_a_character_come_out_as_replacement_at_the_end(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        ids = tokenizer.encode("ok🎉")
        stream = tokenizer.stream()
        text = "".join(text_of(stream.step(token)) for token in ids[:-2])
        assert text == "ok"
        assert set(text_of(stream.flush())) == {"\ufffd"}


def test_a_space_in_front_of_a_word_survives_at_the_prompts_border(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder(tokenizer=spm_tokenizer())) as tokenizer:
        ids = tokenizer.encode("the cat sat é on")
        stream = tokenizer.stream(ids[:1])
        assert all_text(stream, ids[1:]) == " cat sat é on"


def test_two_streams_do_not_disturb_each_other(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        first, second = tokenizer.stream(), tokenizer.stream()
        a, b = tokenizer.encode("日本"), tokenizer.encode("🎉🎊")
        texts = ["", ""]
        for i, j in zip(a, b, strict=False):
            texts[0] += text_of(first.step(i))
            texts[1] += text_of(second.step(j))
        assert texts[0] == "日本" and "🎉🎊".startswith(texts[1])


def test_control_tokens_in_text_are_text_unless_the_prompt_is_raw(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        plain = tokenizer.encode("a <|im_end|> b")
        assert not tokenizer.special_ids & set(plain)
        assert tokenizer.decode(plain) == "a <|im_end|> b"
        assert tokenizer.special_ids & set(tokenizer.encode("a <|im_end|> b", control_tokens=True))


def test_the_beginning_token_is_added_once_and_on_request_not_at_all(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder(bos=True)) as tokenizer:
        ids = tokenizer.encode("hello")
        assert ids[0] == tokenizer.bos_id and ids.count(ids[0]) == 1
        assert tokenizer.encode("hello", bos=False) == ids[1:]
        assert tokenizer.encode("<s>hello", control_tokens=True) == ids


def test_add_bos_token_of_the_config_counts_where_tokenizer_json_forgets_it(model_folder: MakeFolder) -> None:
    folder = model_folder(tokenizer_config={"bos_token": "<s>", "add_bos_token": True})
    with Tokenizer(folder) as tokenizer:
        ids = tokenizer.encode("hello")
        assert ids[0] == tokenizer.bos_id
        assert tokenizer.encode("<s>hello", control_tokens=True) == ids


@pytest.mark.parametrize(
    "within",
    [{"text_config": {"eos_token_id": [9]}}, {"thinker_config": {"text_config": {"eos_token_id": 9}}}],
    ids=["text", "thinker"],
)
def test_ends_of_an_answer_are_united_from_all_configs_and_the_vocabulary(
    model_folder: MakeFolder, within: dict[str, Any]
) -> None:
    folder = model_folder(config={"eos_token_id": 7} | within, generation={"eos_token_id": [8, 11]})
    with Tokenizer(folder) as tokenizer:
        library = Library.from_file(str(folder / "tokenizer.json"))
        named = {library.token_to_id("</s>"), library.token_to_id("<|im_end|>")}
        assert tokenizer.eos_ids == {7, 8, 9, 11} | named


def _listed(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "normalized": False, "special": True, **flags}


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({"added_tokens_decoder": {"341": _listed("<b>"), "340": _listed("<a>")}}, {}),
        ({"added_tokens_decoder": {"0": _listed("<s>", lstrip=True, rstrip=True)}}, {}),
        ({"added_tokens_decoder": {"3": _listed("<|im_end|>", special=False)}}, {}),
        ({"added_tokens_decoder": {}, "additional_special_tokens": ["<a>", "<b>"]}, {}),
        ({"extra_special_tokens": ["<a>"]}, {}),
        ({"eos_token": "<a>"}, {}),
        ({"eos_token": "<b>"}, {"added_tokens.json": {"<b>": 341, "<a>": 340}}),
        ({"added_tokens_decoder": {}}, {"added_tokens.json": {"<a>": 340}}),
        ({}, {"special_tokens_map.json": {"eos_token": {"content": "<a>", "normalized": False}}}),
    ],
)
def test_tokens_that_the_files_beside_tokenizer_json_list_are_tokens(
    model_folder: MakeFolder, config: dict[str, Any], beside: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = model_folder(tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **config})
    for name, content in beside.items():
        (folder / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("quick <a> fox<b>jumps", "quick <s> fox", "<|im_end|> over"):
        with Tokenizer(folder) as tokenizer:
            ids = tokenizer.encode(text, control_tokens=True)
            assert ids == theirs(text).input_ids
            assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("listed", [5, ["<a>"], {"x": None, "y": {"content": 7}, "z": {"content": "", "lstrip": 2}}])
def test_a_list_of_tokens_that_is_none_adds_none(model_folder: MakeFolder, listed: Any) -> None:
    folder = model_folder(tokenizer_config={"added_tokens_decoder": listed, "extra_special_tokens": [None, 3]})
    with Tokenizer(folder) as tokenizer:
        assert tokenizer.num_ids == byte_level_tokenizer().get_vocab_size()


def test_a_letter_that_is_named_for_padding_stays_a_letter(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder(tokenizer_config={"eos_token": "</s>", "pad_token": "!"})) as tokenizer:
        assert tokenizer.decode(tokenizer.encode("fox!", control_tokens=True)) == "fox!"


def test_end_of_a_harmony_channel_does_not_end_the_answer(model_folder: MakeFolder) -> None:
    from tokenizers import AddedToken

    library = spm_tokenizer()
    library.add_special_tokens([AddedToken("<|channel|>"), AddedToken("<|end|>"), AddedToken("<|return|>")])
    with Tokenizer(model_folder(tokenizer=library, tokenizer_config={"eos_token": "<|return|>"})) as tokenizer:
        assert tokenizer.eos_ids == {library.token_to_id("<|return|>")}


def test_truncation_and_padding_left_in_tokenizer_json_are_switched_off(model_folder: MakeFolder) -> None:
    library = spm_tokenizer()
    library.enable_truncation(3)
    library.enable_padding(length=50)
    with Tokenizer(model_folder(tokenizer=library)) as tokenizer:
        assert len(tokenizer.encode("the cat sat on the mat")) == 6


def test_a_token_beyond_the_embedding_is_an_error_and_not_a_crash_later(model_folder: MakeFolder) -> None:
    with (
        Tokenizer(model_folder(), num_embeddings=20) as tokenizer,
        pytest.raises(TextError, match=r"for the first 20 alone.*leave that text out of the prompt"),
    ):
        tokenizer.encode("zebra")


def test_undecodable_bytes_of_a_command_line_become_replacement_characters(model_folder: MakeFolder) -> None:
    with Tokenizer(model_folder()) as tokenizer:
        assert tokenizer.decode(tokenizer.encode("a\udcff b")) == "a\ufffd b"


def test_a_folder_without_tokenizer_json_is_refused_in_one_line_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"no tokenizer\.json; pull a model") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_stream_of_the_tokenizer_of_the_demo_equals_its_decode() -> None:
    shuffled = random.Random(0)
    with Tokenizer(Path(moeinf.__file__).parent / "data" / "demo") as tokenizer:
        ids = [shuffled.randrange(1, tokenizer.num_ids) for _ in range(400)] + tokenizer.encode(MIXED)
        stream = tokenizer.stream()
        assert all_text(stream, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_stop_string_is_found_across_pieces_and_left_out(cut: int) -> None:
    text = "one two STOP three"
    matcher = StopMatcher(["STOP"])
    shown = "".join(matcher.push(text[at : at + cut]) for at in range(0, len(text), cut)) + matcher.flush()
    assert shown == "one two " and matcher.stopped


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["</s>", "\n\nUser:"])
    assert matcher.push("abc\n") == "abc"
    assert matcher.push("\nUse") == ""
    assert matcher.push("less <") == "\n\nUseless "
    assert matcher.flush() == "<"
    assert not matcher.stopped


def test_the_earliest_of_several_stop_strings_ends_the_text() -> None:
    matcher = StopMatcher(["later", "soon"])
    assert matcher.push("a soon b later") == "a "


def test_no_stop_strings_hold_nothing_back() -> None:
    matcher = StopMatcher(["", *()])
    assert matcher.push("anything") == "anything" and matcher.flush() == ""


def test_of_a_text_for_t5_only_the_gaps_are_control_tokens(model_folder: MakeFolder) -> None:
    gaps = ["<extra_id_0>", "<extra_id_1>"]
    with Tokenizer(model_folder(tokenizer=byte_level_tokenizer([*SPECIALS, *gaps]))) as tokenizer:
        ids = tokenizer.encode("a</s> <extra_id_0> <s><extra_id_1>b", control_tokens="gaps", added=False)
        assert [each for each in ids if each in tokenizer.special_ids] == [tokenizer.token_id(gap) for gap in gaps]
        assert tokenizer.decode(ids, skip_special=False) == "a</s> <extra_id_0> <s><extra_id_1>b"
        plain = tokenizer.encode("the quick fox", control_tokens="gaps", added=False)
        assert plain == tokenizer.encode("the quick fox", control_tokens=True, added=False)
