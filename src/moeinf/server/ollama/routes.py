"""The routes of ollama's API."""

from __future__ import annotations

import functools

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.server.http import answering
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama.chat import chat_question, generate_question
from moeinf.server.ollama.embeddings_asked import EmbeddingsRequest, EmbedRequest, embed_question, embeddings_question
from moeinf.server.ollama.errors import error_body
from moeinf.server.ollama.manage import copy, create, delete
from moeinf.server.ollama.models import ps, show, tags, version
from moeinf.server.ollama.pull_route import Pulls
from moeinf.server.ollama.requests import ChatRequest, GenerateRequest
from moeinf.server.service import Handler, Service, asking


def routes(service: Service) -> list[Route]:
    """Those of GET answer HEAD as well."""

    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, answering(error_body)(functools.partial(handler, service)), methods=[method])

    return [
        route("/api/chat", "POST", asking(ChatRequest, chat_question)),
        route("/api/generate", "POST", asking(GenerateRequest, generate_question)),
        route("/api/tags", "GET", tags),
        route("/api/show", "POST", show),
        route("/api/ps", "GET", ps),
        route("/api/version", "GET", version),
        route("/api/pull", "POST", Pulls().pull),
        route("/api/delete", "DELETE", delete),
        route("/api/copy", "POST", copy),
        route("/api/create", "POST", create),
        route("/api/push", "POST", _refused("push is not supported: models stay on this machine")),
        route("/api/embed", "POST", asking(EmbedRequest, embed_question)),
        route("/api/embeddings", "POST", asking(EmbeddingsRequest, embeddings_question)),
    ]


def _refused(why: str) -> Handler:
    async def handle(service: Service, request: Request) -> Response:
        raise Refusal(400, why)

    return handle
