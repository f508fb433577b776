"""What clients ask of a server of this process, recorded, and made small enough for a fixture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moeinf.server.app import build_app

_APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
_LONGEST = 60  # characters that are kept of a text, but for those of
_WHOLE = ("arguments", "input", "id", "call_id", "tool_call_id", "tool_use_id", "pattern", "definition")

# That tell one session from another.
_OWN = ("user_id", "device_id", "session_id", "thread_id", "turn_id", "prompt_cache_key", "x-codex-installation-id")


@dataclass(frozen=True)
class Asked:
    """A request for an answer. headers: of those the ones that Anthropic's API knows."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@contextmanager
def recorded() -> Iterator[list[Asked]]:
    """Of servers that are made meanwhile."""
    found = list[Asked]()

    def listening(app: ASGIApp) -> ASGIApp:
        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(_APIS):
                await app(scope, receive, send)
                return
            parts = list[bytes]()

            async def heard() -> Message:
                message = await receive()
                if message["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                        known = {name: text for name, text in headers.items() if name.startswith("anthropic-")}
                        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
                        found.append(Asked(scope["path"] + query, known, json.loads(b"".join(parts))))
                return message

            await app(scope, heard, send)

        return asked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeinf.server.serve.build_app", lambda *given: listening(build_app(*given)))
        yield found


def shortened(value: Any, names: Mapping[str, str], *, key: str = "") -> Any:
    """The value with each text cut, without descriptions, and with other names for what only this machine has.

    What tools are given, and what is compared, stays whole.
    """
    if isinstance(value, dict):
        described = {name: each for name, each in value.items() if name != "description" or not isinstance(each, str)}
        return {name: shortened(each, names, key=name) for name, each in described.items()}
    if isinstance(value, list):
        return [shortened(each, names, key=key) for each in value]
    if not isinstance(value, str):
        return value
    for old, new in names.items():
        value = value.replace(old, new)
    if key in _OWN:
        return "any"
    return value if key in _WHOLE else value[:_LONGEST]


def write_fixture(path: Path, told: Mapping[str, Any], asked: Sequence[Asked]) -> None:
    """Writes requests, a line each. Of one that has all fields of an earlier one, those that differ alone."""
    lines = list[dict[str, Any]]()
    for at, each in enumerate(asked):
        line: dict[str, Any] = {"path": each.path, "headers": each.headers}
        alike = [(_differing(asked[n], each), n) for n in range(at) if asked[n].body.keys() <= each.body.keys()]
        differs, like = min(alike, key=lambda found: len(json.dumps(found[0])), default=(each.body, None))
        lines.append(line | ({} if like is None else {"like": like}) | {"body": differs})
    requests = ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(json.dumps(told, ensure_ascii=False)[:-1] + f', "requests": [\n{requests}\n]}}\n')


def _differing(before: Asked, after: Asked) -> dict[str, Any]:
    return {name: value for name, value in after.body.items() if before.body.get(name) != value}


def read_fixture(path: Path) -> tuple[dict[str, Any], list[Asked]]:
    """What write_fixture was told, and the requests."""
    told = json.loads(path.read_text())
    asked = list[Asked]()
    for line in told.pop("requests"):
        before = asked[line["like"]].body if "like" in line else {}
        asked.append(Asked(line["path"], line["headers"], before | line["body"]))
    return told, asked
