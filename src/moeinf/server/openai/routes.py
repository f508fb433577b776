"""The routes of OpenAI's API."""

from __future__ import annotations

import functools
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.errors import MoeinfError
from moeinf.server.http import answering, json_response
from moeinf.server.http_errors import Refusal
from moeinf.server.openai import chat, completions, embeddings
from moeinf.server.openai.errors import error_body
from moeinf.server.openai.requests import ChatRequest, CompletionRequest
from moeinf.server.service import Handler, Service, asking
from moeinf.store.library import StoredModel
from moeinf.types import JsonObject


def routes(service: Service) -> list[Route]:
    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, answering(error_body)(functools.partial(handler, service)), methods=[method])

    return [
        route("/v1/chat/completions", "POST", asking(ChatRequest, chat.question_of)),
        route("/v1/completions", "POST", asking(CompletionRequest, completions.question_of)),
        route("/v1/embeddings", "POST", asking(embeddings.EmbeddingRequest, embeddings.question_of)),
        route("/v1/rerank", "POST", _no_ranking),
        route("/v1/models", "GET", _models),
        route("/v1/models/{name:path}", "GET", _model),
    ]


async def _models(service: Service, request: Request) -> Response:
    data = await service.pools.store.run(lambda: [_described(service, stored) for stored in service.library.list()])
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": data, "has_more": False, **ends})


async def _model(service: Service, request: Request) -> Response:
    name = request.path_params["name"]
    return json_response(await service.pools.store.run(lambda: _described(service, service.find(name))))


def _described(service: Service, stored: StoredModel) -> JsonObject:
    """With the fields of Anthropic's API, which has models at the same paths, and the sizes by the names that clients
    look for. Blocks."""
    modified, sizes = stored.modified, JsonObject()
    with suppress(MoeinfError):  # whoever asks such a model is told what is wrong with it
        longest = service.worker.opened.longest_context(stored)
        sizes = {"context_length": longest, "max_model_len": longest, "meta": _meta(stored)}
    return {
        "id": stored.name,
        "object": "model",
        "created": int(modified.timestamp()),
        "owned_by": "moeinf",
        "type": "model",
        "display_name": stored.name,
        "created_at": modified.isoformat(timespec="seconds").replace("+00:00", "Z"),
        **sizes,
    }


def _meta(stored: StoredModel) -> JsonObject:
    """As llama.cpp's server has it. Raises StoreError."""
    info = stored.manifest.info
    return {
        "n_ctx_train": info.context_length,
        "n_embd": info.hidden_size,
        "n_vocab": info.vocab_size,
        "n_params": info.num_params,
        "size": stored.size_bytes,
    }


async def _no_ranking(service: Service, request: Request) -> Response:
    why = "models here have no head that was trained to rank; compare the vectors of /v1/embeddings"
    raise Refusal(400, f"rerank is not supported: {why}")
