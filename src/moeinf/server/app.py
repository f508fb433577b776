"""The application: the routes of all APIs, behind the guard."""

from __future__ import annotations

import re

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from moeinf.server.anthropic.errors import error_body as anthropic_error
from moeinf.server.anthropic.routes import PREFIX as ANTHROPIC_PREFIX
from moeinf.server.anthropic.routes import routes as anthropic_routes
from moeinf.server.gate.guard import Guard, Rules
from moeinf.server.gate.request_log import RequestLog
from moeinf.server.http import ErrorForm, error_response, json_response
from moeinf.server.http_errors import Refusal
from moeinf.server.llama.llama_routes import routes as llama_routes
from moeinf.server.ollama.errors import error_body as ollama_error
from moeinf.server.ollama.routes import routes as ollama_routes
from moeinf.server.openai.errors import error_body as openai_error
from moeinf.server.openai.routes import routes as openai_routes
from moeinf.server.page.available_routes import available_routes
from moeinf.server.page.live import live_route, observed
from moeinf.server.page.page_routes import page_routes
from moeinf.server.responses.response_routes import routes as response_routes
from moeinf.server.service import Service

_DOUBLED = re.compile(r"^/+((?:api|v1)/(?=/))?/*")  # the slashes before the route of an API


def build_app(service: Service, rules: Rules) -> ASGIApp:
    """The ASGI application over an open service, which stays the caller's to close."""
    page = page_routes()
    routes = [*routes_of(service), *page]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _of_no_route, Exception: _unexpected})
    app.router.redirect_slashes = False
    return RequestLog(plain_paths(Guard(app, rules, error_form, page=[route.path for route in page])))


def routes_of(service: Service) -> list[Route]:
    """All but the page's files."""
    apis = [
        *openai_routes(service),
        *response_routes(service),
        *anthropic_routes(service),
        *ollama_routes(service),
        *llama_routes(service),
    ]
    page = [*available_routes(service), live_route(lambda: observed(service.worker))]
    return [*_own_routes(service), *apis, *page]


def plain_paths(app: ASGIApp) -> ASGIApp:
    """The application for paths of clients whose base URL, or whose path, ends in a slash: //api/chat, /v1//models and
    /v1/models/."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": _DOUBLED.sub(r"/\1", scope["path"]).rstrip("/") or "/"}
        await app(scope, receive, send)

    return asked


def error_form(path: str) -> ErrorForm:
    """How errors of a path are written, one without a route among them."""
    if path.startswith(ANTHROPIC_PREFIX):
        return anthropic_error
    return ollama_error if path.startswith("/api/") or path == "/api" else openai_error


def _own_routes(service: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        worker = service.worker
        if not worker.alive or worker.pulse.hangs:
            what = "hangs: requests wait, and it does nothing" if worker.alive else "has ended"
            why = f"the server's thread that runs models {what}; restart the server"
            return error_response(Refusal(503, why), error_form(request.url.path))
        return json_response({"status": "ok"})

    async def metrics(request: Request) -> Response:
        worker = service.worker
        loaded = {each.stored.name: each.kept_bytes for each in worker.opened.loaded}
        text = service.metrics.text(running=worker.view.running, waiting=worker.view.waiting, loaded=loaded)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return [Route("/health", health), Route("/metrics", metrics)]


async def _of_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: f"no such route: {request.method} {ascii(request.url.path)[1:-1]:.100}",
        405: f"this route takes no {request.method}",
    }
    refusal = Refusal(error.status_code, words.get(error.status_code, str(error.detail)))
    response = error_response(refusal, error_form(request.url.path))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    return error_response(error, error_form(request.url.path))
