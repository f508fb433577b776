"""Chats that are kept under a name: by /save, and in what shows names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.stored.modelfile import own_modelfile
from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.errors import StoreError, UsageError
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.terminal.chat.saved import recall, save_chat
from moeinf.terminal.conversation_loop import Conversation
from tests.support.cli.commands import Done
from tests.support.cli.scripted_model import ScriptedModel
from tests.support.thinker import write_thinker

SAID = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Me.", "thinking": "hm", "reasoning_content": "hm"},
]
Command = Callable[..., Done]


@pytest.fixture
def library(home: Path) -> Iterator[Library]:
    """Deletes the names that a test saves: the store is that of other tests."""
    found = Library(home)
    yield found
    for model in found.list():
        if model.preset_text:
            found.remove(model.name)


def talk(**given: Any) -> Conversation:
    return Conversation(cast(Model, ScriptedModel(name="demo:latest")), **given)


def test_a_saved_chat_has_what_was_said_and_goes_on_with_it(
    library: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = talk(messages=list(SAID), sampling={"temperature": 0.5, "stop": ("A", "B b"), "windowed_penalties": True})
    chat.set_system("Be brief.")
    stored = save_chat(chat, RuntimeConfig.of(context=64), library, "talk")
    preset = preset_of(stored)
    assert (preset.system, list(preset.messages)) == ("Be brief.", SAID)
    assert preset.options == (("temperature", "0.5"), ("stop", "A"), ("stop", "B b"), ("num_ctx", "64"))
    assert preset.params == {"temperature": 0.5, "stop": ("A", "B b")} and preset.config == {"context": 64}
    later = talk(preset=preset, messages=list(preset.messages))
    recall(later)
    assert capsys.readouterr().out == ">>> Who?\nMe.\n\n" and later.messages == SAID
    later.ask("And you?", lambda piece: None)
    assert cast(ScriptedModel, later.model).prompts[0][0] == {"role": "system", "content": "Be brief."}
    assert [message["content"] for message in later.messages] == ["Who?", "Me.", "And you?", "Hello there"]
    assert save_chat(later, RuntimeConfig(), library, "talk").name == "talk:latest"  # may be written over
    assert len(preset_of(library.find("talk")).messages) == 4


def test_pictures_are_left_out_with_a_note(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [{"type": "image", "image": b"x", "name": "x.png"}, {"type": "text", "text": "What?"}]
    chat = talk(messages=[{"role": "user", "content": parts}, SAID[1]])
    assert preset_of(save_chat(chat, RuntimeConfig(), library, "seen")).messages[0]["content"] == "What?"
    assert "note: pictures are not kept with a chat" in capsys.readouterr().err


def test_a_chat_that_is_too_long_for_a_name_is_refused(library: Library) -> None:
    chat = talk(messages=[{"role": "user", "content": "x" * (5 << 20)}, SAID[1]])
    with pytest.raises(UsageError, match="more than 4 MiB"):
        save_chat(chat, RuntimeConfig(), library, "long")


def test_run_goes_on_with_a_saved_chat_and_show_counts_it(library: Library, command: Command, tmp_path: Path) -> None:
    pull(str(write_thinker(tmp_path / "thinker")), home=library.home)
    try:
        library.copy("thinker", "talk", Preset(messages=tuple(SAID)).dumps())
        [fresh, later] = [json.loads(command("run", name, "hi", "--json").out) for name in ("thinker", "talk")]
    finally:
        library.remove("thinker")
    assert later["stats"]["prompt_tokens"] > fresh["stats"]["prompt_tokens"]
    shown = command("show", "talk").out
    assert "  Saved chat\n    messages    2\n" in shown
    assert "# 2 messages of a saved chat" in command("show", "talk", "--modelfile").out


@pytest.mark.parametrize("messages", [3, ["a"], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_a_damaged_chat_is_named(library: Library, demo: StoredModel, messages: object) -> None:
    text = json.dumps({"system": "", "options": [], "messages": messages})
    with pytest.raises(StoreError, match="the settings of talk:latest are damaged"):
        preset_of(library.copy("demo", "talk", text))


def test_a_modelfile_of_a_saved_chat_can_be_read(library: Library) -> None:
    text = own_modelfile(library.copy("demo", "talk", Preset("Hi", messages=tuple(SAID)).dumps()))
    assert text.splitlines()[0] == "FROM demo:latest" and text.splitlines()[-1].startswith("#")
