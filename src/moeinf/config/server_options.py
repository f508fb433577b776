"""What `moeinf serve` may be told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from moeinf.config.option import option
from moeinf.config.user_text import decoded, open_file
from moeinf.errors import UsageError

DEFAULT_PORT = 11435  # beside ollama's 11434
MOST_PARALLEL = 64
MOST_MODELS = 64
_MOST_KEY_BYTES = 1 << 20
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How models are served. Raises UsageError for a value that means nothing."""

    host: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        "Address to listen on: host, :port, host:port, [::1]:port. [default: {default}]",
        metavar="ADDRESS",
    )
    port: int | None = option(None, "Port to listen on, instead of the one of --host.", metavar="N")
    keep_alive: str = option(
        "5m",
        "How long a model stays loaded after its last request: 30s, 5m, 0, or -1 for ever. [default: {default}]",
        metavar="TIME",
    )
    max_queue: int = option(512, "Most requests that wait; more are refused. [default: {default}]", metavar="N")
    parallel: int | None = option(
        None,
        "Answers that a model makes side by side. [default: as many as memory has room for, 4 at most; 1 on a GPU]",
        metavar="N",
    )
    models: int | None = option(
        None, "Models that are loaded at a time, where memory has room; on a GPU one is. [default: 3]", metavar="N"
    )
    key_file: str | None = option(
        None,
        "File with the keys that clients must give, one a line. MOEINF_API_KEY holds a single one.",
        metavar="PATH",
    )
    allowed_host: tuple[str, ...] = option(
        (), "Another name under which browsers may reach this server; repeatable.", metavar="NAME"
    )
    allowed_origin: tuple[str, ...] = option(
        (), "A web page's origin that may call this server, such as https://chat.example; repeatable.", metavar="URL"
    )
    until_idle: bool = option(False, "End once no model is loaded any more.")
    no_auth: bool = option(False, "Listen beyond this machine without a key.", flags=("--no-auth-i-know",))

    def __post_init__(self) -> None:
        address_of(self.host)
        if self.port is not None and not 0 <= self.port <= 65535:
            raise UsageError(f"--port must be between 0 (any that is free) and 65535, not {self.port}")
        seconds_of("--keep-alive", self.keep_alive)
        if self.max_queue < 1:
            raise UsageError(f"--max-queue must be at least 1, not {self.max_queue}")
        if self.parallel is not None and not 1 <= self.parallel <= MOST_PARALLEL:
            raise UsageError(f"--parallel must be between 1 and {MOST_PARALLEL}, not {self.parallel}")
        if self.models is not None and not 1 <= self.models <= MOST_MODELS:
            raise UsageError(f"--models must be between 1 and {MOST_MODELS}, not {self.models}")
        for origin in self.allowed_origin:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin):
                raise UsageError(f"--allowed-origin must be like https://chat.example, not {origin!r}")

    @property
    def address(self) -> tuple[str, int]:
        host, port = address_of(self.host)
        return host, port if self.port is None else self.port

    @property
    def keep_alive_s(self) -> float | None:
        return seconds_of("--keep-alive", self.keep_alive)


def address_of(text: str) -> tuple[str, int]:
    """Host and port, as ollama reads OLLAMA_HOST: `host`, `:port`, `http://host[:port]`, `[::1]:port`.

    Raises UsageError.
    """
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port
    except ValueError:
        raise UsageError(f"--host {text!r} is no address; write 127.0.0.1:{DEFAULT_PORT}") from None
    if parts.scheme not in ("", "http") or parts.path not in ("", "/") or parts.query or parts.username:
        raise UsageError(f"--host {text!r} is no address; write 127.0.0.1:{DEFAULT_PORT}")
    if port is None:
        port = 80 if parts.scheme == "http" else DEFAULT_PORT
    return parts.hostname or "127.0.0.1", port


def seconds_of(name: str, value: str | float | None) -> float | None:
    """The seconds of a duration as Go writes it (`1h30m`, `300ms`), or of a number; None: for ever (a negative one).

    Raises UsageError, which calls the option `name`.
    """
    if isinstance(value, bool) or value is None:
        raise UsageError(f"{name} must be a time such as 5m or a number of seconds, not {value!r}")
    if isinstance(value, int | float):
        return float(value) if value >= 0 else None
    text = value.strip()
    sign, text = (text[:1], text[1:]) if text[:1] in "+-" and text else ("", text)
    if re.fullmatch(r"\d+(\.\d*)?", text):
        seconds = float(text)
    else:
        pieces = re.findall(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", text)
        if not pieces or "".join(map("".join, pieces)) != text:
            raise UsageError(f"{name} must be a time such as 30s, 5m or 1h30m, not {value!r:.100}")
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in pieces)
    return None if sign == "-" else seconds


def keys_of(options: ServerOptions, variable: str | None) -> tuple[str, ...]:
    """The keys of which clients must give one: the lines of --key-file and MOEINF_API_KEY's text; () for none.

    Raises UsageError for a file that cannot be read or holds no key.
    """
    keys = [variable.strip()] if variable and variable.strip() else []
    if options.key_file is not None:
        try:
            with open_file(options.key_file) as file:
                data = file.read(_MOST_KEY_BYTES + 1)
        except OSError as error:
            raise UsageError(f"--key-file {options.key_file}: {error}; name a readable file, one key a line") from None
        if len(data) > _MOST_KEY_BYTES:
            raise UsageError(
                f"--key-file {options.key_file} is longer than {_MOST_KEY_BYTES >> 20} MiB; write one key a line"
            )
        text = decoded(data)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if "\ufffd" in text:
            raise UsageError(f"--key-file {options.key_file} is no UTF-8 text; write one key a line")
        if not lines:
            raise UsageError(f"--key-file {options.key_file} holds no key; write one a line")
        keys += lines
    for key in keys:
        if not re.fullmatch(r"[!-~]+", key):
            raise UsageError(
                "a key of --key-file or MOEINF_API_KEY has a space or a letter beyond ASCII, which clients cannot "
                "send; make another, such as that of `openssl rand -hex 32`"
            )
    return tuple(keys)
