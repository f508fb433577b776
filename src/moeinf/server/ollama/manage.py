"""DELETE /api/delete and POST /api/copy: names of the store."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.ollama.requests import CopyRequest, NamedRequest
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
