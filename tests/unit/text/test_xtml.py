"""Kimi K3's elements: what is thought, said and called, wherever the prompt and the answer end."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from moeinf.text.channels.xtml import begun_in
from moeinf.text.forms.thought_marks import marks_of_tags
from moeinf.text.grammar import Grammars
from moeinf.text.text_stream import Piece
from moeinf.text.thoughts import XTML_TAGS, tags_of
from moeinf.text.tokenizer import Tokenizer as Worker
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.open_stream import open_stream
from tests.support.tool_families import BY_NAME, CHAT, TOOLS

K3 = BY_NAME["kimi-k3"]
OPEN_THINK, OPEN_RESPONSE = "<|open|>think<|sep|>", "<|open|>response<|sep|>"
END_THINK, END_RESPONSE = "<|close|>think<|sep|>", "<|close|>response<|sep|>"
ASSISTANT = '<|open|>message role="assistant"<|sep|>'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return K3.tokenizer()


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def read(tokenizer: Tokenizer, prompt: str, answer: str, *, cut: bool = False) -> tuple[str, str, list[str]]:
    stream = open_stream(
        tokenizer,
        ids(tokenizer, prompt),
        skip_special=True,
        tags=tags_of(K3.template),
        syntax=find_syntax(K3.template),
        tools=TOOLS,
    )
    pieces: list[Piece] = [p for token in ids(tokenizer, answer) for p in stream.step([token])] + stream.flush(cut=cut)
    calls = [p.call.name for p in pieces if p.call is not None and p.call.name is not None]
    return "".join(p.text for p in pieces if p.thought), "".join(p.text for p in pieces if not p.thought), calls


@pytest.mark.parametrize(
    ("prompt", "answer", "wanted"),
    [
        (OPEN_THINK, f" Hm. \n{END_THINK}{OPEN_RESPONSE}\nYes.{END_RESPONSE}<|close|>message<|sep|>", ("Hm.", "Yes.")),
        (OPEN_RESPONSE, f"Yes. {END_RESPONSE}<|close|>message<|sep|>", ("", "Yes. ")),
        (f"{OPEN_RESPONSE}It is", f" so.{END_RESPONSE}", ("", "so.")),
        (ASSISTANT, f"{OPEN_THINK}Hm.{END_THINK}{OPEN_RESPONSE}Yes.{END_RESPONSE}", ("Hm.", "Yes.")),
        (OPEN_THINK, f"{END_THINK}{OPEN_RESPONSE}Yes.", ("", "Yes.")),
        (OPEN_THINK, "Never ended", ("Never ended", "")),
        (OPEN_RESPONSE, "Write response and think, no tag.", ("", "Write response and think, no tag.")),
    ],
)
def test_thoughts_and_answers_are_told_by_their_elements(
    tokenizer: Tokenizer, prompt: str, answer: str, wanted: tuple[str, str]
) -> None:
    assert read(tokenizer, prompt, answer) == (*wanted, [])


@pytest.mark.parametrize("behind", ["", "<|close|>response<|sep|>", f"{END_THINK}", f"{OPEN_RESPONSE}{END_RESPONSE}"])
def test_the_end_of_a_thought_in_front_of_calls_may_be_forgotten(tokenizer: Tokenizer, behind: str) -> None:
    """As Kimi K3 forgets it in every twentieth turn with calls (vllm#53246)."""
    calls = K3.answer[K3.answer.index("<|open|>tools<|sep|>") :]
    found = read(tokenizer, OPEN_THINK, f"Hm.{behind}{calls}")
    assert found == ("Hm.", "", ["get_weather", "note"])


@pytest.mark.parametrize("end", ["<|close|>", "<|close|>thi", f"{END_THINK}<|open|>resp"])
def test_of_a_tag_that_is_cut_nothing_is_text(tokenizer: Tokenizer, end: str) -> None:
    assert read(tokenizer, OPEN_THINK, f"Hm.{end}", cut=True) == ("Hm.", "", [])


def test_arguments_may_be_one_object(tokenizer: Tokenizer) -> None:
    call = '<|open|>call tool="note" index="1"<|sep|><|open|>json type="object"<|sep|>{"text": "a"}<|close|>json<|sep|>'
    tools = f"<|open|>tools<|sep|>{call}<|close|>call<|sep|><|close|>tools<|sep|>"
    assert read(tokenizer, OPEN_RESPONSE, f"So.{END_RESPONSE}{tools}") == ("", "So.", ["note"])


def test_without_the_tokens_the_letters_of_tags_count() -> None:
    plain = BY_NAME["qwen3"].tokenizer()
    thought, said, _ = read(plain, OPEN_THINK, f"Hm.{END_THINK}Yes.")
    assert (thought, said) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("prompt", "begun"), [(OPEN_THINK, "think"), (f"{OPEN_RESPONSE}It", "response"), (ASSISTANT, ""), (END_THINK, "")]
)
def test_a_prompt_tells_what_it_has_begun(tokenizer: Tokenizer, prompt: str, begun: str) -> None:
    assert begun_in(tokenizer, ids(tokenizer, prompt)) == begun


def test_a_thought_can_be_ended(tokenizer: Tokenizer) -> None:
    marks = marks_of_tags(tokenizer, ids(tokenizer, OPEN_THINK), XTML_TAGS)
    assert marks is not None and marks.opened
    assert tokenizer.decode(list(marks.ends), skip_special_tokens=False) == f"{END_THINK}{OPEN_RESPONSE}"
    assert list(marks.opens) == ids(tokenizer, OPEN_THINK) and marks.closes == ids(tokenizer, "<|close|>")[0]


@pytest.mark.parametrize(
    ("prompt", "answer", "allowed"),
    [
        (OPEN_THINK, f"Hm.{END_THINK}{OPEN_RESPONSE}[1]", True),
        (OPEN_THINK, f"Hm.{END_THINK}[1]", False),
        (OPEN_RESPONSE, "[1]", True),
        (OPEN_RESPONSE, "one", False),
        (OPEN_RESPONSE, f"{END_RESPONSE}<|open|>tools<|sep|>", True),
    ],
)
def test_an_answer_that_has_a_form_stands_in_its_element(
    tokenizer: Tokenizer, prompt: str, answer: str, allowed: bool
) -> None:
    grammars = Grammars(tokenizer, ids(tokenizer, "<|end_of_msg|>"))
    around = grammars.around_thoughts(ids(tokenizer, prompt), XTML_TAGS, ("<|open|>tools<|sep|>",))
    state = grammars.constrain(1, around, [{"prefix": "", "suffix": "", "schema": json.dumps({"type": "array"})}])
    for token in ids(tokenizer, answer):
        if state["complete"] or not _allows(state["mask"], token):
            assert not allowed
            return
        state = grammars.accept(1, token)
    assert allowed


def _allows(mask: str, token: int) -> bool:
    bits = base64.b64decode(mask)
    return bool(bits[token // 8] >> token % 8 & 1)


def test_levels_of_thinking_are_told_by_the_templates_own_variable(tmp_path: Path) -> None:
    with Worker(K3.write(tmp_path)) as worker:
        assert (
            worker.template is not None and worker.template.has_levels and worker.template.effort == "thinking_effort"
        )
        text, _ = worker.render(CHAT[:2], {"thinking_effort": "low"})
        assert text.count("low") == 1
