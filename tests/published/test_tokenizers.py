"""Tokenizers as published: they encode as in transformers, and keep control tokens and thoughts apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from moeinf.text.tokenizer import Tokenizer
from tests.support.shown_text import shown_in_chat


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


QWEN_CHATS = [
    [turn("user", "hi")],
    [
        turn("system", "You are terse."),
        turn("user", "hi"),
        turn("assistant", "<think>\nhm\n</think>\n\nyes"),
        turn("user", "日本 🎉"),
    ],
]


@pytest.mark.parametrize("chat", QWEN_CHATS)
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}])
def test_qwen3_is_rendered_and_encoded_as_by_transformers(
    published: Path, tmp_path: Path, chat: list[dict[str, str]], variables: dict[str, Any]
) -> None:
    source = published / "qwen3-30b-a3b"
    shutil.copy(source / "tokenizer.derived.json", tmp_path / "tokenizer.json")
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    shutil.copy(source / "config.json", tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    options = {"add_generation_prompt": True, **variables}
    with Tokenizer(tmp_path) as tokenizer:
        text, notes = tokenizer.render(chat, variables)
        assert text == theirs.apply_chat_template(chat, tokenize=False, **options) and notes == []
        assert tokenizer.encode_chat(text) == theirs.apply_chat_template(chat, return_dict=False, **options)


@pytest.mark.parametrize(
    ("name", "answer", "variables"),
    [("qwen3-30b-a3b", "<think>\nhm\n</think>\n\nyes", {}), ("qwen3-30b-a3b", "yes", {"enable_thinking": False})],
)
def test_real_tokenizers_and_templates_keep_thoughts_apart_and_forget_them(
    published: Path, tmp_path: Path, name: str, answer: str, variables: dict[str, object]
) -> None:
    source = published / name
    shutil.copy(source / "tokenizer.derived.json", tmp_path / "tokenizer.json")
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    shutil.copy(next(source.glob("chat_template*")), tmp_path / "chat_template.jinja")
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert shown_in_chat(tmp_path, answer, variables=variables) == ("" if variables else "hm", "yes")
    with Tokenizer(tmp_path) as tokenizer:
        chat = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
            {"role": "user", "content": "more"},
        ]
        text, _ = tokenizer.render(chat)
        assert "<|im_start|>assistant\nyes<|im_end|>" in text and "hm" not in text


FAMILIES = [
    "qwen3-30b-a3b/tokenizer.derived.json",
    "deepseek-v2-lite/tokenizer.derived.json",
    "gpt-oss-20b/tokenizer.derived.json",
    "granite-3.1-1b-a400m-instruct/tokenizer.json",
    "olmoe-1b-7b-0125/tokenizer.json",
    "qwen1.5-moe-a2.7b/tokenizer.derived.json",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_control_token_of_real_vocabularies_passes_through_a_message(
    published: Path, tmp_path: Path, name: str
) -> None:
    shutil.copy(published / name, tmp_path / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with Tokenizer(tmp_path) as tokenizer:
        specials = [tokenizer.decode([token], skip_special=False) for token in sorted(tokenizer.special_ids)]
        attack = "a" + " b".join(text for text in specials if text.strip())
        ids = tokenizer.encode_chat(tokenizer.render([turn("user", attack)])[0])
        assert specials and not tokenizer.special_ids & set(ids)
        assert tokenizer.special_ids & set(tokenizer.encode(attack, control_tokens=True, bos=False))
