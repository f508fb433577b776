"""Serves the page: the files of static/, which come with the package, under a strict content security policy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
# This worker asks the MCP servers that the user has named: a worker has a policy of its own, and no other file has it.
MCP_WORKER: Final = "mcp/mcp_worker.js"
MCP_WORKER_POLICY: Final = "default-src 'none'; connect-src http: https:"
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept by a browser, but asked for with its ETag each time
}
CONTENT_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
PROBED: Final = "Ollama is running"  # what clients of ollama look for at /


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    content_type: str
    policy: str = CONTENT_SECURITY_POLICY

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    def answer(self, request: Request, **more: str) -> Response:
        """The file, or 304 where the browser has it. more: headers."""
        headers = {**HEADERS, "Content-Security-Policy": self.policy, "ETag": self.etag, **more}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.content_type)


def page_routes() -> list[Route]:
    """GET / is the page for browsers and a line of text for other clients; /page/... are the files that it loads.

    None of them needs a key: they hold no data.
    """
    static = files("moeinf.server.page") / "static"
    folders = [("", static), *((f"{entry.name}/", entry) for entry in static.iterdir() if entry.is_dir())]
    page = {
        folder + entry.name: PageFile(entry.read_bytes(), CONTENT_TYPES[entry.name.rpartition(".")[2]])
        for folder, entries in folders
        for entry in entries.iterdir()
        if entry.is_file()
    }
    index, worker = page.pop("index.html"), page[MCP_WORKER]
    page[MCP_WORKER] = replace(worker, policy=MCP_WORKER_POLICY)

    async def root(request: Request) -> Response:
        if _takes_html(request):
            return index.answer(request, Vary="Accept")
        return PlainTextResponse(PROBED, headers={"Vary": "Accept"})

    return [Route("/", root), *(_file_route(f"/page/{name}", file) for name, file in sorted(page.items()))]


def _file_route(path: str, file: PageFile) -> Route:
    async def answer(request: Request) -> Response:
        return file.answer(request)

    return Route(path, answer)


def _takes_html(request: Request) -> bool:
    """Browsers name text/html; clients of the API accept anything, or JSON."""
    accepted = request.headers.get("accept", "").split(",")
    return any(each.partition(";")[0].strip().lower() == "text/html" for each in accepted)
