"""POST /v1/messages/count_tokens: how long a prompt would be, without loading the model."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from moeinf.server.anthropic.requests import Prompted, prompt_of
from moeinf.server.body import body_of
from moeinf.server.http import json_response
from moeinf.server.service import Service


async def count_tokens(service: Service, request: Request, request_id: str) -> Response:
    asked = await body_of(request, Prompted)
    stored = service.find(asked.model)
    return json_response({"input_tokens": await asyncio.to_thread(service.count, stored, prompt_of(asked))})
