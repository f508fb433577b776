"""Every name that llama.cpp's converter writes for a family is one whose texts are cut as its tokenizer does."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from moeinf.gguf.pretokenizers import PRE_TOKENIZERS
from tests.support.example_gguf import SUPPORTED
from tests.support.gguf_files import tokenizer_fields
from tests.support.vocabularies import STRINGS, TEXT, built, gpt2, refused

# Of each architecture, the names that the converter of llama.cpp (llama_cpp_python 0.3.36) gives to the tokenizers of
# models that its table of hashes names, and of their kin where it names none; "" where files have SentencePiece.
WRITTEN = {
    "afmoe": "afmoe",
    "arctic": "",
    "bailingmoe": "bailingmoe llada-moe",
    "bailingmoe2": "bailingmoe2 sarvam-moe",
    "bailingmoe3": "bailingmoe2",
    "chatglm": "chatglm-bpe glm4",
    "cohere2moe": "cohere2moe tiny_aya",
    "dbrx": "dbrx",
    "deepseek": "deepseek-llm deepseek-coder",
    "deepseek2": "deepseek-llm deepseek-coder deepseek-v3 kimi-k2 glm4 joyai-llm kanana2 gigachat youtu tekken",
    "deepseek2-ocr": "deepseek-v3",
    "deepseek32": "deepseek-v3",
    "deepseek4": "deepseek-v3",
    "deepseek41": "deepseek-v3",  # as converters of its own pull request write it
    "dots1": "qwen2",
    "dots3note": "qwen2",
    "ernie4_5": "",
    "ernie4_5-moe": "",
    "exaone-moe": "exaone-moe",
    "gemma": "",
    "gemma2": "",
    "gemma3": "",
    "gemma4": "",
    "glm-dsa": "glm4 glm5",
    "glm4": "glm4",
    "glm4moe": "glm4 solar-open",
    "glm5-next": "glm4 glm5",
    "gpt-oss": "gpt-4o",
    "granite": "refact",
    "granite_swa": "refact gpt-4o",
    "granitehybrid": "dbrx gpt-4o granite-docling",
    "granitemoe": "refact starcoder",
    "grok": "grok-2",
    "grovemoe": "qwen2",
    "hunyuan-moe": "hunyuan",
    "hy_v3": "hunyuan hunyuan-dense",
    "hy_v4": "hy_v4",
    "jamba": "llama-bpe",
    "kimi-k3": "kimi-k2",
    "kimi-linear": "kimi-k2",
    "laguna": "laguna",
    "lfm2moe": "lfm2",
    "llama": "llama-bpe tekken smaug-bpe",
    "llama4": "llama4",
    "maple": "qwen2",
    "mellum": "mellum2",
    "mimo2": "qwen2",
    "minicpm": "",
    "minimax-01": "minimax-m2",
    "minimax-m2": "minimax-m2",
    "minimax-m3": "minimax-m2",
    "mistral4": "tekken",
    "nemotron_h_moe": "pixtral tekken",
    "olmo2": "dbrx",
    "olmoe": "olmo dbrx",
    "phi3": "gpt-4o",
    "phimoe": "",
    "qwen2": "qwen2 deepseek-r1-qwen",
    "qwen2moe": "qwen2",
    "qwen35moe": "qwen35",
    "qwen3": "qwen2",
    "qwen3moe": "qwen2",
    "qwen3next": "qwen2",
    "qwen3vlmoe": "qwen2",
    "qwen4exp": "qwen35",
    "smollm3": "llama-bpe",
    "starcoder2": "starcoder",
    "smallthinker": "qwen2",
    "step35": "deepseek-v3",
}
# All names in the loader of llama.cpp, and those of them that no file of a family has, which are not built.
LOADED = """
a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx deepseek-coder
deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon falcon-h1 falcon3 gemma4
gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2
hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano
joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0
minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact roberta-bpe sarvam-moe
seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie tekken tiny_aya trillion ufakzeka
viking whitespace youtu
"""
UNBUILT = {"chameleon", "default", "falcon", "jais-2", "spark2_5", "superbpe", "whitespace"}


def test_each_architecture_is_asked_about() -> None:
    assert sorted(WRITTEN) == SUPPORTED


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_each_family_finds_the_names_that_the_converter_writes_for_it(architecture: str) -> None:
    for name in WRITTEN[architecture].split():
        fields = gpt2(pre=name) | {"general.architecture": architecture}
        ids = built(fields).encode("the fox").ids
        assert ids, name


def test_every_name_of_llama_cpp_is_built_or_refused_by_name() -> None:
    assert len(LOADED.split()) == 91
    for name in LOADED.split():
        if name in UNBUILT:
            refused(gpt2(pre=name), repr(name))
        else:
            built(gpt2(pre=name))
    assert set(PRE_TOKENIZERS) <= set(LOADED.split())


def test_the_page_names_each_pre_tokenizer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "contributing" / "gguf.md").read_text()
    assert [name for name in [*PRE_TOKENIZERS, "sarvam-moe"] if f"`{name}`" not in page] == []


@given(STRINGS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_two_patterns_of_lfm_cut_alike(text: str) -> None:
    """That of LFM2.5 is written otherwise, and files of both have one name (llama.cpp#23826)."""
    published = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s"
    )
    step = json.loads(json.dumps(PRE_TOKENIZERS["lfm2"].steps[0]))
    cuts = []
    for pattern in (published, step["pattern"]["Regex"]):
        made = json.loads(Tokenizer(models.BPE()).to_str()) | {"pre_tokenizer": step | {"pattern": {"Regex": pattern}}}
        cuts.append(Tokenizer.from_str(json.dumps(made)).pre_tokenizer.pre_tokenize_str(text))
    assert cuts[0] == cuts[1]


class TestSarvam:
    """Byte pairs over whole texts with marks in place of spaces, in a file that says gpt2."""

    @staticmethod
    def original() -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        )
        tokenizer.train_from_iterator(TEXT, trainer)
        made: dict[str, Any] = json.loads(tokenizer.to_str())
        made["added_tokens"] = [each for each in made["added_tokens"] if not each["content"].startswith("<0x")]
        return Tokenizer.from_str(json.dumps(made))

    @given(STRINGS | st.text(alphabet="ab  c\n\u00e9\u65e5<s>", max_size=30))
    @settings(max_examples=100, deadline=None, derandomize=True)
    def test_ids_are_those_of_the_tokenizer_that_the_file_was_made_of(self, text: str) -> None:
        original = self.original()
        fields = tokenizer_fields(json.loads(original.to_str()), "sarvam-moe", unknown=0, bos=1)
        ours = built(fields | {"general.architecture": "bailingmoe2"})
        ids = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)


def test_files_of_pieces_need_no_name() -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a"]
    fields: dict[str, Any] = {"model": "llama", "tokens": tokens, "scores": array("f", [0.0] * 5)}
    fields["token_type"] = array("i", [2, 3, 3, 1, 1])
    made = built(
        {f"tokenizer.ggml.{name}": value for name, value in fields.items()} | {"tokenizer.ggml.pre": "default"}
    )
    assert made.encode("a").tokens == ["<s>", "\u2581", "a"]
