from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.errors import NotFiniteError, OutOfMemoryError
from moeinf.store.library import Library
from moeinf.terminal.chat.line_editor import FileHistory
from moeinf.terminal.chat.repl import Repl
from moeinf.terminal.chat.switch import ModelSwitch
from moeinf.terminal.conversation_loop import Conversation
from moeinf.text.thinking_text import TemplateFacts
from tests.support.cli.scripted_model import ScriptedModel


class ScriptedLines:
    """Types the given lines; an exception among them is raised."""

    keep_history = True

    def __init__(self, lines: Sequence[str | type[BaseException]]) -> None:
        self._lines = list(lines)
        self.prompts: list[str] = []
        self.remembered: list[str] = []

    def read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = self._lines.pop(0) if self._lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    def remember(self, entry: str) -> None:
        self.remembered.append(entry)


Ask = Callable[..., "Talk"]


class Talk:
    def __init__(
        self, lines: Sequence[str | type[BaseException]], model: ScriptedModel, home: Path, clock: Callable[[], float]
    ) -> None:
        self.model = model
        self.lines = ScriptedLines(lines)
        self.opened: list[tuple[str, RuntimeConfig]] = []
        self.chat = Conversation(cast(Model, model))
        switch = ModelSwitch(self.chat, RuntimeConfig(), Library(home), self._open)
        Repl(self.chat, self.lines, switch, clock).run()

    def _open(self, name: str, config: RuntimeConfig) -> Model:
        self.opened.append((name, config))
        if config.memory.context == 99999:
            raise OutOfMemoryError("not enough memory")
        return cast(Model, ScriptedModel(name=name))


@pytest.fixture
def chat(home: Path) -> Ask:
    def start(
        *lines: str | type[BaseException], model: ScriptedModel | None = None, clock: Callable[[], float] = lambda: 0.0
    ) -> Talk:
        return Talk(lines, model or ScriptedModel(), home, clock)

    return start


def test_a_block_in_triple_quotes_is_one_message(chat: Ask) -> None:
    talk = chat('"""first', "", 'second"""', '"""one line"""', "plain")
    asked = [prompt[-1]["content"] for prompt in talk.model.prompts]
    assert asked == ["first\n\nsecond", "one line", "plain"]
    assert talk.lines.prompts == [">>> ", "... ", "... ", ">>> ", ">>> ", ">>> "]
    assert talk.lines.remembered == ['"""first\n\nsecond"""', '"""one line"""', "plain"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('"""Doc."""\n\ndef f(): ...\n\nWhat is this?', '"""Doc."""\n\ndef f(): ...\n\nWhat is this?'),
        ('"""Open\nand more', '"""Open\nand more'),
        ('"""one\ntwo"""', "one\ntwo"),
        ('"""Doc.""" of one line', '"""Doc.""" of one line'),
    ],
)
def test_a_paste_that_begins_with_quotes_is_whole(chat: Ask, entry: str, message: str) -> None:
    talk = chat(entry)
    assert [prompt[-1]["content"] for prompt in talk.model.prompts] == [message]
    assert talk.lines.prompts == [">>> ", ">>> "] and talk.lines.remembered == [entry]


@pytest.mark.parametrize("word", ["/bye", "/exit", "/bye now"])
def test_bye_ends_the_chat(chat: Ask, word: str) -> None:
    assert chat(word, "never asked").model.prompts == []


def test_ctrl_c_at_the_prompt_tells_how_to_leave(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat(KeyboardInterrupt, "still here")
    assert "Use Ctrl + d or /bye to exit." in capsys.readouterr().err
    assert len(talk.model.prompts) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set parameter top_k 20", "Set parameter 'top_k' to '20'"),
        ("/set parameter stop 'User:' END", "Set parameter 'stop' to 'User:, END'"),
        (
            "/set parameter heat 1",
            "Couldn't set parameter: \"unknown parameter 'heat'; known: frequency_penalty, min_p, "
            "min_tokens, num_batch, num_ctx, num_gpu, num_predict, num_thread, presence_penalty, repeat_last_n,",
        ),
        ("/set parameter", "Couldn't set parameter: \"unknown parameter ''; known: "),
        ("/set parameter top_k many", "Couldn't set parameter: \"top_k must be a whole number, not 'many'\""),
        ("/set parameter top_p 7", 'Couldn\'t set parameter: "top_p must be between 0 and 1, not 7.0"'),
        (
            "/set parameter temperature -1",
            'Couldn\'t set parameter: "temperature must be between 0 and 10000, not -1.0"',
        ),
        ("/set parameter top_k", "Couldn't set parameter: \"'top_k' needs a value\""),
        ("/set parameter num_gpu 4", "--vram SIZE bounds what is used of a GPU, so num_gpu cannot be '4'"),
        ("/set parameter num_gpu 0", "Set parameter 'num_gpu' to '0'"),
        ("/set parameter num_ctx few", "num_ctx must be a whole number"),
        ("/set verbose", "Set 'verbose' mode."),
        ("/set nowordwrap", "Set 'nowordwrap' mode."),
        ("/set dance", "Unknown command '/set dance'"),
        ("/set system Be brief.", "Set system message."),
        ("/clear", "Cleared session context"),
        ("/dance", "Unknown command '/dance'. Type /? for help"),
        ("/?", "Available Commands:"),
        ("/help set", "/set system"),
        ("/? shortcuts", "Ctrl + d"),
        ("/show", "/show info"),
        ("/load nothing", "Couldn't find model 'nothing'"),
        ("/regen", "There is no message"),
        ("/stats", "scripted:latest · described"),
        ("/load", "Usage: /load"),
        ("/save", "Usage: /save"),
        ("/save chat", "error: nothing was said yet"),
        ("/save demo", "error: demo is the name of a model; give the chat another one"),
        ("/save a b", "error: 'a b' is not a model name"),
    ],
)
def test_commands_answer_on_stderr(chat: Ask, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    chat(line)
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == "\n"


def test_parameters_and_the_system_message_reach_the_model(chat: Ask) -> None:
    talk = chat("/set parameter top_k 7", '/set system """Be', 'brief."""', "hi", "/set parameter top_k x", "again")
    assert [params.top_k for params in talk.model.params_used] == [7, 7]
    assert talk.model.prompts[0][0] == {"role": "system", "content": "Be\nbrief."}


def test_thinking_is_switched_where_the_template_has_a_switch(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat("a", "/set think", "b", "/set nothink", "c", "/set think high", "d")
    assert talk.model.told == [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"enable_thinking": False}]
    err = capsys.readouterr().err
    assert "Set 'think' mode.\nSet 'nothink' mode.\n" in err
    assert "error: this model knows no levels of thinking, only true and false" in err


def test_a_level_of_thinking_is_told_and_another_model_that_has_none_goes_on_without(
    chat: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = TemplateFacts(frozenset({"reasoning_effort"}), thinks=True, tools=False)
    talk = chat("/set think low", "a", "/load demo", "b", model=ScriptedModel(facts=facts))
    assert talk.model.told == [{"reasoning_effort": "low"}] and talk.chat.options.think is None
    err = capsys.readouterr().err
    assert "Set 'think' mode to 'low'." in err and "note: this model knows no levels of thinking" in err


def test_the_format_of_answers_is_set_and_taken_back(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    schema = '{"type": "object"}'
    talk = chat("/set format json", "a", f"/set format {schema}", "b", "/set format yaml", "c", "/set noformat", "d")
    assert talk.model.formats == ["json", {"type": "object"}, {"type": "object"}, None]
    err = capsys.readouterr().err
    assert "Set 'format' mode.\n" in err and "error: --format is neither json nor a JSON schema" in err


def test_clear_drops_what_was_said_and_keeps_the_system_message(chat: Ask) -> None:
    talk = chat("/set system S", "one", "/clear", "two")
    assert [message["content"] for message in talk.model.prompts[1]] == ["S", "two"]


def test_regen_asks_the_last_question_again(chat: Ask) -> None:
    talk = chat("one", "two", "/regen", model=ScriptedModel([["a"], ["b"], ["c"]]))
    assert talk.model.prompts[2] == talk.model.prompts[1]
    assert talk.chat.messages[-1]["content"] == "c" and len(talk.chat.messages) == 4


def test_a_number_that_no_option_can_have_does_not_end_the_chat(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat(
        f"/set parameter num_ctx {'9' * 5000}", "/set parameter num_thread -1", "/set system a\x1b[2Jb", "/show system"
    )
    done = capsys.readouterr()
    assert "num_ctx must be a whole number of at most 19 digits" in done.err
    assert "--threads must be from 1 to 1024, not -1" in done.err and talk.opened == []
    assert done.out.splitlines()[0] == "a[2Jb"


def test_a_system_message_that_a_model_does_not_take_is_said_so(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    chat("hi", "/set system Be brief.", "ho", "ha", model=ScriptedModel(has_template=False))
    assert capsys.readouterr().err.count("takes no system message") == 1


def test_an_answer_stays_where_another_one_fails(chat: Ask) -> None:
    def fail_in_the_second(number: int) -> None:
        if len(model.prompts) == 2:
            raise NotFiniteError("the routing is no number")

    model = ScriptedModel([["a"], ["b"]], on_piece=fail_in_the_second)
    talk = chat("one", "/regen", model=model)
    assert [message["content"] for message in talk.chat.messages] == ["one", "a"]


def test_a_block_that_looks_like_a_command_is_a_message(chat: Ask) -> None:
    talk = chat('"""/bye"""', '"""/etc/fstab', 'says"""', '""""""')
    assert [prompt[-1]["content"] for prompt in talk.model.prompts] == ["/bye", "/etc/fstab\nsays"]


@pytest.mark.parametrize("topic", ["", "set", "show", "shortcuts"])
def test_help_fits_a_terminal_of_80_columns(chat: Ask, capsys: pytest.CaptureFixture[str], topic: str) -> None:
    chat(f"/? {topic}")
    assert max(map(len, capsys.readouterr().err.splitlines())) < 80


def test_an_error_in_the_middle_of_a_chat_does_not_end_it(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(context_turns=0)
    talk = chat("does not fit", "/set verbose", model=model)
    assert "error: the prompt has too many tokens" in capsys.readouterr().err
    assert talk.chat.options.verbose


def test_a_cut_answer_is_said_so_before_the_next_question(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    chat("long story", "/show", model=ScriptedModel(cut_by="context"))
    err = capsys.readouterr().err
    assert err.index("note: the answer was cut, as the context of 128 tokens is full") < err.index("Available Commands")


def test_load_opens_another_model_with_an_empty_history(chat: Ask) -> None:
    talk = chat("hello", "/load demo", "again")
    assert talk.model.closed and talk.opened == [("demo:latest", RuntimeConfig())]
    assert talk.chat.model.name == "demo:latest"
    assert [message["content"] for message in cast(ScriptedModel, talk.chat.model).prompts[0]] == ["again"]


def test_a_new_context_length_reopens_the_model_and_keeps_the_history(chat: Ask) -> None:
    talk = chat("hello", "/set parameter num_ctx 64", "again")
    assert talk.opened == [("scripted:latest", RuntimeConfig.of(context=64))]
    assert len(cast(ScriptedModel, talk.chat.model).prompts[0]) == 3


@pytest.mark.parametrize(
    ("name", "config"), [("num_thread", RuntimeConfig.of(threads=3)), ("num_batch", RuntimeConfig.of(prefill_chunk=3))]
)
def test_what_belongs_to_loading_reopens_the_model(chat: Ask, name: str, config: RuntimeConfig) -> None:
    assert chat(f"/set parameter {name} 3").opened == [("scripted:latest", config)]


def test_when_the_new_model_does_not_fit_the_old_one_comes_back(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat("/set parameter num_ctx 99999", "still here")
    assert "error: not enough memory" in capsys.readouterr().err
    assert [config.memory.context for _, config in talk.opened] == [99999, None]
    assert len(cast(ScriptedModel, talk.chat.model).prompts) == 1


def test_list_and_show_print_the_store(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    chat("/list", "/show system", "/load demo", "/show info", "/show parameters", "/show template", "/show license")
    out = capsys.readouterr().out
    for text in (
        "demo:latest",
        "No system message",
        "experts per layer",
        "Model defined parameters:",
        "temperature",
        "No prompt template",
    ):
        assert text in out


def test_the_users_parameters_are_shown_as_those_of_the_model(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    chat("/load demo", "/set parameter stop 'a b' c", "/set parameter presence_penalty 1", "/show parameters")
    shown = capsys.readouterr().out.partition("User defined parameters:\n")[2].splitlines()
    rows = {tuple(line.split(maxsplit=1)) for line in shown if line}
    assert rows >= {("stop", '"a b"'), ("stop", '"c"'), ("presence_penalty", "1.0")}
    assert {name for name, _ in rows} <= {"stop", "presence_penalty", "temperature", "seed", "num_predict"}


def press_ctrl_c(number: int) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_answer_is_said_so_and_kept(chat: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    talk = chat("one", model=ScriptedModel([["a ", "b"]], on_piece=press_ctrl_c))
    assert "[interrupted]" in capsys.readouterr().err
    assert talk.chat.messages[-1]["content"] == "a "


def test_ctrl_c_within_a_second_of_the_one_that_stopped_the_answer_ends_the_chat(chat: Ask) -> None:
    times = iter([10.0, 10.5])
    with pytest.raises(KeyboardInterrupt):
        chat(
            "one",
            KeyboardInterrupt,
            model=ScriptedModel([["a ", "b"]], on_piece=press_ctrl_c),
            clock=lambda: next(times),
        )


def test_ctrl_c_later_than_that_does_not(chat: Ask) -> None:
    times = iter([10.0, 11.5])
    talk = chat(
        "one",
        KeyboardInterrupt,
        "/set verbose",
        clock=lambda: next(times),
        model=ScriptedModel([["a ", "b"]], on_piece=press_ctrl_c),
    )
    assert talk.chat.options.verbose


def test_history_keeps_newlines_stays_private_and_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    path.parent.mkdir()
    path.write_text("".join(f'"line {number}"\n' for number in range(1000)))
    FileHistory(path).add("new\nsecond")
    assert path.stat().st_mode & 0o777 == 0o600
    entries = list(FileHistory(path).load_history_strings())
    assert len(entries) == 1000 and entries[0] == "new\nsecond" and entries[-1] == "line 1"
    assert [entry.name for entry in path.parent.iterdir()] == ["history"]


def test_chats_at_once_keep_the_lines_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "history"
    chats = [FileHistory(path) for _ in range(4)]

    def type_lines(number: int) -> None:
        for line in range(20):
            chats[number].add(f"{number} {line}")

    threads = [threading.Thread(target=type_lines, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = list(FileHistory(path).load_history_strings())
    assert sorted(kept) == sorted(f"{number} {line}" for number in range(4) for line in range(20))


@pytest.mark.parametrize("entry", ["a\ud83d", "\udcff\n\u2028x", "é\x85"])
def test_history_holds_whatever_was_typed(entry: str, tmp_path: Path) -> None:
    FileHistory(tmp_path / "history").add(entry)
    assert list(FileHistory(tmp_path / "history").load_history_strings()) == [entry]


def test_a_damaged_or_unwritable_history_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"good"\n\xff\xfe\n')
    assert list(FileHistory(path).load_history_strings()) == ["good"]
    FileHistory(path).add("more")
    assert list(FileHistory(path).load_history_strings()) == ["more", "good"], "one torn line costs no others"
    path.write_text('"good"\nbroken\n17\n')
    assert list(FileHistory(path).load_history_strings()) == ["good"]
    blocked = FileHistory(path / "below" / "a file")
    blocked.add("x")
    assert not blocked.keep


def test_without_a_history_nothing_is_written(tmp_path: Path) -> None:
    history = FileHistory(None)
    history.add("secret")
    assert not history.keep and list(tmp_path.iterdir()) == []


def test_read_shows_a_picture_with_the_next_message(
    chat: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1.png").write_bytes(b"a picture")
    talk = chat("/read 1.png", "/read", "/read none.png", "What is this?", "And now?")
    said = capsys.readouterr()
    assert "Read 1.png: your next message goes with it" in said.err + said.out
    assert "Usage: /read <picture.png>" in said.err + said.out
    assert "none.png cannot be read: No such file or directory" in said.err + said.out
    first, second = (message["content"] for message in talk.chat.messages[::2])
    assert [part["type"] for part in first] == ["image", "text"] and first[0]["image"] == b"a picture"
    assert (first[1]["text"], second) == ("What is this?", "And now?")
