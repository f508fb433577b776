"""DELETE /api/delete, POST /api/copy and /api/create: names of the store."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.stored.own_names import give_name
from moeinf.server.http import json_response
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama.requests import CopyRequest, CreateRequest, NamedRequest
from moeinf.server.service import Service


async def delete(service: Service, request: Request) -> Response:
    """The model is closed first where it is loaded by this name: what is being answered ends before."""
    service.refuse_strangers("deleting a model")
    asked = await service.body(request, NamedRequest)
    stored = await service.pools.store.run(lambda: service.find(asked.named))
    loaded = service.worker.opened.of(stored.id)
    if loaded is not None and loaded.stored.name == stored.name:
        await service.worker.unload(stored.id)
    await service.pools.store.run(lambda: service.library.remove(stored.name))
    return Response()


async def copy(service: Service, request: Request) -> Response:
    """The copy is one more name of the same weights."""
    service.refuse_strangers("copying a model")
    asked = await service.body(request, CopyRequest)
    await service.pools.store.run(lambda: service.library.copy(asked.source, asked.destination))
    return Response()


async def create(service: Service, request: Request) -> Response:
    """Names a stored model with a system message and options of its own, as the command does."""
    service.refuse_strangers("naming a model")
    asked = await service.body(request, CreateRequest)
    if not asked.source:
        raise Refusal(400, "from is required: it names the stored model that this one is made of")
    name, source = asked.named, asked.source
    await service.pools.store.run(lambda: give_name(service.library, service.find(source), name, asked.preset))
    steps = [{"status": f"using {source}"}, {"status": "writing manifest"}, {"status": "success"}]
    if asked.stream is False:
        return json_response(steps[-1])
    return Response(b"".join(msgspec.json.encode(step) + b"\n" for step in steps), media_type="application/x-ndjson")
