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
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from moeinf.errors import TextError, is_of_content, remedy_of
from moeinf.text.encoding import Encoder
from moeinf.text.forms.held_calls import call_forms
from moeinf.text.forms.thought_marks import marks_of_harmony, marks_of_tags
from moeinf.text.harmony_channels import is_harmony
from moeinf.text.process_limits import LOAD_MEMORY_BYTES, STARVED_S, MemoryLimit, limit_memory
from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.templates.file import find_template
from moeinf.text.templates.rendering import split_marked
from moeinf.text.templates.traced import OWN, Traced
from moeinf.text.text_stream import Piece, stand_ins
from moeinf.text.thoughts import answer_tags_of, tags_of
from moeinf.text.token_shape import token_shape
from moeinf.text.tool_calls.call_stream import TextStream
from moeinf.text.tool_calls.open_stream import open_stream
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.generic_calls import GENERIC
from moeinf.text.vocabulary import add_listed, control_tokens, end_ids, special_tokens, token_kinds
from moeinf.types import Json, JsonMapping, JsonObject

if TYPE_CHECKING:  # loads llguidance, which only an answer of a given form needs
    from moeinf.text.grammar import Grammars

_MAX_FILE_BYTES = 128 << 20  # the largest tokenizer.json in use is about 34 MB
_RENDER_MEMORY_BYTES = 512 << 20  # above what the worker already has


class TextWorker:
    """The operations that the parent may request, one method each: takes the request, returns the answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[int, TextStream] = {}
        self._templates: ChatTemplates | None = None
        self._grammars: Grammars | None = None

    def load(self, request: JsonMapping) -> JsonObject:
        path = self._folder / "tokenizer.json"
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TextError(f"{path.name} is larger than 128 MiB, which no tokenizer is")
        self._tokenizer = Tokenizer.from_buffer(path.read_bytes())  # from_file takes no path that is not UTF-8
        self._tokenizer.no_truncation()  # some files come with the cut and the padding of their training
        self._tokenizer.no_padding()
        self._harmony = is_harmony(self._tokenizer)
        config = read_json(self._folder / "tokenizer_config.json")
        token_map = read_json(self._folder / "special_tokens_map.json")
        add_listed(self._tokenizer, config, token_map, read_json(self._folder / "added_tokens.json"))
        self._specials = special_tokens(config, token_map)
        self._control = control_tokens(self._tokenizer)
        unknown = self._specials.get("unk_token")  # which stands for letters
        self._encoder = Encoder(self._tokenizer, [token for token in self._control if token != unknown])
        source, with_tools = (find_template(self._folder, config, with_tools=tools) for tools in (False, True))
        if source is not None and with_tools is not None:
            self._templates = ChatTemplates(source, with_tools, self._specials, self._control)
        return self._info(config)

    def _info(self, config: JsonMapping) -> JsonObject:
        model = read_json(self._folder / "config.json")
        generation = read_json(self._folder / "generation_config.json")
        bos = self._tokenizer.token_to_id(self._specials.get("bos_token", ""))
        self._ends = end_ids(self._tokenizer, self._specials, model, generation)
        facts = self._templates.facts() if self._templates else None
        return {
            "num_ids": max(self._tokenizer.get_vocab().values(), default=-1) + 1,
            "bos_id": model.get("bos_token_id") if bos is None else bos,
            "add_bos": config.get("add_bos_token") is True,
            "eos_ids": self._ends,
            "special_ids": sorted(i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special),
            "told_of_tools": self._syntax is GENERIC,
            "template": None if facts is None else asdict(facts) | {"variables": sorted(facts.variables)},
            "generation_config": generation,
        }

    def render(self, request: JsonMapping) -> JsonObject:
        """Renders a chat; returns text with marked control tokens (see traced.MARK), and notes for the user."""
        if self._templates is None:
            raise TextError("this model has no chat template; use --raw")
        own = {name: [Traced(text, OWN) for text in texts] for name, texts in request["own"].items()}
        with MemoryLimit(_RENDER_MEMORY_BYTES):
            text, notes = self._templates.render(
                request["messages"], request["variables"] | own, continues=request["continues"]
            )
        return {"text": text, "notes": notes}

    def encode(self, request: JsonMapping) -> JsonObject:
        """Returns the token ids of `text`.

        kind: "raw" (control tokens count), "plain" (they are text), "gaps" (only T5's gaps count) or "chat" (rendered
        and marked).
        specials: whether the tokenizer adds its own, which a chat never has.
        """
        kind, text = request["kind"], request["text"]
        if kind == "chat":
            return {"ids": self._encoder.chat_ids(list(split_marked(text, self._control)))}
        gaps = [token for token in self._control if token.startswith("<extra_id_")] if kind == "gaps" else []
        pieces = [(piece, piece not in gaps) for piece, _ in split_marked(text, gaps)] if gaps else []
        return {"ids": self._encoder.ids(pieces or [(text, kind != "raw")], specials=request["specials"])}

    def token_shape(self, request: JsonMapping) -> JsonObject:
        shape = token_shape(self._tokenizer)
        return {"shape": shape and asdict(shape)}

    def token_id(self, request: JsonMapping) -> JsonObject:
        return {"token_id": self._tokenizer.token_to_id(request["token"])}

    def decode(self, request: JsonMapping) -> JsonObject:
        return {"text": self._tokenizer.decode(request["ids"], skip_special_tokens=request["skip_special"])}

    def token_bytes(self, request: JsonMapping) -> JsonObject:
        """Returns the bytes of each of `ids`, as characters of Latin-1. Builds the grammars' table of tokens."""
        table = self._table()
        return {"bytes": [table.token_bytes(token).decode("latin-1") for token in request["ids"]]}

    def constrain(self, request: JsonMapping) -> JsonObject:
        """Gives the answer of an open stream a form; returns what may come first, or why the form is refused.

        forms: None leaves it free, but for calls of its tools; {} is returned where they cannot be held.
        """
        ids, forms, grammars = request["ids"], request["forms"], self._table()
        if forms is None:
            around = grammars.around_thoughts(ids, tags_of(self._source(request)), ())
            forms = call_forms(request["tools"], GENERIC)
            return grammars.hold_calls(request["stream"], around, GENERIC.opens[0], forms) if forms else {}
        framed = any(form["prefix"] for form in forms)
        may_call = bool(request["tools"]) and not framed
        if self._harmony and request["skip_special"]:
            around = grammars.around_messages(ids, framed=framed, tools=may_call)
        else:
            opens = self._syntax.opens if self._syntax is not None and may_call else ()
            around = grammars.around_thoughts(ids, tags_of(self._source(request)), opens, framed=framed)
        return grammars.constrain(request["stream"], around, forms)

    def thoughts(self, request: JsonMapping) -> JsonObject:
        """Returns the marks of thoughts behind `ids`, or None where there are none, or none that are tokens."""
        marks, ids, source = None, request["ids"], self._source(request)
        if self._harmony and request["skip_special"]:
            marks = marks_of_harmony(self._tokenizer, ids)
        elif (tags := tags_of(source)) is not None:
            marks = marks_of_tags(self._tokenizer, ids, tags, request["begun"])
        return {"marks": marks and asdict(marks), "thinks": bool(tags_of(source))}

    def accept(self, request: JsonMapping) -> JsonObject:
        """Returns what may come behind `token`."""
        return self._table().accept(request["stream"], request["token"])

    def _table(self) -> Grammars:
        from moeinf.text.grammar import Grammars

        self._grammars = self._grammars or Grammars(self._tokenizer, self._ends)
        return self._grammars

    def open(self, request: JsonMapping) -> JsonObject:
        """Opens a stream for what follows `ids`; returns the characters that stand in it for control tokens.

        chat: the template wrote them, so that thoughts are told apart. tools: those that may be called, so that calls
        are, too; [] for none. begun: the beginning of the answer that the prompt ends with, "" for none. stops: texts
        whose control tokens are to be told of.
        """
        source = self._source(request)
        told = stand_ins(self._control, request["stops"]) if request["skip_special"] else {}
        self._streams[request["stream"]] = open_stream(
            self._tokenizer,
            request["ids"],
            skip_special=request["skip_special"],
            tags=tags_of(source),
            answer_tags=answer_tags_of(source),
            syntax=self._syntax,
            tools=request["tools"],
            json_calls=request["json_calls"],
            begun=request["begun"],
            told={int(self._tokenizer.token_to_id(name) or 0): character for name, character in told.items()},
        )
        return {"told": told}

    @property
    def _syntax(self) -> Syntax | None:
        return self._templates.syntax if self._templates else None

    def _source(self, request: JsonMapping) -> str:
        """The text of the template that wrote the prompt of a stream, "" where none did."""
        return self._templates.source(request["tools"]) if self._templates and request["chat"] else ""

    def step(self, request: JsonMapping) -> JsonObject:
        return {"pieces": _plain(self._streams[request["stream"]].step(request["ids"]))}

    def close(self, request: JsonMapping) -> JsonObject:
        if self._grammars is not None:
            self._grammars.forget(request["stream"])
        return {"pieces": _plain(self._streams.pop(request["stream"]).flush(cut=request["cut"]))}


def read_json(path: Path) -> JsonObject:
    """Reads the object in a small JSON file, {} where the file is missing. Else raises TextError, and OSError."""
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TextError(f"{path.name} is larger than 128 MiB")
        value = json.loads(path.read_bytes())
        text = json.dumps(value, ensure_ascii=False)
        if not text.isascii():  # half a pair of surrogates, which JSON can say and no tokenizer takes, becomes U+FFFD
            value = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path.name} is not sound JSON ({error})") from error
    if not isinstance(value, dict):
        raise TextError(f"{path.name} is not a JSON object")
    return value


def _plain(pieces: Sequence[Piece]) -> list[tuple[Json, ...]]:
    """Pieces as JSON can hold them."""
    return [(text, thought, call and astuple(call)) for text, thought, call in pieces]


def _answer(worker: TextWorker, request: JsonMapping) -> JsonObject:
    operations = {
        "load": worker.load,
        "render": worker.render,
        "encode": worker.encode,
        "decode": worker.decode,
        "token_id": worker.token_id,
        "token_shape": worker.token_shape,
        "token_kinds": lambda request: {"kinds": token_kinds(worker._tokenizer)},
        "token_bytes": worker.token_bytes,
        "open": worker.open,
        "constrain": worker.constrain,
        "accept": worker.accept,
        "thoughts": worker.thoughts,
        "step": worker.step,
        "close": worker.close,
    }
    try:
        return operations[request["op"]](request)
    except (TextError, OSError) as error:
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and not is_of_content(cause):
            return {"error": said, "remedy": remedy_of(cause, "")}
        return {"error": said}
    except MemoryError:
        return {"error": "out of the memory it may use", "fatal": True}
    except BaseException as error:  # the top of this process; a panic of tokenizers is no Exception
        return {"error": f"{type(error).__name__}: {error}", "fatal": not isinstance(error, Exception)}


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # are for the parent, whose end is this one's
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)  # kills even where a template holds the GIL
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit_bytes = LOAD_MEMORY_BYTES if hard < 0 else min(hard, LOAD_MEMORY_BYTES)
    limit_memory(limit_bytes, limit_bytes)
    _write(b'{"id": -1}\n')  # what ends this process from now on is the model's text
    worker = TextWorker(Path(sys.argv[-1]))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # The parent's deadline comes first; this one is for a parent that died meanwhile.
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"] + STARVED_S + 5)
        signal.setitimer(signal.ITIMER_PROF, request.get("cpu_s", 0))
        answer = _answer(worker, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(json.dumps({**answer, "id": request["id"]}).encode() + b"\n")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
