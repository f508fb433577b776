"""The routes of Anthropic's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.server.anthropic.count import count_tokens
from moeinf.server.anthropic.errors import error_body, new_request_id
from moeinf.server.anthropic.messages import messages
from moeinf.server.http import error_response
from moeinf.server.service import Service

PREFIX = "/v1/messages"  # of the paths whose errors have Anthropic's form
Handler = Callable[[Service, Request, str], Awaitable[Response]]


def routes(service: Service) -> list[Route]:
    return [
        Route(PREFIX, _answering(service, messages), methods=["POST"]),
        Route(f"{PREFIX}/count_tokens", _answering(service, count_tokens), methods=["POST"]),
    ]


def _answering(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler, with an id for each request, and errors in Anthropic's form."""

    async def answered(request: Request) -> Response:
        request_id = new_request_id()
        try:
            response = await handler(service, request, request_id)
        except Exception as error:  # the client is told, whatever it was
            response = error_response(error, partial(error_body, request_id=request_id))
        response.headers["request-id"] = request_id
        return response

    return answered
