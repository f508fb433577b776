"""POST /v1/messages/count_tokens: how long a prompt would be, without loading the model."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.anthropic.requests import Prompted, prompt_of
from moeinf.server.body import body_of
from moeinf.server.http import json_response, on_a_thread
from moeinf.server.service import Service


async def count_tokens(service: Service, request: Request, request_id: str) -> Response:
    asked = await body_of(request, Prompted)
    stored = service.find(asked.model)
    ask = prompt_of(asked)
    counted = await on_a_thread(request, lambda gone: service.count(stored, ask, gone))
    return json_response({"input_tokens": counted})
