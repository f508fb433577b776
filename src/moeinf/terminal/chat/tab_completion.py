"""What Tab completes in a chat: the commands, and what may follow them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.arguments.shell_completion import stored_names
from moeinf.terminal.chat.help import HELP, HELP_SET, HELP_SHOW, HELPS, words_of


def _parameters(_: str) -> Iterable[str]:
    return sorted(http_options("ollama", RuntimeConfig, SamplingParams))


def _second_words(text: str) -> Callable[[str], Iterable[str]]:
    return lambda _: [words.split()[1] for words in words_of(text)]


# By the words before it: what the word at the cursor may be, given its beginning.
_WORDS: Mapping[str, Callable[[str], Iterable[str]]] = {
    "": lambda _: [*(words for words in words_of(HELP) if " " not in words), "/help", "/exit"],
    "/set": _second_words(HELP_SET),
    "/set parameter": _parameters,
    "/show": _second_words(HELP_SHOW),
    "/load": stored_names,
    "/save": stored_names,
    "/?": lambda _: [topic for topic in HELPS if topic],
    "/help": lambda _: [topic for topic in HELPS if topic],
}


class CommandCompleter(Completer):
    """Completes a line that begins with a slash; a message is never changed."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See Completer."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in document.text:
            return
        before, _, word = line.rpartition(" ")
        if before == "/read":
            yield from PathCompleter(expanduser=True).get_completions(Document(word), complete_event)
            return
        known = _WORDS.get(before)
        for found in dict.fromkeys(() if known is None else known(word)):
            if found.startswith(word):
                yield Completion(f"{found} ", start_position=-len(word), display=found)
