"""The line of a request says who asked by the connection alone, and nothing that a client forged."""

from __future__ import annotations

import logging
import re
import socket
import time
from urllib.request import Request, urlopen

import httpx
import pytest

from moeinf.server.serve import HttpServer

ESCAPES = "\x1b]0;title\x07\x1b[31mred"
FORGED = "10.0.0.1 DELETE /api/delete 200 0.001s"


def lines(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """So many lines of requests, the last of which may come after its answer."""
    for _ in range(1000):
        said = [record.getMessage() for record in caplog.records if record.name == "moeinf.server"]
        if len(said) >= count:
            return sorted(said)
        time.sleep(0.01)
    raise AssertionError(caplog.messages)


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"])
def test_no_header_says_who_a_client_is(name: str, server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "moeinf.server"):
        with urlopen(Request(f"{server.url}/health", headers={name: FORGED})) as answer:
            assert answer.status == 200
        assert httpx.get(f"{server.url}/health", headers={name: ESCAPES}).status_code == 400
        answered, refused = lines(caplog, 2)
    assert re.fullmatch(r"127\.0\.0\.1 GET /health 200 \d\.\d{3}s", answered)
    assert re.fullmatch(r"127\.0\.0\.1 refused before its path was read: 400 each header must .*", refused)


def test_a_path_is_one_word_of_its_line(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "moeinf.server"):
        httpx.request("X" * 2000, f"{server.url}/a%20{FORGED.replace(' ', '%20')}%1b%5b31m%0a{'b' * 3000}")
        [line] = lines(caplog, 1)
    assert len(line.split(" ")) == 5 and len(line) < 300 and line.isascii() and line.isprintable()


def test_a_client_that_hangs_up_within_its_request_is_one_line(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By every API: nothing went wrong that the log has to explain."""
    apis = ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/completions", "/api/chat", "/tokenize")
    with caplog.at_level(logging.INFO, "moeinf.server"):
        for each in apis:
            with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as client:
                head = f"POST {each} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                client.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"model": '.encode())
        said = lines(caplog, len(apis))
    assert len(said) == len(apis) and all(re.search(r" 499 \d\.\d{3}s$", line) for line in said)
    assert not any(record.exc_info for record in caplog.records)
