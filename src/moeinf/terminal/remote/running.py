"""What `ps` and `stop` do with the model that a server has loaded."""

from __future__ import annotations

from datetime import datetime, timezone

from moeinf.errors import ModelNotFoundError
from moeinf.store.naming.names import meant, plain_name
from moeinf.terminal.remote.client import ServerClient
from moeinf.terminal.screen import table
from moeinf.text.quantities import from_now_text, size_text
from moeinf.types import JsonObject

_HEAD = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "EXPERTS")
_NEVER_YEAR = 9999


def running_models(client: ServerClient) -> list[JsonObject]:
    """The models that are loaded, as /api/ps tells of them."""
    return client.models("/api/ps")


def running_lines(models: list[JsonObject], now: datetime | None = None) -> list[str]:
    """A table with a header."""
    now = now or datetime.now(timezone.utc)
    return table([_HEAD, *(_row(model, now) for model in models)])


def _row(model: JsonObject, now: datetime) -> tuple[str, ...]:
    return (
        model["name"],
        model["digest"][:12],
        size_text(model["size"]),
        _processor(model["size"], model["size_vram"]),
        str(model["context_length"]),
        _until(datetime.fromisoformat(model["expires_at"]), model["moeinf"], now),
        _experts(model["moeinf"]),
    )


def _processor(size: int, vram: int) -> str:
    """`100% CPU`, `100% GPU`, or `48%/52% CPU/GPU`: where the bytes are."""
    if vram in (0, size):
        return "100% GPU" if vram else "100% CPU"
    on_cpu = round(100 * (size - vram) / size)
    return f"{on_cpu}%/{100 - on_cpu}% CPU/GPU"


def _until(expires: datetime, told: JsonObject, now: datetime) -> str:
    if expires.year == _NEVER_YEAR:
        return "Forever"
    return from_now_text(expires, now) if expires > now or not told["answering"] else "Answering"


def _experts(told: JsonObject) -> str:
    """`34/256, 38% hit`"""
    hits = "" if told["hit_rate"] is None else f", {100 * told['hit_rate']:.0f}% hit"
    return f"{told['slots']}/{told['experts']}{hits}"


def stop_model(client: ServerClient, name: str) -> None:
    """Has the server close a model, after what it is answering. Raises ModelNotFoundError where it is not loaded."""
    digests = {model["name"]: model["digest"] for model in client.models("/api/tags")}
    loaded = {model["name"]: model["digest"] for model in running_models(client)}
    digests |= loaded  # the files of a loaded model may have gone
    if "/" not in plain_name(name) and not any(digests[each] in loaded.values() for each in meant(name, digests)):
        raise ModelNotFoundError(f'couldn\'t find model "{name}" to stop; `moeinf ps` shows what is loaded')
    client.ask("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False}, timeout_s=None)
