"""GET /api/available: the models that have names; and the forms in which one of them is published, for this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.config.environment import with_environment
from moeinf.config.pull_options import NO_OPTIONS
from moeinf.errors import ModelNotFoundError
from moeinf.forecast.available import available
from moeinf.forecast.form_choice import choice_among, rates_here
from moeinf.references.meaning import meaning
from moeinf.server.http import answering, json_response
from moeinf.server.ollama.errors import error_body
from moeinf.server.service import Service
from moeinf.types import Json


def available_routes(service: Service) -> list[Route]:
    """What the page needs before it fetches a model: what `list --available --json` and `fit NAME --json` print, too.
    Forms are looked up on the Hub, as a pull would do it, and so for those alone who may pull."""
    turn = asyncio.Lock()

    def forms_of(name: str) -> Json:
        home, config, found = service.library.home, with_environment(), None
        with suppress(ModelNotFoundError):  # the pull says so
            found = meaning(name, NO_OPTIONS, service.library)
        if found is None or found.known is None or found.tag:
            return {"name": name, "forms": []}
        rates = rates_here(home, config, _unsaid)
        return choice_among(found.known, found.reference, NO_OPTIONS, config, home, rates).to_json()

    async def answer(made: Callable[[], Json]) -> Response:
        service.refuse_strangers("looking for models")
        async with turn:  # the machine is measured the first time, which nothing should run beside
            return json_response(await asyncio.to_thread(made))

    async def names(request: Request) -> Response:
        return await answer(lambda: {"models": available(service.library.home)})

    async def forms(request: Request) -> Response:
        return await answer(lambda: forms_of(request.path_params["name"]))

    told = answering(error_body)
    return [Route("/api/available", told(names)), Route("/api/available/{name:path}", told(forms))]


def _unsaid(line: str) -> None:
    """What the machine is measured for is of no interest to a page, which waits."""
