"""DELETE /api/delete and POST /api/copy: names of the store."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.body import body_of
from moeinf.server.ollama.requests import CopyRequest, NamedRequest
from moeinf.server.service import Service


async def delete(service: Service, request: Request) -> Response:
    """The model is closed first where it is loaded: what is being answered ends before."""
    service.refuse_strangers("deleting a model")
    asked = await body_of(request, NamedRequest)
    await asyncio.to_thread(_delete, service, asked.named)
    return Response()


def _delete(service: Service, name: str) -> None:
    stored = service.find(name)
    service.worker.unload(stored.id)
    service.library.remove(stored.name)


async def copy(service: Service, request: Request) -> Response:
    """The copy is one more name of the same weights."""
    service.refuse_strangers("copying a model")
    asked = await body_of(request, CopyRequest)
    await asyncio.to_thread(service.library.copy, asked.source, asked.destination)
    return Response()
