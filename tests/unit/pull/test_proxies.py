"""Proxies that the HTTP client would stumble over are told with the remedy, and without what they hold."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from moeinf.errors import UsageError
from moeinf.pull.hub.proxies import check_proxies

NAMES = ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "socksio", None)


@pytest.mark.parametrize("variable", NAMES[:6])
@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_socks_needs_a_package(variable: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, f"{scheme}://user:secret@127.0.0.1:1080")
    with pytest.raises(UsageError, match=f"{variable.upper()} is a SOCKS proxy.*pip install socksio") as refused:
        check_proxies()
    assert "secret" not in str(refused.value)
    package = ModuleType("socksio")
    package.__spec__ = __spec__
    monkeypatch.setitem(sys.modules, "socksio", package)
    check_proxies()


@pytest.mark.parametrize(
    "address",
    ["nonsense://x", "socks4://127.0.0.1:1080", "http://[::bad", "http://host:port", "http://", "http://h:99999"],
)
def test_what_is_no_address_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", address)
    with pytest.raises(UsageError, match="HTTPS_PROXY is no address of a proxy"):
        check_proxies()


@pytest.mark.parametrize("address", ["http://127.0.0.1:3128", "https://proxy/", "proxy:8080", "http://[::1]:8080"])
def test_proxies_that_can_be_used_pass(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    monkeypatch.setenv("NO_PROXY", "bad::x,localhost")
    monkeypatch.setenv("FTP_PROXY", "nonsense://x")
    check_proxies()
