"""What an answer is held to that must be a call of a tool."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from moeinf.engine.stored.facts import StoredFacts
from moeinf.sampling.constraint import FramedJson, FramedValues, held_to
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.forced_calls import forced_calls
from moeinf.store.library import StoredModel
from moeinf.text.text_stream import Piece
from moeinf.text.thoughts import tags_of
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import byte_level_tokenizer, write_text_model
from tests.support.tool_families import BY_NAME, TOOLS
from tests.support.true_configs import PUBLISHED


def facts(folder: Path, family: str) -> StoredFacts:
    return StoredFacts(StoredModel("m", "0" * 12, BY_NAME[family].write(folder)))


def test_the_arguments_are_held_to_the_schema_of_each_tool(tmp_path: Path) -> None:
    model = facts(tmp_path, "kimi")
    begins = "<|tool_calls_section_begin|><|tool_call_begin|>functions."
    weather, note = (FramedJson(tool["function"]["parameters"], f"{begins}{tool['function']['name']}"
        ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>") for tool in TOOLS)  # fmt: skip
    assert forced_calls(model, TOOLS, None) == [weather, note]
    assert forced_calls(model, TOOLS, "note") == [note]
    bare = {"type": "function", "function": {"name": "f", "parameters": None}}
    assert [form.schema for form in forced_calls(model, [bare], None)] == [{"type": "object"}]  # type: ignore[union-attr]


MIXED: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "mixed",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"]},
                "count": {"$ref": "#/$defs/small"},
                "text": {"type": "string"},
            },
            "required": ["unit", "count"],
            "$defs": {"small": {"type": "integer", "minimum": 1, "maximum": 3}},
        },
    },
}


def published(folder: Path, name: str, token: str) -> StoredFacts:
    """A model with this template, in whose vocabulary a mark is a token."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)] if token else [])
    template = (PUBLISHED / name / "chat_template.jinja").read_text(encoding="utf-8")
    return StoredFacts(StoredModel("m", "0" * 12, write_text_model(folder, template, tokenizer)))


HELD: list[tuple[str, str]] = [
    ("qwen3-coder", ""),
    ("glm", ""),
    ("deepseek-v3.2", "｜DSML｜"),
    ("deepseek-v3.2", ""),
    ("deepseek-v4-flash", "｜DSML｜"),
    ("minimax-m2.5", "<minimax:tool_call>"),
    ("hy3-preview", "<arg_value:opensource>"),
]


@pytest.mark.parametrize(("family", "mark"), HELD)
@pytest.mark.parametrize("seed", range(3))
def test_values_in_plain_text_are_held_one_by_one(tmp_path: Path, family: str, mark: str, seed: int) -> None:
    """Tokens are drawn at random of those that may come; free text is ended soon."""
    model = facts(tmp_path, family) if family in BY_NAME else published(tmp_path, family, mark)
    held: Any = forced_calls(model, [MIXED, *TOOLS], "mixed")
    (form,) = held
    assert isinstance(form, FramedValues) and [value.required for value in form.values] == [True, True, False]
    draw, written = random.Random(seed), list[int]()
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    thought = library.encode("".join(tags_of(model.template) or ())).ids  # so that no other one may come
    end = library.encode(form.values[2].end).ids
    with Tokenizer(tmp_path) as tokenizer:
        stream = tokenizer.stream(thought, chat=True, tools=[MIXED, *TOOLS])
        constraint = held_to(stream, [form], tokenizer.num_ids)
        pieces, done = list[Piece](), 0
        while not constraint.complete and len(written) < 400:
            allowed = constraint.allowed()
            token = int(draw.choice(allowed))
            if len(allowed) > tokenizer.num_ids // 2 or 0 < done < len(end):  # within free text
                token, done = end[done], done + 1
            written.append(token)
            constraint.accept(token)
            pieces += stream.step(token)
        pieces += stream.flush()
    assert len(written) < 400
    assert not any(piece.text.strip() for piece in pieces if not piece.thought)
    parts = [piece.call for piece in pieces if piece.call]
    assert [part.name for part in parts if part.name] == ["mixed"]
    arguments = json.loads("".join(part.arguments for part in parts))
    assert arguments.pop("unit") in ("C", "F") and arguments.pop("count") in (1, 2, 3)
    assert set(arguments) <= {"text"}


def test_of_forms_that_nest_only_some_call_can_be_had(tmp_path: Path) -> None:
    BY_NAME["glm"].write(tmp_path)
    shutil.copy(PUBLISHED / "minimax-m3" / "chat_template.jinja", tmp_path / "chat_template.jinja")
    model = StoredFacts(StoredModel("m", "0" * 12, tmp_path))
    assert forced_calls(model, TOOLS, None) == "call"
    with pytest.raises(Refusal, match="cannot be held to one tool"):
        forced_calls(model, TOOLS, "note")


def test_where_the_template_knows_no_tools_the_call_has_the_form_that_the_model_is_told(tmp_path: Path) -> None:
    BY_NAME["glm"].write(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    model = StoredFacts(StoredModel("m", "0" * 12, tmp_path))
    begins, ends = '<tool_call>\n{"name": "note", "arguments": ', "}\n</tool_call>"
    assert forced_calls(model, TOOLS, "note") == [FramedJson(TOOLS[1]["function"]["parameters"], begins, ends)]
