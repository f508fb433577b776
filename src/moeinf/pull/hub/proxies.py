"""The proxies that the environment names, looked at before the HTTP client stumbles over them."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies

from moeinf.errors import UsageError

_PLAIN, _SOCKS = ("http", "https"), ("socks5", "socks5h")
_USED = ("http", "https", "all")


def check_proxies() -> None:
    """Raises UsageError for a proxy that cannot be used. Its address, which may hold a password, is not shown."""
    for kind, address in getproxies().items():
        if kind not in _USED:
            continue
        variable = f"{kind.upper()}_PROXY"
        try:
            parts = urlsplit(address if "://" in address else f"http://{address}")
            sound = bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound or parts.scheme not in (*_PLAIN, *_SOCKS):
            raise UsageError(
                f"{variable} is no address of a proxy: write http://HOST:PORT or socks5://HOST:PORT, or unset it"
            )
        if parts.scheme in _SOCKS and find_spec("socksio") is None:
            raise UsageError(
                f"{variable} is a SOCKS proxy, for which the package socksio is missing: `pip install socksio`, or "
                f"unset {variable}"
            )
