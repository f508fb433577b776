"""What clients send a server: heads of requests, bodies of every route, lines of a batch, and pictures."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import h11
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moeinf.batch.batch_lines import LineFault, lines_of
from moeinf.errors import MoeinfError
from moeinf.pictures import picture_decoder
from moeinf.sampling.constraint import held_to
from moeinf.sampling.params import SamplingParams
from moeinf.server.app import routes_of
from moeinf.server.body import body_of
from moeinf.server.gate.framing import StrictConnection
from moeinf.server.http_errors import Refusal, fault_of
from moeinf.server.prompt.pictures import picture_of
from moeinf.server.question import Question
from moeinf.server.service import Service
from tests.support.campaign.targets.answers import TOOLS
from tests.support.campaign.targets.target import Target, as_json, check_line, refusing

T = TypeVar("T")
Made = TypeVar("Made")
_PIXELS: Final = 1 << 16  # of pictures that are decoded


class _Enough(Refusal):
    """A body was read: what the route would do with it is no matter of this."""

    def __init__(self) -> None:
        super().__init__(400, "read")


@dataclass
class _Seen:
    """What became of one body: whether it was read, the type that it was read as, and what no client may cause."""

    kind: type | None = None
    wrong: BaseException | None = None


class _Reader(Service):
    """What routes work with, of which nothing works but that it reads bodies."""

    __slots__ = ()
    seen = _Seen()

    async def read(self, request: Request, kind: type[T], made: Callable[[T], Made]) -> Made:
        _Reader.seen.kind, body = kind, await request.body()
        try:
            found = made(body_of(body, kind))
            if isinstance(found, Question):
                _look_at(found)
        except MoeinfError as error:
            assert fault_of(error).status < 500, f"told as the server's fault: {error}"
            check_line(fault_of(error).message)
        except BaseException as error:
            _Reader.seen.wrong = error
        raise _Enough

    async def answer(self, request: Request, kind: type[T], question_of: Callable[[T], Question]) -> Response:
        await self.read(request, kind, question_of)
        raise AssertionError("reading ends with _Enough")


class _Stream:
    """Of an answer that is held to a form."""

    def constrain(self, forms: Any) -> tuple[bytes, bool]:
        assert forms == json.loads(json.dumps(forms)) and all("prefix" in form for form in forms)
        return b"\xff", False


def _look_at(question: Question) -> None:
    """What happens to a question before its model is known. Raises UsageError."""
    for ask in (question.ask, *question.others):
        SamplingParams(**ask.params)
        if ask.format is not None:
            stream: Any = _Stream()
            held_to(stream, ask.format, 8)


@cache
def reading_routes() -> list[tuple[Route, str, type]]:
    """The routes that read a body, whatever they are, each with its method and the type that it reads."""
    nothing: Any = None
    service, found = _Reader(nothing, nothing, nothing, nothing), []
    logging.disable(logging.CRITICAL)  # whatever lacks else than a body is told of there
    for route in routes_of(service):
        for method in sorted(set(route.methods or ()) & {"POST", "PUT", "PATCH", "DELETE"}):
            if (kind := _asked(route, method, b"{}").kind) is not None:
                found.append((route, method, kind))
    logging.disable(logging.NOTSET)
    return found


def _asked(route: Route, method: str, body: bytes) -> _Seen:
    """What a route does with a body. It waits for nothing, so that no event loop is needed."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": method, "path": route.path, "headers": [], "query_string": b""}
    seen = _Reader.seen = _Seen()
    handled = route.endpoint(Request({**scope, "path_params": {"id": "x"}}, receive))
    try:
        handled.send(None)
    except StopIteration:
        return seen
    except Exception:
        if seen.kind is None:  # a route that reads no body, and needs what is not there
            return seen
        raise
    finally:
        handled.close()
    raise AssertionError(f"{route.path} waits for something while it reads a body")


def _body(data: bytes) -> None:
    """The body of a request: its first byte says of which route."""
    if data:
        route, method, _ = reading_routes()[data[0] % len(reading_routes())]
        seen = _asked(route, method, data[1:])
        if seen.wrong is not None:
            raise seen.wrong


def _batch(data: bytes) -> None:
    """The lines of a batch: each has an answer, or what is wrong with it, and an id of its own."""
    text = data.decode(errors="replace")

    def read() -> None:
        for raw in (False, True):
            found = lines_of(text, "m", "salt", raw=raw)
            assert len({line.id for line in found}) == len(found)
            for line in found:
                if isinstance(line.what, Question):
                    refusing(lambda what=line.what: _look_at(what))  # type: ignore[misc]
                else:
                    check_line(line.what.message if isinstance(line.what, LineFault) else str(line.what))

    refusing(read)


def _head(data: bytes) -> None:
    """Bytes of a connection: the same requests whole and in pieces, and the same end."""
    size = 1 if len(data) < 300 else 1 + len(data) // 100
    whole = list(_events([data]))
    pieces = list(_events([data[at : at + size] for at in range(0, len(data), size)]))
    assert whole == pieces, f"{whole!r:.500} | {pieces!r:.500}"


def _events(parts: list[bytes]) -> Iterator[tuple[object, ...]]:
    """Each request with its body, and at last whether what follows is refused."""
    connection, body, head = StrictConnection(), b"", b""
    try:
        for part in parts:
            connection.receive_data(part)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    assert event.target.startswith(b"/")
                    head, body = repr((event.method, event.target, list(event.headers))).encode(), b""
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    yield head, body, list(event.headers)
                    connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                        yield ("closed",)
                        return
                    connection.start_next_cycle()
    except h11.RemoteProtocolError:
        assert connection.refused is not None
        status, why = connection.refused
        assert status in (400, 414, 431) and why.isascii() and "\n" not in why
        yield ("refused",)


def _picture(data: bytes) -> None:
    """A picture as the process that decodes it is given it: pixels of its size, or a line."""
    try:
        image = picture_decoder._opened(data)
        height, width = picture_decoder._turned_size(image)
        if height * width > _PIXELS:
            return
        half_height = max(height // 2, 1)
        cut = {"kind": "cut", "height": half_height, "width": width, "top": 0, "left": 0}
        upright = picture_decoder._upright(image)
        assert (upright.height, upright.width) == (height, width)
        half, whole = picture_decoder._views(upright, [[cut], [{**cut, "height": height}]])
        assert len(whole) == 3 * height * width and len(half) == 3 * half_height * width
    except AssertionError:
        raise
    except Exception as error:
        check_line(picture_decoder._fault(error))


def _data_url(data: bytes) -> None:
    """A picture as clients write it: what was encoded is what is found."""
    refusing(lambda: picture_of(data.decode(errors="replace"), "x"))
    for url in (base64.b64encode(data).decode(), f"data:image/png;base64,{base64.urlsafe_b64encode(data).decode()}"):
        if data:
            assert picture_of(url, "x")["image"] == data


def _fields(kind: object, known: set[str]) -> set[str]:
    """The names of the fields of a struct, and of those within."""
    for info in (msgspec.inspect.type_info(kind),):
        _note(info, known)
    return known


def _note(info: Any, known: set[str]) -> None:
    if isinstance(info, msgspec.inspect.StructType):
        for field in info.fields:
            if field.encode_name not in known:
                known.add(field.encode_name)
            _note(field.type, known)
    for name in ("types", "item_types"):
        for inner in getattr(info, name, ()):
            _note(inner, known)
    for name in ("item_type", "value_type"):
        if hasattr(info, name):
            _note(getattr(info, name), known)


def _body_seeds() -> list[bytes]:
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    asked: dict[str, Any] = {"model": "m", "messages": [message], "max_tokens": 3, "stream": True, "tools": TOOLS[:1]}
    asked |= {
        "prompt": "x",
        "input": "x",
        "content": "x",
        "tokens": [1],
        "source": "a",
        "destination": "b",
        "from": "a",
    }
    found = []
    for at, (_, _, kind) in enumerate(reading_routes()):
        own = {name: value for name, value in asked.items() if name in _fields(kind, set())}
        found.append(bytes([at]) + json.dumps(own).encode())
    return found


def _batch_seeds() -> list[bytes]:
    plain, body = {"prompt": "x", "max_tokens": 3}, {"messages": [{"role": "user", "content": "x"}]}
    lines = [plain, body | {"custom_id": "a"}]
    lines += [{"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": body | {"seed": 1}}]
    return [*as_json(*lines), b"\n".join(as_json(*lines))]


def _head_seeds() -> list[bytes]:
    plain = b"GET /v1/models?a=b HTTP/1.1\r\nHost: localhost:11434\r\nAccept: */*\r\n\r\n"
    post = b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Type: application/json\r\n\r\n{ }"
    chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA: b\r\n\r\n"
    return [plain, post + plain, chunked + plain, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + plain]


def _picture_seeds() -> list[bytes]:
    import PIL.Image

    found = []
    for mode, form in (("RGB", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("1", "PNG")):
        buffer = io.BytesIO()
        PIL.Image.new(mode, (5, 3)).save(buffer, form, **({"exif": b"Exif\0\0"} if form == "JPEG" else {}))
        found.append(buffer.getvalue())
    return found


TARGETS: Final = {
    "head": Target(_head, _head_seeds, lambda: ("Expect: 100-continue", "Upgrade: h2c", "Connection: close")),
    "body": Target(
        _body, _body_seeds, lambda: sorted(set[str]().union(*(_fields(kind, set()) for *_, kind in reading_routes())))
    ),
    "batch": Target(_batch, _batch_seeds),
    "picture": Target(_picture, _picture_seeds),
    "data_url": Target(_data_url, lambda: [b"data:image/png;base64,aGk=", b"data:,x%20y", b"aGk"]),
}
