"""What answers in the place of a server of moeinf: `run` does without it, `ps` and `stop` say so in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.support.cli.commands import Done
from tests.support.odd_server import answering

Command = Callable[..., Done]

OTHER: Final = "is no server of moeinf; set MOEINF_HOST to the address of one"
SILENT: Final = "gave no answer"
ANSWERS: Final = {
    "a list": (b"[]", OTHER),
    "a number": (b"3", OTHER),
    "an object": (b"{}", OTHER),
    "models that are a number": (b'{"models": 3, "version": "1"}', OTHER),
    "a model that is a number": (b'{"models": [3], "version": "1"}', OTHER),
    "a model without a digest": (b'{"models": [{"name": "demo"}], "version": "1"}', OTHER),
    "a page": (b"<html>a router</html>", SILENT),
    "lists that never end": (b"[" * 200_000, SILENT),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_another_server_is_told_in_one_line(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    body, said = ANSWERS[name]
    with answering(200, {}, body) as address:
        monkeypatch.setenv("MOEINF_HOST", address.removeprefix("http://"))
        for words in (("ps",), ("stop", "demo")):
            done = command(*words)
            assert done.code == 1 and said in done.err and "unexpected" not in done.err


def test_ollama_has_no_table_of_ours(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        b'{"models": [{"name": "a:latest", "digest": "0123456789abcdef", "size": 1, "size_vram": 0}], "version": "1"}'
    )
    with answering(200, {}, body) as address:
        monkeypatch.setenv("MOEINF_HOST", address.removeprefix("http://"))
        done = command("ps")
    assert done.code == 1 and OTHER in done.err
