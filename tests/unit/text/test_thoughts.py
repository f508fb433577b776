"""Thoughts are told apart from the answer, whatever their tags are made of and wherever a token ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from moeinf.errors import UsageError
from moeinf.text.templates.template_facts import read_facts
from moeinf.text.thinking_text import TemplateFacts, ends_thoughts, template_variables, think_of_effort
from moeinf.text.thoughts import Tags, ThoughtStream, answer_tags_of, tags_of
from moeinf.text.vocabulary import end_ids
from tests.support.shown_text import apart, shown_in_chat
from tests.support.text_models import byte_level_tokenizer
from tests.support.true_configs import PUBLISHED

MakeFolder = Callable[..., Path]
KINDS = ["letters", "tokens", "control tokens"]
THINK, BRACKETS = tags_of("</think>"), tags_of("[/THINK]")
ASKED = "<|im_start|>assistant\n"  # ends of prompts
OPENED, CLOSED = ASKED + "<think>\n", ASKED + "<think>\n\n</think>\n\n"


@cache
def tokenizer_of(kind: str) -> Library:
    """One whose tags are plain letters, tokens as in Qwen3, or control tokens as in Mistral."""
    tokenizer = byte_level_tokenizer()
    if kind != "letters":
        tags = [
            AddedToken(tag, special=kind == "control tokens", normalized=False)
            for tag in ("<think>", "</think>", "[THINK]", "[/THINK]")
        ]
        (tokenizer.add_special_tokens if kind == "control tokens" else tokenizer.add_tokens)(tags)
    return tokenizer


def answered(kind: str, prompt: str, answer: str, tags: Tags | None = THINK) -> tuple[str, str]:
    tokenizer = tokenizer_of(kind)
    stream = ThoughtStream(tokenizer, tokenizer.encode(prompt).ids, tags, skip_special=True)
    return apart(
        [*(piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])), *stream.flush()]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        (ASKED, "<think>\nHm, 日本.\n\nYes.\n</think>\n\nHello\n\nworld\n", ("Hm, 日本.\n\nYes.", "Hello\n\nworld\n")),
        (ASKED, "\n<think>a</think>b", ("a", "b")),
        (ASKED, "<think>\n\n</think>\n\nHello", ("", "Hello")),
        (ASKED, " Hello <think>no</think>", ("", " Hello <think>no</think>")),
        (ASKED, "<thinking> is no tag", ("", "<thinking> is no tag")),
        (ASKED, "<thin", ("", "<thin")),
        (ASKED, "a </think> b", ("", "a </think> b")),
        (ASKED, "<think>a < b </ think </thinker", ("a < b </ think </thinker", "")),
        (ASKED, "<think>cut in the middle</thi", ("cut in the middle</thi", "")),
        (ASKED, "<think>a</think>see <think>b</think>", ("a", "see <think>b</think>")),
        (ASKED, "<think>a</think>", ("a", "")),
        (ASKED, "  ", ("", "  ")),
        (OPENED, "Hm.\n</think>\n\nHello", ("Hm.", "Hello")),
        (OPENED, "\n</think>Hello", ("", "Hello")),
        (OPENED, "never closed ", ("never closed ", "")),
        (CLOSED, "\n<think>opens a thought", ("", "<think>opens a thought")),
    ],
)
def test_thoughts_and_answer_come_apart(kind: str, prompt: str, answer: str, expected: tuple[str, str]) -> None:
    if kind == "control tokens":  # which are no text where they are no tags either
        expected = (expected[0], expected[1].replace("<think>", "").replace("</think>", ""))
    assert answered(kind, prompt, answer) == expected
    in_brackets = [text.replace("<", "[").replace(">", "]").replace("think", "THINK") for text in (prompt, answer)]
    prompt, thought = in_brackets[0].replace("[|im_start|]", "<|im_start|>"), expected[0]
    assert answered(kind, prompt, in_brackets[1], BRACKETS)[0] == (
        thought.replace("<", "[").replace(">", "]").replace("think", "THINK")
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("begun", "answer", "expected"),
    [
        ("<think>\nHm,", " yes.\n</think>\n\nHello", (" yes.", "Hello")),
        ("<think>\nHm," + " so" * 40, " yes.</think>Hello", (" yes.", "Hello")),
        ("<think>\nHm,", " cut </thi", (" cut </thi", "")),
        ("<think>\n", "Hm.</think>Hello", ("Hm.", "Hello")),
        ("<think>a</think>\n\nHel", "lo <think>b", ("", "lo <think>b")),
        ("<think>a</think>b <think>c", " d</think>e", (" d", "e")),
        ("Hel", "lo", ("", "lo")),
    ],
)
def test_an_answer_that_begins_in_a_thought_goes_on_there(
    kind: str, begun: str, answer: str, expected: tuple[str, str]
) -> None:
    if kind == "control tokens":
        expected = (expected[0], expected[1].replace("<think>", ""))
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(ASKED + begun).ids
    stream = ThoughtStream(tokenizer, ids[-32:], THINK, skip_special=True, begun=begun)
    pieces = [piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])]
    assert apart([*pieces, *stream.flush()]) == expected


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        (ASKED, "<|channel>thought\nHm.\n<channel|>Hello", ("Hm.", "Hello")),
        (ASKED, "<|channel>thought\nthought is free.\n<channel|>Hello", ("thought is free.", "Hello")),
        (ASKED, "<|channel>thoughtless<channel|>b", ("less", "b")),
        (ASKED, "<|channel>tho<channel|>b", ("tho", "b")),
        (ASKED, "<|channel>Hm.<channel|>b", ("Hm.", "b")),
        (ASKED, "<|channel>thought\n<channel|>Hello", ("", "Hello")),
        (ASKED, "Hello", ("", "Hello")),
        (ASKED + "<|channel>thought\n", "thought<channel|>Hello", ("thought", "Hello")),
        (ASKED + "<|channel>thought\n<channel|>", "Hello", ("", "Hello")),
    ],
)
def test_the_word_behind_a_tag_of_gemma_is_no_part_of_the_thought(
    prompt: str, answer: str, expected: tuple[str, str]
) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(tag, normalized=False) for tag in ("<|channel>", "<channel|>")])
    stream = ThoughtStream(tokenizer, tokenizer.encode(prompt).ids, tags_of("<channel|>"), skip_special=True)
    pieces = [piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])]
    assert apart([*pieces, *stream.flush()]) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<|think|>Hm.\nYes.<|end|><|begin|>assistant<|content|>Hi, all.<|end|><|flush|>", ("Hm.\nYes.", "Hi, all.")),
        ("<|content|>Hi<|end|><|flush|>", ("", "Hi")),
        ("<|think|><|end|><|begin|>assistant<|content|>assistant is a word", ("", "assistant is a word")),
        ("<|think|>Hm.<|end|>", ("Hm.", "")),
        ("<|think|>Hm.<|end|><|begin|>assist", ("Hm.", "assist")),
    ],
)
def test_solars_thought_is_a_message_before_that_of_its_answer(answer: str, expected: tuple[str, str]) -> None:
    template = (PUBLISHED / "solar-open-100b" / "chat_template.jinja").read_text(encoding="utf-8")
    tags, answer_tags, tokenizer = tags_of(template), answer_tags_of(template), byte_level_tokenizer()
    marks = ("begin", "end", "think", "content", "flush", "calls")
    tokenizer.add_special_tokens([AddedToken(f"<|{mark}|>", normalized=False) for mark in marks])
    assert tokenizer.token_to_id("<|end|>") not in end_ids(tokenizer, {}, {}, {})
    prompt = tokenizer.encode("<|begin|>user<|content|>q<|end|><|begin|>assistant").ids
    stream = ThoughtStream(tokenizer, prompt, tags, skip_special=True, answer_tags=answer_tags)
    pieces = [piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])]
    assert apart([*pieces, *stream.flush()]) == expected
    ended = [*prompt, *tokenizer.encode("<|think|><|end|>").ids]
    stream = ThoughtStream(tokenizer, ended, tags, skip_special=True, answer_tags=answer_tags)
    pieces = stream.step(tokenizer.encode("<|begin|>assistant<|content|>Hi<|end|>").ids)
    assert apart([*pieces, *stream.flush()]) == ("", "Hi")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", ["</think>", "\n</think>\n\n", "</think></think>"])
def test_an_answer_that_begins_with_the_closing_tag_has_no_thought(kind: str, begun: str) -> None:
    assert answered(kind, ASKED, f"{begun}Yes.") == ("", "Yes.")
    shown = "" if kind == "control tokens" else "</think>"
    assert answered(kind, ASKED, "Yes.</think>No.") == ("", f"Yes.{shown}No.")
    assert answered(kind, ASKED, "</thin") == ("", "</thin")


@pytest.mark.parametrize("kind", KINDS[:2])
def test_without_tags_everything_is_text(kind: str) -> None:
    assert answered(kind, OPENED, "a</think>b", None) == ("", "a</think>b")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("<think>a</think>\n<response>b c\n</response>\n", ("a", "b c\n")),
        ("<think>a</think><response>b", ("a", "b")),
        ("<think>a</think>b </response> c", ("a", "b </response> c")),
        ("<think>a</think><resp", ("a", "<resp")),
        ("<think>a</think><response>b </resp", ("a", "b </resp")),
        ("<response>b</response>", ("", "<response>b</response>")),
    ],
)
def test_tags_around_an_answer_behind_a_thought_are_taken_off(
    kind: str, answer: str, expected: tuple[str, str]
) -> None:
    tokenizer = tokenizer_of(kind)
    tags = answer_tags_of("Write your response between <response></response>")
    stream = ThoughtStream(tokenizer, tokenizer.encode(ASKED).ids, THINK, skip_special=True, answer_tags=tags)
    pieces = [piece for token in tokenizer.encode(answer).ids for piece in stream.step([token])]
    assert apart([*pieces, *stream.flush()]) == expected


def test_where_tags_are_tokens_their_letters_are_text() -> None:
    tokenizer = tokenizer_of("control tokens")
    stream = ThoughtStream(tokenizer, [], THINK, skip_special=True)
    letters = [token for letter in "a </think> b" for token in tokenizer.encode(letter).ids]
    pieces = stream.step([*tokenizer.encode("<think>").ids, *letters])
    assert apart([*pieces, *stream.flush()]) == ("a </think> b", "")


@pytest.mark.parametrize("opened", ["think", "think_fast", "think_faster"])
@pytest.mark.parametrize("long", [True, False])
def test_a_shorter_thought_has_tags_of_its_own_and_may_end_with_those_of_a_long_one(opened: str, long: bool) -> None:
    """As K2 Horizon's; its template opens them by the effort that is asked for."""
    tokenizer = byte_level_tokenizer()
    names = ("think", "think_fast", "think_faster")
    tokenizer.add_tokens([AddedToken(f"<{end}ifm|{name}>", normalized=False) for name in names for end in ("", "/")])
    prompt, closing = tokenizer.encode(f"{ASKED}<ifm|{opened}>\n").ids, "think" if long else opened
    tags = tags_of("{{ '<ifm|think>' }}</ifm|think>")
    stream = ThoughtStream(tokenizer, prompt, tags, skip_special=True)
    pieces = stream.step(tokenizer.encode(f"Hm.\n</ifm|{closing}>\nHello").ids)
    assert apart([*pieces, *stream.flush()]) == ("Hm.", "Hello")
    assert tags == ("<ifm|think>", "</ifm|think>")


def test_a_thought_is_shown_as_it_comes_and_only_what_may_be_a_tag_is_held() -> None:
    tokenizer = tokenizer_of("letters")
    stream = ThoughtStream(tokenizer, tokenizer.encode(OPENED).ids, THINK, skip_special=True)
    shown = [apart(stream.step(tokenizer.encode(text).ids)) for text in ("x", "<", "y", "<", "/")]
    assert shown == [("x", ""), ("", ""), ("<y", ""), ("", ""), ("", "")]
    assert apart(stream.flush()) == ("</", "")


def test_the_template_tells_the_tags_and_only_behind_it_they_count(model_folder: MakeFolder) -> None:
    folder = model_folder("{{ messages[0].content }}<think>\n{# </think> #}", tokenizer=tokenizer_of("tokens"))
    assert shown_in_chat(folder, "a</think>b") == ("a", "b")
    assert shown_in_chat(folder, "a</think>b", chat=False) == ("", "a</think>b")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert shown_in_chat(folder, "<think>a</think>b") == ("", "<think>a</think>b")


SWITCH = TemplateFacts(frozenset({"enable_thinking", "x"}), thinks=True, tools=False)
EFFORT = TemplateFacts(frozenset({"reasoning_effort"}), thinks=True, tools=False)
BOTH = TemplateFacts(frozenset({"thinking", "reasoning_effort"}), thinks=True, tools=False)
ALWAYS = TemplateFacts(frozenset(), thinks=True, tools=False)


@pytest.mark.parametrize(
    ("facts", "think", "given", "variables"),
    [
        (SWITCH, None, {}, {}),
        (SWITCH, "true", {}, {"enable_thinking": True}),
        (SWITCH, "false", {"x": 1}, {"enable_thinking": False, "x": 1}),
        (None, None, {}, {}),
        (None, "false", {}, {}),
        (TemplateFacts(frozenset(), thinks=False, tools=False), "false", {}, {}),
        (EFFORT, "true", {}, {}),
        (EFFORT, "high", {}, {"reasoning_effort": "high"}),
        (EFFORT, "max", {}, {"reasoning_effort": "high"}),
        (ALWAYS, "true", {}, {}),
        (ALWAYS, "false", {}, {}),
        (EFFORT, "false", {}, {}),
        (BOTH, "low", {}, {"thinking": True, "reasoning_effort": "low"}),
        (BOTH, "false", {}, {"thinking": False}),
        (BOTH, "low", {"reasoning_effort": "max"}, {"thinking": True, "reasoning_effort": "max"}),
    ],
)
def test_a_template_is_told_in_its_own_variables(
    facts: TemplateFacts | None, think: str | None, given: dict[str, object], variables: dict[str, object]
) -> None:
    assert template_variables(facts, think, given) == variables


@pytest.mark.parametrize(
    ("facts", "think", "given", "said"),
    [
        (None, "true", {}, "this model does not think"),
        (TemplateFacts(frozenset(), thinks=False, tools=False), "high", {}, "this model does not think"),
        (SWITCH, "high", {}, "no levels of thinking, only true and false"),
        (ALWAYS, "low", {}, "levels of thinking, only"),
        (SWITCH, "loud", {}, "think cannot be 'loud'; it is one of true, false, low, medium, high"),
        (SWITCH, None, {"y": 1}, "reads no variable 'y'; it reads: enable_thinking, x$"),
        (None, None, {"y": 1}, "it reads: none that can be given$"),
    ],
)
def test_what_a_template_would_ignore_is_refused(
    facts: TemplateFacts | None, think: str | None, given: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        template_variables(facts, think, given)


def test_thoughts_that_have_no_switch_are_ended() -> None:
    assert ends_thoughts(ALWAYS, "false") and ends_thoughts(EFFORT, False)
    assert not ends_thoughts(SWITCH, "false") and not ends_thoughts(None, "false")
    assert not any(ends_thoughts(ALWAYS, think) for think in (None, "true", "low", True))


@pytest.mark.parametrize(
    ("facts", "effort", "think"),
    [
        (EFFORT, "minimal", "low"),
        (EFFORT, "medium", "medium"),
        (EFFORT, "max", "max"),
        (BOTH, "none", False),
        (BOTH, "xhigh", "max"),
        (SWITCH, "none", False),
        (SWITCH, "minimal", True),
        (ALWAYS, "high", True),
        (None, "none", None),
        (TemplateFacts(frozenset(), thinks=False, tools=False), "none", None),
    ],
)
def test_openais_words_for_effort_are_those_of_the_template(
    facts: TemplateFacts | None, effort: str, think: bool | str | None
) -> None:
    assert think_of_effort(facts, effort) == think
    template_variables(facts, None if think is None else str(think).lower(), {})  # which takes it


def test_an_effort_that_nobody_knows_is_refused_and_one_of_a_model_that_does_not_think() -> None:
    with pytest.raises(UsageError, match="reasoning_effort cannot be 'hard'; it is one of none, minimal"):
        think_of_effort(EFFORT, "hard")
    with pytest.raises(UsageError, match="this model does not think"):
        template_variables(None, str(think_of_effort(None, "high")).lower(), {})


def test_a_template_that_cannot_be_parsed_has_no_facts() -> None:
    assert read_facts("{% if %}") == TemplateFacts(frozenset(), thinks=False, tools=False)
    assert read_facts("{{ " + "(" * 5000 + " }}") == TemplateFacts(frozenset(), thinks=False, tools=False)


def test_what_every_template_is_given_and_what_it_makes_itself_is_not_asked_for() -> None:
    source = (
        "{% macro m(p) %}{{ p }}{% endmacro %}{% set a = messages %}{% for b in a %}{{ m(b) }}{{ loop.index }}"
        "{{ strftime_now('%Y') }}{{ bos_token }}{{ c }}{% endfor %}{% set d = d | default(1) %}{{ tools }}"
    )
    assert read_facts(source) == TemplateFacts(frozenset({"c", "d"}), thinks=False, tools=False)
    assert read_facts(source + "<tool_call>") == TemplateFacts(frozenset({"c", "d"}), thinks=False, tools=True)
