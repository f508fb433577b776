"""The process that owns what is untrusted in text: tokenizer.json and the chat template.

Why a process: a template can hold the GIL or take all memory, tokenizers panics with a BaseException and may abort;
here that costs one worker (see process.py for the parent's end). One JSON object a line, in and out. It ends when
its input ends, that is, with its parent.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from tokenizers import Tokenizer

from moeinf.errors import TextError
from moeinf.text.chat_template import ChatTemplate, mark_control_tokens, split_marked
from moeinf.text.harmony import is_harmony
from moeinf.text.stream import Piece
from moeinf.text.template_facts import read_facts
from moeinf.text.template_file import find_template
from moeinf.text.thoughts import answer_tags_of, tags_of
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.messages import described, fitted, in_templates_form, told_of
from moeinf.text.tool_calls.open_stream import open_stream
from moeinf.text.tool_calls.splitter import TextStream

if TYPE_CHECKING:  # loads llguidance, which only an answer of a given form needs
    from moeinf.text.grammar import Grammars

_MAX_FILE_BYTES = 128 << 20  # the largest tokenizer.json in use is about 34 MB
_LOAD_MEMORY_BYTES = 4 << 30
_RENDER_MEMORY_BYTES = 512 << 20  # above what the worker already has
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Ends of a turn that checkpoints forget to list as end of sequence; without them a chat never stops.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|call|>",
)


class TextWorker:
    """The operations that the parent may request, one method each: takes the request, returns the answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[int, TextStream] = {}
        self._templates: dict[str, ChatTemplate] = {}
        self._grammars: Grammars | None = None

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        path = self._folder / "tokenizer.json"
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TextError(f"{path.name} is larger than 128 MiB, which no tokenizer is")
        self._tokenizer = Tokenizer.from_buffer(path.read_bytes())  # from_file takes no path that is not UTF-8
        self._tokenizer.no_truncation()  # some files come with the cut and the padding of their training
        self._tokenizer.no_padding()
        self._harmony = is_harmony(self._tokenizer)
        config = read_json(self._folder / "tokenizer_config.json")
        self._specials = _special_tokens(config, read_json(self._folder / "special_tokens_map.json"))
        self._template_source = find_template(self._folder, config)
        self._tool_template_source = find_template(self._folder, config, with_tools=True) or ""
        self._syntax = find_syntax(self._tool_template_source)
        self._control = _control_tokens(self._tokenizer, config)
        return self._info(config)

    def _info(self, config: Mapping[str, Any]) -> dict[str, Any]:
        model = read_json(self._folder / "config.json")
        generation = read_json(self._folder / "generation_config.json")
        bos = self._tokenizer.token_to_id(self._specials.get("bos_token", ""))
        self._ends = sorted(self._eos_ids(model, generation))
        return {
            "num_ids": max(self._tokenizer.get_vocab().values(), default=-1) + 1,
            "bos_id": model.get("bos_token_id") if bos is None else bos,
            "add_bos": config.get("add_bos_token") is True,
            "eos_ids": self._ends,
            "special_ids": sorted(i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special),
            "template": self._template_facts(),
            "generation_config": generation,
        }

    def _template_facts(self) -> dict[str, Any] | None:
        if self._template_source is None:
            return None
        facts, tools = read_facts(self._template_source), read_facts(self._tool_template_source).tools
        return {"variables": sorted(facts.variables), "thinks": facts.thinks, "tools": tools}

    def _eos_ids(self, model: Mapping[str, Any], generation: Mapping[str, Any]) -> set[int]:
        text_config = model.get("text_config")
        listed = [generation.get("eos_token_id"), model.get("eos_token_id")]
        listed += [text_config.get("eos_token_id")] if isinstance(text_config, dict) else []
        ids = {i for entry in listed for i in (entry if isinstance(entry, list) else [entry]) if type(i) is int}
        names = [name for name in _END_OF_TURN if not (self._harmony and name == "<|end|>")]  # which ends a channel
        named = (self._tokenizer.token_to_id(name) for name in [self._specials.get("eos_token", ""), *names])
        return ids | {i for i in named if i is not None}

    def render(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Renders a chat; returns text with marked control tokens (see chat_template.MARK), and notes for the user."""
        if self._template_source is None:
            raise TextError("this model has no chat template; use --raw")
        variables = request["variables"]
        source = self._tool_template_source if variables.get("tools") else self._template_source
        with _MemoryLimit(_RENDER_MEMORY_BYTES):
            try:
                if source not in self._templates:
                    self._templates[source] = ChatTemplate(source, self._specials)
                given = in_templates_form(request["messages"], self._syntax)
                messages = fitted(mark_control_tokens(given, self._control), source, self._syntax)
                if variables.get("tools"):
                    tools = mark_control_tokens(described(variables["tools"]), self._control)
                    messages = told_of(tools, messages, source, self._syntax)
                    variables = variables | {"tools": tools}
                text, notes = self._templates[source].render(messages, variables)
            except jinja2.TemplateError as error:
                raise TextError(f"the chat template refuses this chat: {error}") from error
        return {"text": text, "notes": notes}

    def encode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the token ids of `text`.

        kind: "raw" (control tokens count), "plain" (they are text) or "chat" (rendered and marked).
        specials: whether the tokenizer adds its own, which a chat never has.
        """
        kind, text = request["kind"], request["text"]
        pieces = split_marked(text, self._control) if kind == "chat" else [(text, kind == "plain")]
        ids: list[int] = []
        for piece, plain in _joined(pieces):
            self._tokenizer.encode_special_tokens = plain
            ids += self._tokenizer.encode(piece, add_special_tokens=request["specials"]).ids
        return {"ids": ids}

    def token_id(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"token_id": self._tokenizer.token_to_id(request["token"])}

    def decode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": self._tokenizer.decode(request["ids"], skip_special_tokens=request["skip_special"])}

    def token_bytes(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the bytes of each of `ids`, as characters of Latin-1. Builds the grammars' table of tokens."""
        table = self._table()
        return {"bytes": [table.token_bytes(token).decode("latin-1") for token in request["ids"]]}

    def constrain(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Gives the answer of an open stream a form; returns what may come first, or why the form is refused."""
        ids, forms, grammars = request["ids"], request["forms"], self._table()
        framed = any(form["prefix"] for form in forms)
        may_call = bool(request["tools"]) and not framed
        if self._harmony and request["skip_special"]:
            around = grammars.around_messages(ids, framed=framed, tools=may_call)
        else:
            source = (self._template_source or "") if request["chat"] else ""
            opens = self._syntax.opens if self._syntax is not None and may_call else ()
            around = grammars.around_thoughts(ids, tags_of(source), opens)
        return grammars.constrain(request["stream"], around, forms)

    def accept(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what may come behind `token`."""
        return self._table().accept(request["stream"], request["token"])

    def _table(self) -> Grammars:
        from moeinf.text.grammar import Grammars

        self._grammars = self._grammars or Grammars(self._tokenizer, self._ends)
        return self._grammars

    def open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Opens a stream for what follows `ids`.

        chat: the template wrote them, so that thoughts are told apart. tools: those that may be called, so that calls
        are, too; [] for none.
        """
        source = (self._template_source or "") if request["chat"] else ""
        self._streams[request["stream"]] = open_stream(
            self._tokenizer,
            request["ids"],
            skip_special=request["skip_special"],
            tags=tags_of(source),
            answer_tags=answer_tags_of(source),
            syntax=self._syntax,
            tools=request["tools"],
        )
        return {}

    def step(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"pieces": _plain(self._streams[request["stream"]].step(request["ids"]))}

    def close(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._grammars is not None:
            self._grammars.forget(request["stream"])
        return {"pieces": _plain(self._streams.pop(request["stream"]).flush())}


class _MemoryLimit:
    """Lets the address space grow by at most `num_bytes` inside the block; beyond it Python raises MemoryError."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def __enter__(self) -> None:
        try:
            used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:  # no procfs: the limit of the process has to do
            used_bytes = _LOAD_MEMORY_BYTES - self._num_bytes
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        limit_bytes = min(used_bytes + self._num_bytes, self._before[1]) if self._before[1] >= 0 else -1
        limit_memory(limit_bytes, self._before[1])

    def __exit__(self, *_: object) -> None:
        limit_memory(*self._before)


def limit_memory(soft_bytes: int, hard_bytes: int) -> None:
    """Limits the address space. macOS refuses that: there, only the parent's deadline ends what takes too much."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (soft_bytes, hard_bytes))
    except (ValueError, OSError):
        if sys.platform != "darwin":
            raise


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a small JSON file, {} where the file is missing. Raises TextError for anything else."""
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TextError(f"{path.name} is larger than 128 MiB")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise TextError(f"{path.name} is not sound JSON ({error})") from error
    if not isinstance(value, dict):
        raise TextError(f"{path.name} is not a JSON object")
    return value


def _special_tokens(config: Mapping[str, Any], token_map: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name) or token_map.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _control_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> list[str]:
    """Returns the special tokens. Where tokenizer_config.json says which they are, it decides, as in transformers."""
    listed = config.get("added_tokens_decoder")
    entries = [entry for entry in listed.values() if isinstance(entry, dict)] if isinstance(listed, dict) else []
    said = {entry.get("content"): entry.get("special") for entry in entries}
    tokens = tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in tokens if said.get(token.content, token.special) and token.content.strip()]


def _plain(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    """Pieces as JSON can hold them."""
    return [(text, thought, call and astuple(call)) for text, thought, call in pieces]


def _joined(pieces: Any) -> list[tuple[str, bool]]:
    """Joins neighbouring pieces of one kind, so that text without marked tokens is encoded at once."""
    joined: list[tuple[str, bool]] = []
    for text, plain in pieces:
        if joined and joined[-1][1] == plain:
            joined[-1] = (joined[-1][0] + text, plain)
        else:
            joined.append((text, plain))
    return joined


def _answer(worker: TextWorker, request: Mapping[str, Any]) -> dict[str, Any]:
    operations = {
        "load": worker.load,
        "render": worker.render,
        "encode": worker.encode,
        "decode": worker.decode,
        "token_id": worker.token_id,
        "token_bytes": worker.token_bytes,
        "open": worker.open,
        "constrain": worker.constrain,
        "accept": worker.accept,
        "step": worker.step,
        "close": worker.close,
    }
    try:
        return operations[request["op"]](request)
    except TextError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "out of the memory it may use", "fatal": True}
    except BaseException as error:  # the top of this process; a panic of tokenizers is no Exception
        return {"error": f"{type(error).__name__}: {error}", "fatal": not isinstance(error, Exception)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills even where a template holds the GIL
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit_bytes = _LOAD_MEMORY_BYTES if hard < 0 else min(hard, _LOAD_MEMORY_BYTES)
    limit_memory(limit_bytes, limit_bytes)
    worker = TextWorker(Path(sys.argv[-1]))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # The parent's deadline comes first; this one is for a parent that died meanwhile.
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"] + 5)
        answer = _answer(worker, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(json.dumps({**answer, "id": request["id"]}).encode() + b"\n")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
