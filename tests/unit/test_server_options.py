"""Addresses, durations and keys of the server, as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.config.environment import server_address
from moeinf.config.server_options import ServerOptions, address_of, keys_of, seconds_of
from moeinf.errors import UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("127.0.0.1", 11435)),
        ("0.0.0.0", ("0.0.0.0", 11435)),
        (":8080", ("127.0.0.1", 8080)),
        ("example.com:80", ("example.com", 80)),
        ("http://example.com", ("example.com", 80)),
        ("http://example.com:99/", ("example.com", 99)),
        ("[::1]", ("::1", 11435)),
        ("[::1]:5", ("::1", 5)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("0.0.0.0", 8080, "0.0.0.0:8080"),
        (":9", 8080, "127.0.0.1:8080"),
        ("[::1]:9", 8080, "[::1]:8080"),
        ("[::1]:9", None, "[::1]:9"),
        (None, 8080, "127.0.0.1:8080"),
        (None, None, "127.0.0.1:11435"),
    ],
)
def test_a_port_of_its_own_goes_before_the_one_of_the_host(
    host: str | None, port: int | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MOEINF_HOST", host), ("MOEINF_PORT", port)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, str(value))
    assert server_address() == address, "commands look where the server listens"
    options = ServerOptions(port=port) if host is None else ServerOptions(host=host, port=port)
    assert options.address == address_of(address)


@pytest.mark.parametrize("text", ["host:99999", "ftp://host", "host/path", "user@host:1", "[::1", "host:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="--host"):
        address_of(text)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("300ms", 0.3),
        ("1.5h", 5400.0),
        ("0", 0.0),
        (0, 0.0),
        (10, 10.0),
        ("-1", None),
        (-1, None),
        ("-5m", None),
        ("90", 90.0),
    ],
)
def test_durations(value: str | float, seconds: float | None) -> None:
    assert seconds_of("keep_alive", value) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["", "five", "5 minutes", "5m3", "m", "--5m", True])
def test_what_is_no_duration(value: str | float) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        seconds_of("keep_alive", value)


def test_keys_come_from_the_file_and_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    assert keys_of(ServerOptions(key_file=str(path)), None) == ("one", "two")
    assert keys_of(ServerOptions(), " three ") == ("three",)
    assert keys_of(ServerOptions(), None) == ()
    for text in ("two words", "caf\u00e9", "\u043a\u043b\u044e\u0447", "tab\tbed"):
        path.write_text(f"one\n{text}\n")
        with pytest.raises(UsageError, match="which clients cannot send"):
            keys_of(ServerOptions(key_file=str(path)), None)
    path.write_bytes(b"key\n" * (1 << 19))
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        keys_of(ServerOptions(key_file=str(path)), None)
    path.write_text("\n")
    with pytest.raises(UsageError, match="holds no key"):
        keys_of(ServerOptions(key_file=str(path)), None)
    with pytest.raises(UsageError, match="name a readable file"):
        keys_of(ServerOptions(key_file=str(tmp_path / "missing")), None)


@pytest.mark.parametrize("origin", ["chat.example", "https://", "https://a/b", "https://a?b", "*"])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(UsageError, match="--allowed-origin"):
        ServerOptions(allowed_origin=(origin,))
