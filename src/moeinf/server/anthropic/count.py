"""POST /v1/messages/count_tokens: how long a prompt would be, without loading the model."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.anthropic.requests import Prompted, prompt_of
from moeinf.server.http import json_response, on_a_thread
from moeinf.server.service import Service


async def count_tokens(service: Service, request: Request, request_id: str) -> Response:
    _, ask = await service.read(request, Prompted, prompt_of)
    stored = await service.pools.store.run(lambda: service.find(ask.model))
    counted = await on_a_thread(request, service.pools.texts, lambda gone: service.count(stored, ask, gone))
    return json_response({"input_tokens": counted})
