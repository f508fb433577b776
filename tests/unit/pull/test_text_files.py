"""What a pull finds out about the tokenizer of a checkpoint, before its weights move."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from moeinf.errors import TextError
from moeinf.pull.pull import plan_pull
from moeinf.text.templates.file import find_template
from moeinf.text.tokenizer import Tokenizer
from tests.support.checkpoints import CONFIG, TOKENIZER, write_checkpoint
from tests.support.pairs.pulled import pulled

ROWS = CONFIG["vocab_size"]


@pytest.mark.parametrize("added", [False, True], ids=["in the vocabulary", "added"])
@pytest.mark.parametrize("largest", [ROWS - 1, ROWS, ROWS + 300])
def test_tokens_without_an_embedding_are_told_at_pull_and_refused_in_prompts(
    largest: int, added: bool, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "c")
    tokenizer = copy.deepcopy(TOKENIZER)
    if added:
        token = {"id": largest, "content": "<pad>", "single_word": False, "lstrip": False, "rstrip": False}
        tokenizer["added_tokens"] = [token | {"normalized": False, "special": True}]
    tokenizer["model"]["vocab"]["<pad>"] = largest
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    told = f"the model has an embedding for the first {ROWS} alone"
    assert any(told in line for line in plan_pull(str(folder), home=tmp_path / "home").fallbacks) == (largest >= ROWS)
    stored, notes = pulled(folder)
    assert any(told in line and f"tokens up to {largest}" in line for line in notes) == (largest >= ROWS)
    with Tokenizer(stored.path, num_embeddings=stored.manifest.info.vocab_size) as text:
        assert text.encode("a b", control_tokens=True) == [0, 1]  # all others work
        if added and largest >= ROWS:
            with pytest.raises(TextError, match=rf"token {largest} \('<pad>'\).*leave that text out of the prompt"):
                text.encode("a <pad>", control_tokens=True)


@pytest.mark.parametrize("many", [True, False])
def test_a_template_for_tools_in_a_folder_of_its_own_is_taken_over(many: bool, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / "chat_template.jinja").write_text("a")
    if many:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text("b")
    stored, _ = pulled(folder)
    assert find_template(stored.path, {}) == "a"
    assert find_template(stored.path, {}, with_tools=True) == ("b" if many else "a")
