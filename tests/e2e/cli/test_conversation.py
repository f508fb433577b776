from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from moeinf.engine.completion import CutBy
from moeinf.engine.model import Model
from moeinf.errors import ContextLengthError, UsageError
from moeinf.terminal import oneshot
from moeinf.terminal.answer_writer import AnswerWriter
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.oneshot import answer_once, prompt_text
from moeinf.terminal.process.interrupt import Interrupt
from moeinf.terminal.user_notes import Notices
from tests.support.cli.scripted_model import ScriptedModel, Thought


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def conversation(model: ScriptedModel, **options: Any) -> Conversation:
    return Conversation(cast(Model, model), options=ChatOptions(**options))


def press_ctrl_c(number: int) -> None:
    if number == 1:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("stdin", "words", "stdout_is_terminal", "expected"),
    [
        (None, [], True, None),
        (None, ["say", "hi"], True, "say hi"),
        (None, ["say", "hi"], False, "say hi"),
        (None, [""], True, ""),
        ("piped\n", ["say"], False, "piped\nsay"),
        ("piped", ["say"], False, "piped say"),
        ("", ["say\n"], False, "say\n"),
        ("piped\n\n", [], True, "piped"),
        ("", ["say"], True, "say"),
        ("a\nb\r\n\n", ["c", "d"], True, "a\nb\nc d"),
        ("\n", ["say"], True, "say"),
        ("", [""], True, ""),
    ],
)
def test_what_stdin_and_the_words_mean(
    monkeypatch: pytest.MonkeyPatch, stdin: str | None, words: list[str], stdout_is_terminal: bool, expected: str | None
) -> None:
    piped = io.TextIOWrapper(io.BytesIO((stdin or "").encode()))
    monkeypatch.setattr(sys, "stdin", Terminal() if stdin is None else piped)
    monkeypatch.setattr(sys, "stdout", Terminal() if stdout_is_terminal else io.StringIO())
    assert prompt_text(words, None) == expected


def test_a_prompt_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oneshot, "_MOST_PROMPT_BYTES", 1 << 20)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match="--file /dev/zero is longer than 1 MiB"):
        prompt_text([], Path("/dev/zero"))
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with pytest.raises(UsageError, match="standard input is longer than 1 MiB"):
            prompt_text([], None)


def test_standard_input_takes_the_memory_of_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of so many bytes takes them first, also where there is nothing."""
    asked = list[int]()

    class Stream(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(-1 if size is None else size)
            return super().read(size)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Stream(b"a" * (3 << 20))))
    assert prompt_text([], None) == "a" * (3 << 20)
    assert all(0 < size <= 1 << 20 for size in asked), asked


@pytest.mark.parametrize("stdin", [None, ""])
def test_no_prompt_and_no_terminal_is_a_wrong_use(monkeypatch: pytest.MonkeyPatch, stdin: str | None) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal() if stdin is None else io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(UsageError, match="no prompt given"):
        prompt_text([], None)


def test_ctrl_c_stops_the_answer_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel([["one ", "two ", "three"]], on_piece=press_ctrl_c)
    assert answer_once(conversation(model), "hi", raw=False, as_json=False) == 130
    assert capsys.readouterr().out == "one two \n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_within_a_second_gives_up_at_once() -> None:
    times = iter([10.0, 10.5])
    with pytest.raises(KeyboardInterrupt), Interrupt(lambda: next(times)) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.wanted
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_ctrl_c_later_only_asks_again() -> None:
    times = iter([10.0, 12.0])
    with Interrupt(lambda: next(times)) as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.wanted


def test_another_thread_sees_ctrl_c_while_the_main_thread_handles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "_handle", lambda *_: None)  # as long as it waits in another language
    seen: list[bool] = []
    with Interrupt() as interrupt:
        for send in (False, True):
            if send:
                os.kill(os.getpid(), signal.SIGINT)
            thread = threading.Thread(target=lambda: seen.append(interrupt.wanted))
            thread.start()
            thread.join()
        assert seen == [False, True] and interrupt.wanted


def test_an_interrupted_answer_stays_in_the_history_so_that_turns_alternate() -> None:
    model = ScriptedModel([["one ", "two ", "three"]], on_piece=press_ctrl_c)
    chat = conversation(model, system="Be brief.")
    chat.ask("first", lambda piece: None)
    chat.ask("second", lambda piece: None)
    assert [message["role"] for message in model.prompts[1]] == ["system", "user", "assistant", "user"]
    assert model.prompts[1][2]["content"] == "one two "


def test_an_answer_that_fails_leaves_no_question_behind() -> None:
    def fail(number: int) -> None:
        raise ContextLengthError("broken")

    chat = conversation(ScriptedModel(on_piece=fail))
    with pytest.raises(ContextLengthError):
        chat.ask("first", lambda piece: None)
    assert chat.messages == []


def test_a_full_context_drops_the_oldest_pair_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(context_turns=3)
    chat = conversation(model)
    for text in ("one", "two", "three"):
        chat.ask(text, lambda piece: None)
    assert [message["content"] for message in model.prompts[2]] == ["two", "Hello there", "three"]
    assert capsys.readouterr().err.count("the oldest question and answer were dropped") == 1


def test_a_single_message_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ContextLengthError):
        conversation(ScriptedModel(context_turns=0)).ask("long", lambda piece: None)


def test_a_base_model_gets_each_text_on_its_own_and_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(has_template=False)
    chat = conversation(model)
    chat.ask("one", lambda piece: None)
    chat.ask("two", lambda piece: None)
    assert model.prompts == ["one", "two"]
    assert capsys.readouterr().err.count("base model") == 1


def test_a_notice_that_comes_while_others_are_shown_is_shown_next(monkeypatch: pytest.MonkeyPatch) -> None:
    notices = Notices()
    notices.add("O_DIRECT was refused")
    said: list[str] = []

    def say_while_memory_runs_short(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            notices.add("the machine ran short of memory")

    monkeypatch.setattr("moeinf.terminal.user_notes.say", say_while_memory_runs_short)
    notices.show()
    notices.show()
    notices.show()
    assert said == ["note: O_DIRECT was refused", "note: the machine ran short of memory"]


def test_each_notice_of_the_model_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    chat = conversation(ScriptedModel())
    chat.notices.add("O_DIRECT was refused")
    chat.notices.show()
    chat.notices.add("turns were merged")
    chat.comment(chat.ask("hi", lambda piece: None))
    assert capsys.readouterr().err == "note: O_DIRECT was refused\nnote: turns were merged\n"


@pytest.mark.parametrize(
    ("cut_by", "quiet", "said"),
    [
        (
            "context",
            False,
            "note: the answer was cut, as the context of 128 tokens is full: ask for less, or raise --num",
        ),
        ("context", True, "note: the answer was cut, as the context of 128 tokens is full"),
        ("num_predict", False, "note: the answer was cut after 3 tokens, as num_predict asks for\n"),
        ("max_length", True, "which the checkpoint sets as the longest; --num-predict allows for more\n"),
    ],
)
def test_an_answer_that_was_cut_is_said_so_behind_it(
    capsys: pytest.CaptureFixture[str], cut_by: CutBy, quiet: bool, said: str
) -> None:
    assert answer_once(conversation(ScriptedModel(cut_by=cut_by), quiet=quiet), "hi", raw=False, as_json=False) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello there\n" and said in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize(("cut_by", "quiet"), [(None, False), ("num_predict", True)])
def test_an_answer_that_ended_or_was_cut_where_a_quiet_user_asked_for_it_needs_no_word(
    capsys: pytest.CaptureFixture[str], cut_by: CutBy | None, quiet: bool
) -> None:
    answer_once(conversation(ScriptedModel(cut_by=cut_by), quiet=quiet), "hi", raw=False, as_json=False)
    assert capsys.readouterr().err == ""


def test_an_error_before_the_first_word_leaves_standard_output_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ContextLengthError):
        answer_once(conversation(ScriptedModel(context_turns=0)), "long", raw=False, as_json=False)
    assert capsys.readouterr().out == ""


def test_figures_come_in_ollamas_words_and_those_of_the_cache_behind(capsys: pytest.CaptureFixture[str]) -> None:
    chat = conversation(ScriptedModel(), verbose=True)
    completion = chat.ask("hi", lambda piece: None)
    assert capsys.readouterr().err == "", "nothing before the answer has ended"
    chat.comment(completion)
    assert capsys.readouterr().err.splitlines() == [
        "total duration:       2.5s",
        "prompt eval count:    26 token(s)",
        "prompt eval duration: 1.204s",
        "prompt eval rate:     21.59 tokens/s",
        "eval count:           3 token(s)",
        "eval duration:        1s",
        "eval rate:            2.00 tokens/s",
        "seed:                 7",
        "expert cache:         4/8 experts, 37.5% hit (3/8)",
        "expert transfer:      512.0 KiB/token, 1.0 MiB/s, 0ms stalled",
    ]


def test_off_a_terminal_an_answer_ends_with_exactly_one_newline_and_is_else_untouched() -> None:
    stream = io.StringIO()
    with AnswerWriter(stream, tty=False, wrap=True) as writer:
        for piece in ("a\x1b[1m\n", "\n", "b\n\n"):
            writer.write(piece)
    assert stream.getvalue() == "a\x1b[1m\n\nb\n"


THOUGHTFUL: list[Sequence[str]] = [[Thought("Hm"), Thought(" so.\n"), "Hello", " there"]]
GREY, END = "\x1b[90m", "\x1b[39m"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, model: ScriptedModel, term: str = "xterm", **options: Any) -> str:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    answer_once(conversation(model, **options), "hi", raw=False, as_json=False)
    assert isinstance(sys.stdout, Terminal)
    return sys.stdout.getvalue()


def test_a_pipe_gets_the_answer_and_json_its_thoughts_in_a_field_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer_once(conversation(ScriptedModel(THOUGHTFUL)), "hi", raw=False, as_json=False)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Hello there\n", "")
    answer_once(conversation(ScriptedModel(THOUGHTFUL)), "hi", raw=False, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert (answer["response"], answer["thinking"]) == ("Hello there", "Hm so.\n")


def test_a_terminal_shows_thoughts_grey_between_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_a_terminal(monkeypatch, ScriptedModel(THOUGHTFUL))
    assert shown == (f"{GREY}Thinking...\nHm{END}{GREY} so.\n{END}{GREY}\n...done thinking.\n\n{END}Hello there\n\n")
    plain = "Thinking...\nHm so.\n\n...done thinking.\n\nHello there\n\n"
    assert on_a_terminal(monkeypatch, ScriptedModel(THOUGHTFUL), term="dumb") == plain
    assert on_a_terminal(monkeypatch, ScriptedModel(THOUGHTFUL), hidethinking=True) == "Hello there\n\n"


def test_an_answer_cut_in_the_middle_of_a_thought_leaves_no_colour_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel([[Thought("Hm\x1b[2J")]], cut_by="context")
    assert on_a_terminal(monkeypatch, model) == f"{GREY}Thinking...\nHm[2J{END}\n\n"
    assert capsys.readouterr().err.startswith(
        "note: the model was still thinking: its answer was cut, as the context of 128 tokens is full"
    )


def test_a_model_that_only_thinks_is_said_to_have_given_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer_once(conversation(ScriptedModel([[Thought("Hm")]])), "hi", raw=False, as_json=False)
    captured = capsys.readouterr()
    assert captured.out == "\n" and captured.err == "note: the model thought and then ended without an answer\n"


def test_thoughts_go_back_to_the_template_beside_the_answer_which_is_never_empty() -> None:
    model = ScriptedModel([[Thought("Hm"), "yes"], [Thought("Only this")]])
    chat = conversation(model)
    for text in ("one", "two", "three"):
        chat.ask(text, lambda piece: None)
    assert model.prompts[2][1] == {"role": "assistant", "content": "yes", "thinking": "Hm", "reasoning_content": "Hm"}
    assert model.prompts[2][3]["content"] == "..."


@pytest.mark.parametrize(
    ("pieces", "shown"), [([" One", " day"], "One day"), (["    x", " = 1"], "    x = 1"), (["One"], "One")]
)
def test_on_a_terminal_an_answer_begins_without_the_space_of_its_token(pieces: list[str], shown: str) -> None:
    for tty, text in ((True, f"{shown}\n\n"), (False, "".join(pieces) + "\n")):
        stream = io.StringIO()
        with AnswerWriter(stream, tty=tty, wrap=False) as writer:
            for piece in pieces:
                writer.write(piece)
        assert stream.getvalue() == text


def test_on_a_terminal_model_text_cannot_drive_it() -> None:
    stream = io.StringIO()
    with AnswerWriter(stream, tty=True, wrap=False) as writer:
        writer.write("a\x1b]52;c;eA==\x07\x9b2Jb")
    assert stream.getvalue() == "a]52;c;eA==2Jb\n\n"
