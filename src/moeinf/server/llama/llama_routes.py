"""The routes of /tokenize, /detokenize, /apply-template, /props and /slots, in the forms of llama.cpp's server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import zip_longest

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.engine.stored.facts import facts_of, json_file
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.server.admission import admitted
from moeinf.server.http import answering, json_response, on_a_thread
from moeinf.server.http_errors import Refusal
from moeinf.server.llama.llama_requests import DetokenizeRequest, TemplateRequest, TokenizeRequest
from moeinf.server.openai.chat import ask_of
from moeinf.server.openai.errors import error_body
from moeinf.server.service import Handler, Service
from moeinf.server.turns.opened import Loaded
from moeinf.store.library import StoredModel
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Json, JsonObject
from moeinf.version import __version__


def routes(service: Service) -> list[Route]:
    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, answering(error_body)(functools.partial(handler, service)), methods=[method])

    return [
        route("/tokenize", "POST", _tokenize),
        route("/detokenize", "POST", _detokenize),
        route("/apply-template", "POST", _apply_template),
        route("/props", "GET", _props),
        route("/slots", "GET", _slots),
    ]


async def _tokenize(service: Service, request: Request) -> Response:
    asked = await service.body(request, TokenizeRequest)

    def tokenized(tokenizer: Tokenizer) -> list[Json]:
        ids = tokenizer.encode(asked.content, control_tokens=asked.parse_special, added=asked.add_special)
        if not asked.with_pieces:
            return ids
        pieces = tokenizer.token_bytes(ids)
        return [{"id": each, "piece": _piece(piece)} for each, piece in zip(ids, pieces, strict=True)]

    return json_response({"tokens": await _of_text(service, request, asked.model, tokenized)})


async def _detokenize(service: Service, request: Request) -> Response:
    asked = await service.body(request, DetokenizeRequest)

    def detokenized(tokenizer: Tokenizer) -> str:
        end = tokenizer.num_ids
        if wrong := next((each for each in asked.tokens if not 0 <= each < end), None):
            raise Refusal(400, f"tokens: {wrong} is no token id; those of this model are below {end}")
        return tokenizer.decode(asked.tokens, skip_special=False)

    return json_response({"content": await _of_text(service, request, asked.model, detokenized)})


async def _apply_template(service: Service, request: Request) -> Response:
    ask = await service.read(request, TemplateRequest, ask_of)

    def rendered(gone: Callable[[], bool]) -> str:
        stored = _meant(service, ask.model)
        return service.texts.rendered(stored, admitted(ask, stored), gone)

    return json_response({"prompt": await on_a_thread(request, service.pools.texts, rendered)})


async def _props(service: Service, request: Request) -> Response:
    """Of the model that `?model=` names, or that is meant anyway. n_ctx: what it is given room for at most."""
    name = request.query_params.get("model", "")
    return json_response(await service.pools.store.run(lambda: _properties(service, _meant(service, name))))


async def _slots(service: Service, request: Request) -> Response:
    """The places for answers of the models that are loaded. `?fail_on_no_slot=1`: status 503 where none is free."""
    slots = [slot for loaded in service.worker.opened.loaded for slot in _places(service, loaded)]
    if request.query_params.get("fail_on_no_slot") and not any(not slot["is_processing"] for slot in slots):
        raise Refusal(503, "no slot is free")
    return json_response(slots)


def _places(service: Service, loaded: Loaded) -> list[JsonObject]:
    requests = service.worker.view.requests()
    running = [each for each in requests if each.model == loaded.stored.name and each.position is None]
    places = zip_longest(range(loaded.model.parallel), running)
    return [
        {
            "id": at,
            "model": loaded.stored.name,
            "n_ctx": loaded.model.plan.context,
            "is_processing": seen is not None,
            "state": "idle" if seen is None else seen.state,
            "next_token": [{"n_decoded": 0 if seen is None else seen.tokens}],
        }
        for at, seen in places
        if at is not None
    ]


def _properties(service: Service, stored: StoredModel) -> JsonObject:
    facts, loaded = facts_of(stored), service.worker.opened.of(stored.id)
    recommended = resolve_params({}, generation_config=json_file(stored, "generation_config.json"))
    return {
        "default_generation_settings": {
            "n_ctx": service.worker.opened.longest_context(stored),
            "params": _sampling(recommended),
        },
        "total_slots": 0 if loaded is None else loaded.model.parallel,
        "model_alias": stored.name,
        "model_path": stored.name,
        "modalities": {"vision": "vision" in facts.capabilities, "audio": False},
        "chat_template": facts.template,
        "build_info": f"moeinf {__version__}",
        "is_sleeping": loaded is None,
    }


def _sampling(params: SamplingParams) -> JsonObject:
    names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty")
    return {name: getattr(params, name) for name in (*names, "frequency_penalty", "seed")} | {
        "n_predict": params.num_predict
    }


async def _of_text(service: Service, request: Request, name: str, call: Callable[[Tokenizer], Json]) -> Json:
    """What is asked of the tokenizer of a model, without loading that."""

    def asked(gone: Callable[[], bool]) -> Json:
        return service.texts.asked(_meant(service, name), gone, call)

    return await on_a_thread(request, service.pools.texts, asked)


def _meant(service: Service, name: str) -> StoredModel:
    """The model of that name; without one, the last that is loaded, or the only one. Blocks. Raises Refusal."""
    if name:
        return service.find(name)
    if loaded := service.worker.opened.loaded:
        return loaded[-1].stored
    stored = service.library.list()
    if len({each.id for each in stored}) != 1:
        raise Refusal(400, f"{len(stored)} models are stored and none is loaded; name one as model")
    return stored[0]


def _piece(piece: bytes) -> str | list[int]:
    """Its text; its bytes where they are a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
