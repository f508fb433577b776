"""The routes of the Responses API."""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.errors import ContextLengthError
from moeinf.server.http import answering, json_response, on_a_thread
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.errors import error_body
from moeinf.server.responses.kept_responses import Kept, KeptResponses
from moeinf.server.responses.response_question import Shortened, ask_of, question_of
from moeinf.server.responses.response_request import ResponseRequest
from moeinf.server.service import Handler, Service

_ROOT = "/v1/responses"


def routes(service: Service) -> list[Route]:
    kept = KeptResponses()

    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, answering(error_body)(functools.partial(handler, service)), methods=[method])

    async def found(request: Request) -> Kept:
        return await service.pools.compute.run(lambda: kept.get(request.path_params["id"]))

    async def create(service: Service, request: Request) -> Response:
        shortened = Shortened()
        while True:
            try:
                question = functools.partial(question_of, kept=kept, shortened=shortened)
                return await service.answer(request, ResponseRequest, question)
            except ContextLengthError:
                if not shortened.more():
                    raise

    async def count(service: Service, request: Request) -> Response:
        ask = await service.read(request, ResponseRequest, functools.partial(ask_of, kept=kept))
        counted = await on_a_thread(request, service.pools.texts, functools.partial(service.count, ask))
        return json_response({"object": "response.input_tokens", "input_tokens": counted})

    async def get(service: Service, request: Request) -> Response:
        if request.query_params.get("stream") == "true":
            raise Refusal(400, "a response is kept once it has ended: it is not streamed again")
        return json_response((await found(request)).response)

    async def delete(service: Service, request: Request) -> Response:
        kept.remove(request.path_params["id"])
        return json_response({"id": request.path_params["id"], "object": "response", "deleted": True})

    async def items(service: Service, request: Request) -> Response:
        data = (await found(request)).items
        data = data if request.query_params.get("order") == "asc" else data[::-1]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return json_response({"object": "list", "data": data, "has_more": False, **ends})

    async def cancel(service: Service, request: Request) -> Response:
        await found(request)
        raise Refusal(400, "a response in the background alone can be cancelled: hang up to end this one")

    return [
        route(_ROOT, "POST", create),
        route(f"{_ROOT}/input_tokens", "POST", count),
        route(f"{_ROOT}/{{id}}", "GET", get),
        route(f"{_ROOT}/{{id}}", "DELETE", delete),
        route(f"{_ROOT}/{{id}}/input_items", "GET", items),
        route(f"{_ROOT}/{{id}}/cancel", "POST", cancel),
    ]
