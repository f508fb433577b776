"""The routes of Anthropic's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.server.anthropic.errors import error_body, new_request_id
from moeinf.server.anthropic.messages import question_of
from moeinf.server.anthropic.requests import MessageRequest, Prompted, prompt_of
from moeinf.server.http import answering, json_response, on_a_thread
from moeinf.server.service import Service

PREFIX = "/v1/messages"  # of the paths whose errors have Anthropic's form
Handler = Callable[[Service, Request, str], Awaitable[Response]]


def routes(service: Service) -> list[Route]:
    return [
        Route(PREFIX, _answering(service, _messages), methods=["POST"]),
        Route(f"{PREFIX}/count_tokens", _answering(service, _count_tokens), methods=["POST"]),
    ]


async def _messages(service: Service, request: Request, request_id: str) -> Response:
    return await service.answer(request, MessageRequest, partial(question_of, request_id=request_id))


async def _count_tokens(service: Service, request: Request, request_id: str) -> Response:
    """How long a prompt would be, without loading the model."""
    ask = await service.read(request, Prompted, prompt_of)
    counted = await on_a_thread(request, service.pools.texts, partial(service.count, ask))
    return json_response({"input_tokens": counted})


def _answering(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler, with an id for each request, and errors in Anthropic's form."""

    async def answered(request: Request) -> Response:
        request_id = new_request_id()

        @answering(partial(error_body, request_id=request_id))
        async def handled(request: Request) -> Response:
            return await handler(service, request, request_id)

        response = await handled(request)
        response.headers["request-id"] = request_id
        return response

    return answered
