"""What goes wrong on the server alone, and how a client is told of every error."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from moeinf.errors import (
    REMEDIES,
    CheckpointError,
    ContextLengthError,
    ModelNotFoundError,
    MoeinfError,
    StarvedError,
    TextError,
    UsageError,
    of_the_machine,
)
from moeinf.store.files import named

RETRY_AFTER_S = 5
log = logging.getLogger("moeinf.server")


class BusyError(MoeinfError):
    """As many requests wait as may. retry_after_s: whole seconds after which it makes sense to ask again."""

    def __init__(self, message: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoppingError(MoeinfError):
    """The server ends, and takes no more requests."""


class Refusal(MoeinfError):
    """A request that is answered with this status; the message is one line for the client."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        """kind: as of Fault, where it is another one than most of this status have."""
        super().__init__(message)
        self.status, self.kind = status, kind or _KINDS.get(status, "invalid")


class TooLong(NamedTuple):
    """num_tokens: of a prompt, at least. context: tokens that there is room for. remedy: what can be done."""

    num_tokens: int
    context: int
    remedy: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as HTTP has it: kind is one of the words of `status_of`, which each API has its own name for."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    too_long: TooLong | None = None  # of a prompt that the context has no room for


_NO_RETRY = {"x-should-retry": "false"}  # OpenAI's and Anthropic's clients would ask three times
_MOST_MESSAGE = 4000  # characters: an error may name what the client has sent, of any length
# A path from the root, but for those of routes and the end of a URL.
_PATH = re.compile(r"""(?<![\w/.:~-])/(?!v1/|api/)(?:[^\s/'"`:;,()]+/)+([^\s/'"`:;,()]*)""")
_KINDS = {400: "invalid", 401: "key", 403: "forbidden", 404: "route", 405: "method", 413: "size", 415: "type"}


def without_folders(message: str) -> str:
    """The message without the folders of its files, which tell of the machine and its users."""
    for folder in (os.environ.get("MOEINF_HOME", ""), os.path.expanduser("~")):  # which may have spaces in them
        if folder.strip("/"):
            message = message.replace(f"{folder}/", "")
    return _PATH.sub(r"\1", message)


def fault_of(error: BaseException) -> Fault:
    """How a client is told of an error. What nobody expected is not described: it might tell of the machine."""
    error = of_the_machine(error) or error
    message = without_folders(str(error)[:_MOST_MESSAGE])
    if isinstance(error, Refusal):
        return Fault(error.status, error.kind, message)
    if isinstance(error, BusyError | StoppingError | StarvedError):
        seconds = error.retry_after_s if isinstance(error, BusyError) else RETRY_AFTER_S
        return Fault(503, "busy", message, {"Retry-After": str(seconds)})
    if isinstance(error, ModelNotFoundError):
        return Fault(404, "not_found", message)
    if isinstance(error, ContextLengthError):
        lengths = TooLong(error.num_tokens, error.context, error.remedy) if error.num_tokens else None
        return Fault(400, "context", message, too_long=lengths)
    if isinstance(error, UsageError | TextError | CheckpointError):
        return Fault(400, "invalid", message)
    if isinstance(error, RecursionError):
        return Fault(400, "invalid", "the request's JSON is nested too deeply")
    if isinstance(error, MoeinfError):
        return Fault(500, "server", message, _NO_RETRY)
    more = "the server's log has more"
    if isinstance(error, OSError) and error.errno:
        refused = f"the server's machine refuses something: {os.strerror(error.errno)}"
        return Fault(500, "server", f"{refused}; {REMEDIES.get(error.errno, more)}", _NO_RETRY)
    return Fault(500, "server", f"unexpected error; {more}", _NO_RETRY)


def log_fault(error: BaseException, doing: str = "") -> None:
    """Writes what a client is told of as "server": one line for what is known, a traceback behind it for the rest."""
    known = of_the_machine(error) or (named(error) if isinstance(error, OSError) and error.errno else error)
    line = str(known) if isinstance(known, MoeinfError) else f"{type(error).__name__}: {error}"
    log.error("%s%s", doing, line, exc_info=None if isinstance(known, MoeinfError) else error)
