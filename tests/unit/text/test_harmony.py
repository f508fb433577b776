"""What is shown of gpt-oss's answers, and what it is reminded of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeinf.text.tokenizer import Tokenizer
from tests.support.shown_text import apart, shown
from tests.support.text_models import byte_level_tokenizer, write_text_model

MakeFolder = Callable[..., Path]
SPECIALS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>"]
THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello 日本!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = {"eos_token": "<|return|>"}
    found = tmp_path_factory.mktemp("harmony")
    return write_text_model(found, tokenizer=byte_level_tokenizer(SPECIALS), tokenizer_config=words)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Iterator[Tokenizer]:
    """One process for all that only read answers."""
    with Tokenizer(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        (THOUGHT + FINAL, "They greet.", "Hello 日本!"),
        ("<|channel|>final<|message|>Hello", "", "Hello"),
        ("<|channel|>analysis<|message|>They", "They", ""),
        ("<|channel|>ana", "", ""),
        (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, "They greet.\n\nThey greet.", "Hello 日本!"),
        (
            "<|channel|>commentary to=f <|constrain|>json<|message|>{}<|end|><|start|>assistant" + THOUGHT + FINAL,
            "They greet.",
            "{}\n\nHello 日本!",
        ),
        ("<|channel|>commentary to=browser.search code<|message|>{}<|end|>" + FINAL, "{}", "Hello 日本!"),
        ("<|message|>no channel", "", "no channel"),
        ("<|channel|>final<|message|>It says <think>", "", "It says <think>"),
    ],
)
def test_analysis_is_thought_and_heads_are_not_shown_at_all(folder: Path, answer: str, thought: str, text: str) -> None:
    assert shown(folder, answer) == (thought, text)


def test_a_raw_prompt_goes_on_as_text_wherever_it_ends(folder: Path) -> None:
    assert shown(folder, " goes on", prompt="The fox") == ("", " goes on")
    begun = "<|start|>assistant<|channel|>final<|message|>It is "
    assert shown(folder, "fine<|end|>" + FINAL, begun) == ("", "fine\n\nHello 日本!")


def test_words_of_the_format_that_are_text_stay_text(folder: Path) -> None:
    with Tokenizer(folder) as tokenizer:
        stream = tokenizer.stream()
        pieces = [piece for token in tokenizer.encode("<|channel|>analysis") for piece in stream.step(token)]
        assert apart(pieces) == ("", "<|channel|>analysis")


CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'


@pytest.mark.parametrize(
    ("answer", "thought", "text", "calls"),
    [
        (THOUGHT + "<|start|>assistant" + CALL, "They greet.", "", ['f{"a": 1}']),
        (
            CALL + "<|end|><|start|>assistant" + FINAL.removeprefix("<|start|>assistant"),
            "",
            "Hello 日本!",
            ['f{"a": 1}'],
        ),
        (CALL + '<|message|>{"a": 2}', "", '{"a": 2}', ['f{"a": 1}']),
        (
            ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|message|>{"a": 2}',
            "",
            '{"a": 2}',
            ['f{"a": 1}'],
        ),
        (CALL + CALL, "", "", ['f{"a": 1}', 'f{"a": 1}']),
        ("<|channel|>commentary to=functions.f<|message|>", "", "", ["f{}"]),
        ("<|channel|>commentary to=functions.f<|message|>not JSON", "", "not JSON", []),
        (
            "<|channel|>final<|message|>See:<|end|><|start|>assistant" + CALL + " more",
            "",
            "See:\n\n more",
            ['f{"a": 1}'],
        ),
        ("<|channel|>analysis to=functions.f code<|message|>{}", "", "", ["f{}"]),
        ("<|channel|>commentary to=python<|message|>print()", "print()", "", []),
        (
            "<|channel|>commentary to=browser.search code<|message|>{}<|end|><|start|>assistant" + CALL,
            "{}",
            "",
            ['f{"a": 1}'],
        ),
        ("<|channel|>commentary to=user<|message|>I look it up.", "", "I look it up.", []),
        ('<|channel|>commentary to=functions.f <|message|>{"a": 1 2}', "", "", ['f{"a": 1 ']),
        ("<|channel|>commentary<|message|>I look it up.", "", "I look it up.", []),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', "", "", ['f{"a": 1}']),
    ],
)
def test_a_message_to_a_function_is_a_call(
    tokenizer: Tokenizer, answer: str, thought: str, text: str, calls: list[str]
) -> None:
    assert told(tokenizer, answer) == (thought, text, calls)


def told(
    tokenizer: Tokenizer, answer: str, *, prompt: str = "<|start|>assistant", name: str = "f", cut: bool = False
) -> tuple[str, str, list[str]]:
    """What was thought, what was said, and the calls: names with their arguments."""
    tools = [{"type": "function", "function": {"name": name}}]
    stream = tokenizer.stream(tokenizer.encode(prompt, control_tokens=True), tools=tools)
    ids = tokenizer.encode(answer, control_tokens=True)
    pieces = [*(piece for token in ids for piece in stream.step(token)), *stream.flush(cut=cut)]
    called: dict[int, str] = {}
    for piece in pieces:
        if piece.call:
            called[piece.call.index] = called.get(piece.call.index, piece.call.name or "") + piece.call.arguments
    return *apart(pieces), [called[index] for index in range(len(called))]


HEADS = [
    "<|channel|>commentary to=functions.NAME<|constrain|>json",
    "<|channel|>commentary to=functions.NAME <|constrain|>json",
    "<|channel|>commentary to=functions.NAME<|constrain|>code",
    "<|channel|>commentary to=functions.NAME<|constrain|>",
    "<|channel|>commentary to=functions.NAMEjson",
    "<|channel|>commentary to=functions.NAME json",
    "<|channel|>commentary to=NAME <|constrain|>json",
    "<|channel|>commentary<|constrain|>json to=NAME",
    "<|channel|>analysis to=NAME code",
    "<|channel|>final to=NAME",
    " to=functions.NAME<|channel|>commentary<|constrain|>json",
    " to=NAME<|channel|>analysis json",
    " to=NAME<|constrain|>json",
    "<|channel|>––commentary to=functions.NAME <|constrain|>json",
    "<|channel|> - analysis to=functions.NAME code",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=NAME<|channel|>commentary<|constrain|>json",
    "<|channel|>analysis<|message|>Hm.<|end|> assistant to=functions.NAME<|channel|>commentary",
]


@pytest.mark.parametrize("name", ["f", "get_weather", "mcp.files:read-all", "json", "x_json"])
@pytest.mark.parametrize("head", HEADS)
def test_a_head_names_its_tool_however_its_parts_stand_together(tokenizer: Tokenizer, head: str, name: str) -> None:
    answer = head.replace("NAME", name) + '<|message|>{"a": 1}'
    assert told(tokenizer, answer, name=name) == (answer.count("Hm.") * "Hm.", "", [name + '{"a": 1}'])


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        (THOUGHT + "So the answer is 4.", "They greet.", "So the answer is 4."),
        (THOUGHT + "Four", "They greet.", "Four"),
        (THOUGHT + "\n日本 is far", "They greet.", "日本 is far"),
        (THOUGHT + "assistant" + FINAL.removeprefix("<|start|>assistant"), "They greet.", "Hello 日本!"),
        (THOUGHT + "<|start|>assistant So be it", "They greet.", "So be it"),
        (THOUGHT + "<|start|>The end is near", "They greet.", "The end is near"),
        ("<|channel|>final So the answer is 4.", "", "So the answer is 4."),
        ("<|channel|>final 4", "", "4"),
        ("<|channel|>final json", "", ""),
        ("<|channel|>analysis I think so.", "I think so.", ""),
        (
            "<|channel|>analysis I think so.<|end|><|start|>assistant" + "<|channel|>final<|message|>4",
            "I think so.",
            "4",
        ),
        ("<|channel|>finally it ends", "", "finally it ends"),
        ("<|channel|>final<|constrain|>json {1}", "", "{1}"),
        ("So the answer is 4.", "", "So the answer is 4."),
        ("Four", "", "Four"),
        ("to", "", "to"),
        ("t", "", "t"),
        ("日本", "", "日本"),
        ("So it is.<|end|>And so on.", "", "So it is.\n\nAnd so on."),
        ("<|start|>assis", "", ""),
        (THOUGHT + "user friendly it is", "They greet.", "user friendly it is"),
        ("<|channel|>final – so it is", "", "– so it is"),
        ("<|channel|>––analysis<|message|>Hm.<|end|>" + FINAL, "Hm.", "Hello 日本!"),
    ],
)
def test_text_without_a_head_is_shown(tokenizer: Tokenizer, answer: str, thought: str, text: str) -> None:
    assert told(tokenizer, answer) == (thought, text, [])
    if text not in ("t", "to"):  # which may begin a role
        assert told(tokenizer, answer, prompt="<|start|>") == (thought, text, [])


@pytest.mark.parametrize("channel", ["", "<|channel|>commentary", "<|channel|>final"])
@pytest.mark.parametrize("role", ["functions.f to=assistant", "python to=assistant", "f to=assistant", "user", "tool"])
def test_a_message_of_another_that_the_model_made_up_is_no_answer(
    tokenizer: Tokenizer, role: str, channel: str
) -> None:
    made_up = f"<|start|>{role}{channel}<|message|>12:05<|end|>"
    assert told(tokenizer, CALL + "<|end|>" + made_up + FINAL) == ("12:05", "Hello 日本!", ['f{"a": 1}'])
    assert told(tokenizer, THOUGHT + made_up + FINAL) == ("They greet.\n\n12:05", "Hello 日本!", [])


def test_a_head_that_the_prompt_has_begun_goes_on(tokenizer: Tokenizer) -> None:
    assert told(tokenizer, "<|message|>Hm.", prompt="<|start|>assistant<|channel|>analysis") == ("Hm.", "", [])
    assert told(tokenizer, "f<|channel|>final json<|message|>{}", prompt="<|start|>assistant to=functions.") == (
        "",
        "",
        ["f{}"],
    )
    prompt = "<|start|>assistant to=f<|channel|>commentary"
    assert told(tokenizer, "<|constrain|>json<|message|>{}", prompt=prompt) == ("", "", ["f{}"])


@pytest.mark.parametrize("end", ["", "{", '{"a": "so fa'])
def test_a_call_that_was_cut_leaves_no_text(tokenizer: Tokenizer, end: str) -> None:
    thought, text, calls = told(tokenizer, "<|channel|>commentary to=functions.f<|message|>" + end, cut=True)
    assert (thought, text) == ("", "") and calls in ([], ['f{"a": "so fa'])


def test_the_end_of_a_call_ends_the_turn(model_folder: MakeFolder) -> None:
    folder = model_folder(tokenizer=byte_level_tokenizer([*SPECIALS, "<|call|>"]))
    with Tokenizer(folder) as tokenizer:
        assert tokenizer.token_id("<|call|>") in tokenizer.eos_ids
