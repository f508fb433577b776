"""What clients are told of errors says nothing of the machine's folders."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from moeinf.errors import StoreError
from moeinf.server.http import answering
from moeinf.server.http_errors import fault_of, without_folders
from moeinf.text.process import Stopped


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("/srv/models/names/a/.latest.7.tmp: No space left", ".latest.7.tmp: No space left"),
        ("the template of /home/me/.moeinf/models/0af3 took long", "the template of 0af3 took long"),
        ("config.json, '/mnt/x/y.gguf' and (/mnt/z/)", "config.json, 'y.gguf' and ()"),
        ("shard /data/m/experts-0.bin:4096 is damaged", "shard experts-0.bin:4096 is damaged"),
        ("ask /v1/chat/completions or /api/chat, /set format, or /bye", None),
        ("https://hf.co/org/repo and hf.co/org/repo are 1/2 or and/or", None),
        ("no such route: GET /v1/x/y", None),
    ],
)
def test_folders_are_left_out(message: str, told: str | None) -> None:
    assert without_folders(message) == (message if told is None else told)


def test_folders_with_spaces_are_left_out_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_HOME", "/mnt/my disk/models of mine")
    error = StoreError("/mnt/my disk/models of mine/names/a: gone")
    assert fault_of(error).message == "names/a: gone"
    home = StoreError(f"{Path.home()}/some file/x: gone")
    assert fault_of(home).message == "some file/x: gone"


def test_a_message_that_repeats_what_a_client_sent_is_cut() -> None:
    assert len(fault_of(StoreError("no such model: " + "x" * 100_000)).message) < 10_000


@pytest.mark.parametrize("error", [ClientDisconnect, Stopped])
def test_that_a_client_has_gone_is_no_error_of_the_server(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Within its request, or while a tokenizer was at its text."""
    request: Any = None

    @answering(lambda fault: {"error": fault.message})
    async def handler(request: Any) -> Response:
        raise error

    async def answer() -> int:
        return (await handler(request)).status_code

    with caplog.at_level(logging.INFO):
        assert asyncio.run(answer()) == 499
    assert not caplog.records
