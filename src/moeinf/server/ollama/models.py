"""/api/tags, /api/show, /api/ps and /api/version: which models there are, which are loaded, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone

from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.errors import StoreError
from moeinf.server.http import json_response
from moeinf.server.ollama.descriptions import entry, shown
from moeinf.server.ollama.requests import ShowRequest
from moeinf.server.service import Service
from moeinf.server.turns.opened import Loaded
from moeinf.server.turns.overview import Seen
from moeinf.types import JsonObject

API_VERSION = "0.13.5"  # of ollama, whose API this is: its clients refuse what looks older than they need
_NEVER = datetime(9999, 12, 31, tzinfo=timezone.utc)  # clients parse a time in any case


async def tags(service: Service, request: Request) -> Response:
    return json_response({"models": await service.pools.store.run(lambda: _entries(service))})


async def show(service: Service, request: Request) -> Response:
    asked = await service.body(request, ShowRequest)

    def described() -> JsonObject:
        stored = service.find(asked.named)
        return shown(stored, service.worker.opened.longest_context(stored), verbose=bool(asked.verbose))

    return json_response(await service.pools.store.run(described))


async def ps(service: Service, request: Request) -> Response:
    """Which models are open, the last used first, and in `moeinf` what every request does."""
    requests = service.worker.view.requests()
    opened = service.worker.opened
    running = [_running(each, opened.longest_context(each.stored), requests) for each in reversed(opened.loaded)]
    return json_response({"models": running, "moeinf": {"requests": requests}})


async def version(service: Service, request: Request) -> Response:
    return json_response({"version": API_VERSION})


def _entries(service: Service) -> list[JsonObject]:
    """The models whose manifests are sound; `moeinf list` tells of the others."""
    entries = []
    for model in service.library.list():
        with suppress(StoreError):
            entries.append(entry(model))
    return entries


def _running(loaded: Loaded, context: int, requests: Sequence[Seen]) -> JsonObject:
    """An open model; in `moeinf`, what is resident, how the cache did last, and the options it was opened with.

    context: tokens that it is given room for, if a prompt needs them.
    """
    model, plan = loaded.model, loaded.model.plan
    own = [each for each in requests if each.model == loaded.stored.name]
    on_gpu = isinstance(plan, DevicePlan)
    # What is set aside for earlier prompts is empty at first, and of the server more than of the model.
    size = plan.total_bytes + (plan.host_bytes if isinstance(plan, DevicePlan) else -plan.prefix_bytes)
    size += model.draft_bytes
    return {
        **loaded.told,
        "size": size,
        "size_vram": plan.total_bytes if on_gpu else 0,
        "context_length": plan.context,
        "expires_at": (loaded.expires or _NEVER).isoformat(),
        "moeinf": {
            "slots": model.tier.num_experts,
            "experts": loaded.stored.manifest.moe.total_experts,
            "hit_rate": _hit_rate(loaded),
            "longest_context": context,
            "answering": any(each.position is None for each in own),
            "waiting": sum(each.position is not None for each in own),
            "config": loaded.config.given(),
        },
    }


def _hit_rate(loaded: Loaded) -> float | None:
    """Of the last answer's decoding; None where there was none."""
    with suppress(StoreError):  # the model is being closed
        last = loaded.model.last
        if last is not None and last.stats.decode_cache.activations:
            return last.stats.decode_cache.hit_rate
    return None
