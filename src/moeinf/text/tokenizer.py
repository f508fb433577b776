"""The tokenizer of a stored model: text to token ids and back, done by a worker process (process.py)."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

from moeinf.errors import CheckpointError, MoeinfError, TextError, UsageError
from moeinf.store.processes.leftovers import scratch_folder
from moeinf.text.forms.thought_marks import ThoughtMarks
from moeinf.text.process import TextProcess
from moeinf.text.templates.effort_levels import EffortLevels
from moeinf.text.templates.traced import MARK
from moeinf.text.text_stream import CallPart, Piece
from moeinf.text.thinking_text import TemplateFacts
from moeinf.text.token_shape import TokenShape
from moeinf.types import Json, JsonMapping, JsonObject

TOKENIZER_FILE = "tokenizer.json"
_RENDER_LIMIT_S = 2.0
_STEP_LIMIT_S = 10.0
_GRAMMAR_LIMIT_S = 3.0  # some schemas of a few bytes take minutes, and common ones milliseconds
_GRAMMAR_CPU_S = 1.0
_CALLS_LIMIT_S = 10.0  # for the schemas of all tools of an agent
_LONG_TEXT = 1 << 16  # letters, which are encoded in a moment
_MOST_LEVELS = 200  # of values in values
_KINDS_LIMIT_S = 120.0  # all tokens, once
_TABLE_LIMIT_S = 60.0  # the bytes of all tokens, once: a second or two on a fast machine
_REMEMBERED = ("open", "constrain", "accept", "step")  # what is asked of a stream that changes its later answers
_CONTEXT_TOKENS = 32  # end of the prompt: tells whether a space comes before the first word, what is open or begun


class Tokenizer:
    """The tokenizer and chat template in a model's folder. Every method may raise TextError."""

    def __init__(self, folder: Path, *, where: str = "", num_embeddings: int | None = None) -> None:
        """Starts loading and returns. where: what errors call the model, "" for its folder.

        num_embeddings: rows of the embedding; prompt ids beyond it are refused.
        """
        if not (folder / TOKENIZER_FILE).is_file():
            raise TextError(
                f"{folder} has no tokenizer.json; pull a model that has one "
                "(transformers can convert tokenizer.model: AutoTokenizer(...).save_pretrained)"
            )
        self._folder = folder
        self._num_embeddings = num_embeddings
        self._stream_ids = itertools.count()
        self._process = TextProcess(folder, where)

    @property
    def num_ids(self) -> int:
        """One more than the largest token id with a meaning. The model may have more rows, which are padding."""
        return int(self._process.info()["num_ids"])

    @property
    def bos_id(self) -> int | None:
        bos_id = self._process.info()["bos_id"]
        return bos_id if isinstance(bos_id, int) else None

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer: those of the model's configs, and known ends of turn."""
        return frozenset(self._process.info()["eos_ids"])

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self._process.info()["special_ids"])

    @property
    def template(self) -> TemplateFacts | None:
        """What the chat template can be told; None for a base model, which has none."""
        facts = self._process.info()["template"]
        if facts is None:
            return None
        made = {"variables": frozenset(facts["variables"]), "levels": EffortLevels(**facts["levels"])}
        return TemplateFacts(**facts | made)

    @property
    def has_template(self) -> bool:
        """False for a base model."""
        return self._process.info()["template"] is not None

    @property
    def generation_config(self) -> JsonMapping:
        """The folder's generation_config.json, {} if there is none."""
        config: JsonMapping = self._process.info()["generation_config"]
        return config

    def render(
        self,
        messages: Sequence[JsonMapping],
        variables: JsonMapping | None = None,
        *,
        own: Mapping[str, Sequence[str]] | None = None,
        continues: bool = False,
    ) -> tuple[str, list[str]]:
        """Returns the chat as the template writes it, for `encode_chat`, and notes for the user on what it changed.

        messages, and variables["tools"]: in OpenAI's form. The text holds a mark (templates.traced.MARK) in each
        control token that came from them. own: further variables, in whose texts control tokens count. continues: the
        last message is the beginning of the answer, behind which the text ends.
        """
        given = {
            "messages": whole_characters(messages),
            "variables": whole_characters(variables or {}),
            "own": {name: list(texts) for name, texts in (own or {}).items()},
            "continues": continues,
        }
        answer = self._process.request("render", _RENDER_LIMIT_S, **given)
        return str(answer["text"]), list(answer["notes"])

    def encode_chat(self, rendered: str) -> list[int]:
        """Returns the token ids of rendered text: control tokens of the template count, those of messages are text."""
        return self._encode(rendered, "chat", specials=False)

    def encode(
        self, text: str, *, control_tokens: bool | Literal["gaps"] = False, bos: bool = True, added: bool = True
    ) -> list[int]:
        """Returns the token ids of text without a template.

        control_tokens: whether text like <|im_end|> means the control token (a raw prompt) or just those characters;
        "gaps": only that of the gaps of a T5, <extra_id_0> and so on, does.
        bos: with the token that begins a sequence; once, where a raw prompt begins with it itself.
        added: with all special tokens that the tokenizer adds.
        """
        kind = "gaps" if control_tokens == "gaps" else "raw" if control_tokens else "plain"
        ids = self._encode(text, kind, specials=added)
        if not added:
            return ids
        bos_id = self.bos_id
        if bos_id is None:
            return ids
        if not bos:
            return ids[1:] if ids[:1] == [bos_id] else ids
        if ids[:2] == [bos_id, bos_id]:
            return ids[1:]
        return [bos_id, *ids] if self._process.info()["add_bos"] and ids[:1] != [bos_id] else ids

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token of the vocabulary; None for any other text."""
        found = self._process.request("token_id", _STEP_LIMIT_S, token=whole_characters(token))["token_id"]
        return found if isinstance(found, int) else None

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        limit_s = _STEP_LIMIT_S + len(ids) / 10_000
        answer = self._process.request("decode", limit_s, ids=list(ids), skip_special=skip_special)
        return str(answer["text"])

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Returns what each token stands for, which may be a part of a character."""
        found = self._process.request("token_bytes", _TABLE_LIMIT_S, ids=list(ids))["bytes"]
        return [str(text).encode("latin-1") for text in found]

    def stream(
        self,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special: bool = True,
        chat: bool = False,
        tools: Sequence[JsonMapping] | None = None,
        json_calls: bool = False,
        begun: str = "",
        stops: Sequence[str] = (),
    ) -> TextStream:
        """Opens a detokeniser for what follows prompt_ids.

        chat: they are a rendered chat, so that the model may think before it answers. tools: those that it was given,
        so that it may call them; json_calls: also by an answer that is nothing but JSON objects. begun: the beginning
        of the answer, with which the prompt ends. stops: texts in which control tokens count (see TextStream.told).
        """
        context = list(prompt_ids)[-_CONTEXT_TOKENS:]
        kind = {"skip_special": skip_special, "chat": chat, "tools": whole_characters(tools or ())}
        kind |= {"json_calls": json_calls, "begun": whole_characters(begun), "stops": whole_characters(stops)}
        return TextStream(self._process, next(self._stream_ids), context, **kind)

    def least_tokens(self, text: str) -> int:
        """Returns a number of tokens that a text has at least, by its length; 0 for a short one.

        text: rendered, or as it is. Takes no time, where `encode` may take minutes.
        """
        if len(text) < _LONG_TEXT:
            return 0
        shape = self._process.request("token_shape", _STEP_LIMIT_S)["shape"]
        return 0 if shape is None else TokenShape(**shape).least_tokens(text.replace(MARK, ""))

    def until(self, should_stop: Callable[[], bool]) -> AbstractContextManager[None]:
        """While entered, what is asked of the tokenizer raises Stopped soon after should_stop() says so."""
        return self._process.until(should_stop)

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, text: str, kind: str, *, specials: bool = True) -> list[int]:
        text = whole_characters(text)
        ids: list[int] = self._process.request(
            "encode", 10 + len(text) / 20_000, text=text, kind=kind, specials=specials
        )["ids"]
        limit = self._num_embeddings
        if limit is not None and ids and max(ids) >= limit:
            token = self.decode([max(ids)], skip_special=False)
            raise TextError(
                f"the prompt has token {max(ids)} ({token[:50]!r}), and the model has an embedding for the first "
                f"{limit} alone, fewer than {TOKENIZER_FILE} has tokens; leave that text out of the prompt"
            )
        return ids


def check_text_files(files: Mapping[str, bytes], where: str) -> int:
    """Loads the tokenizer and the small configs beside it as a run does. Raises CheckpointError naming `where`.

    Returns one more than the largest token id that it knows.
    """
    if TOKENIZER_FILE not in files:
        raise CheckpointError(
            f"{where} has no {TOKENIZER_FILE}, without which it cannot run; add one to a copy of the checkpoint "
            "(transformers makes it: AutoTokenizer.from_pretrained(...).save_pretrained(...)) and pull that folder"
        )
    with _loaded(files, where) as process:
        return int(process.info()["num_ids"])


def token_kinds_of(files: Mapping[str, bytes], where: str) -> list[int]:
    """What moeinf.text.vocabulary.token_kinds gives of the tokenizer among the files. Raises CheckpointError."""
    with _loaded(files, where) as process:
        kinds: list[int] = process.request("token_kinds", _KINDS_LIMIT_S)["kinds"]
        return kinds


@contextmanager
def _loaded(files: Mapping[str, bytes], where: str) -> Iterator[TextProcess]:
    try:
        with scratch_folder() as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            with closing(TextProcess(folder, where, "mend or replace the file, then pull")) as process:
                yield process
    except TextError as error:
        raise CheckpointError(str(error)) from error


def beyond_the_embedding(num_ids: int, num_embeddings: int) -> list[str]:
    """A line for the user where a tokenizer has tokens that a model has no rows for: all others work."""
    if num_ids <= num_embeddings:
        return []
    return [
        f"{TOKENIZER_FILE} has tokens up to {num_ids - 1}, and the model has an embedding for the first "
        f"{num_embeddings} alone: prompts that come to the others are refused"
    ]


class TextStream:
    """Text, thoughts and calls of generated ids as they come, right across characters that are split over tokens.

    Where the worker has ended meanwhile, because of another request or because somebody killed it, a new one is told
    all that this stream has asked before. told: the character that stands in its texts for each control token of the
    stops that it was given; all others are left out.
    """

    def __init__(self, process: TextProcess, stream_id: int, context: list[int], **kind: Json) -> None:
        self._process = process
        self._id = stream_id
        self._context, self._kind = context, kind
        self._open, self._worker = True, 0
        self._asked: list[tuple[str, float, JsonMapping]] = []  # which the worker's answers depend on
        self.told: Mapping[str, str] = self._request("open", ids=context, **kind)["told"]

    def step(self, token_id: int) -> list[Piece]:
        """Takes a token; returns the text that is complete now, which is none in the middle of a character."""
        return _pieces(self._request("step", ids=[token_id]))

    def flush(self, *, cut: bool = False) -> list[Piece]:
        """Ends the stream, once. Bytes that never became a character come out as U+FFFD.

        cut: whether the answer was cut off, so that what looks like a call may be the beginning of something else.
        """
        was_open, self._open = self._open, False
        return _pieces(self._request("close", cut=cut)) if was_open else []

    def constrain(self, forms: Sequence[Mapping[str, str]]) -> tuple[bytes, bool]:
        """Gives the answer one of these forms: prefix, suffix, and what stands between them, such as a schema.
        Returns as `accept` does.

        Where the stream has tools, the answer may call them instead; where there are no forms, it has to.
        Raises UsageError for a form that cannot be followed.
        """
        answer = self._request(
            "constrain",
            _GRAMMAR_LIMIT_S,
            cpu_s=_GRAMMAR_CPU_S,
            ids=self._context,
            forms=list(map(whole_characters, forms)),
            **self._kind,
        )
        if "refused" in answer:
            remedy = f"change the {'schema' if 'schema' in forms[0] else 'grammar'}" if forms else "leave it out"
            raise UsageError(f"format: {answer['refused']}; {remedy}")
        return _mask(answer)

    def hold_calls(self) -> tuple[bytes, bool] | None:
        """Holds calls of the stream's tools to their schemas, and leaves the rest of the answer free.

        Returns as `accept` does; None where the template tells the model how to call tools, or where calls cannot be
        held.
        """
        if not (self._kind["tools"] and self._kind["chat"] and self._process.info()["told_of_tools"]):
            return None
        try:
            self._process.request("token_bytes", _TABLE_LIMIT_S, ids=[])
        except TextError:  # the letters of its tokens are not known
            return None
        answer = self._request("constrain", _CALLS_LIMIT_S, ids=self._context, forms=None, **self._kind)
        return _mask(answer) if answer else None

    def thought_marks(self) -> ThoughtMarks | None:
        """The tokens by which thoughts are known; None for a model that does not think.

        Raises UsageError where thoughts stand between letters, so that they cannot be ended.
        """
        told = self._request("thoughts", ids=self._context, **self._kind)
        if told["marks"] is not None:
            marks = told["marks"]
            return ThoughtMarks(tuple(marks["opens"]), marks["closes"], tuple(marks["ends"]), marks["opened"])
        if told["thinks"]:
            raise UsageError("thoughts of this model stand between letters and cannot be bounded; leave the budget out")
        return None

    def accept(self, token_id: int) -> tuple[bytes, bool]:
        """Takes a token of such an answer; returns a bit for each token that may follow, and whether none may."""
        return _mask(self._request("accept", cpu_s=_GRAMMAR_CPU_S, token=token_id))

    def _request(self, op: str, limit_s: float = _STEP_LIMIT_S, **fields: Json) -> JsonObject:
        try:
            self._process.info()  # of a new worker, where the last one has ended
            if self._process.workers != self._worker:
                self._worker = self._process.workers
                for before in self._asked:
                    self._ask(*before)
            answer = self._ask(op, limit_s, fields)
        except MoeinfError:
            self._open = False  # the worker has gone, or has lost its way: there is nothing to close
            raise
        if op in _REMEMBERED:
            self._asked.append((op, limit_s, fields))
        return answer

    def _ask(self, op: str, limit_s: float, fields: JsonMapping) -> JsonObject:
        if op == "constrain":
            self._process.request("token_bytes", _TABLE_LIMIT_S, ids=[])  # so that the table is there
        return self._process.request(op, limit_s, stream=self._id, **fields)


def _pieces(answer: JsonMapping) -> list[Piece]:
    return [
        Piece(str(text), bool(thought), None if call is None else CallPart(*call))
        for text, thought, call in answer["pieces"]
    ]


def _mask(answer: JsonMapping) -> tuple[bytes, bool]:
    return base64.b64decode(answer["mask"]), bool(answer["complete"])


def whole_characters(value: Json, depth: int = 0) -> Json:
    """A value with U+FFFD for each half of a surrogate pair, which tokenizers refuse, in texts and keys at any depth.

    Those are undecodable bytes of a command line, or what is left of answers that were cut. Raises TextError for a
    value that is nested so deeply that no template and no grammar could walk it.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if depth > _MOST_LEVELS:
        raise TextError(f"messages, variables, tools and schemas may be nested {_MOST_LEVELS} levels deep, not deeper")
    if isinstance(value, Mapping):
        return {whole_characters(str(key)): whole_characters(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole_characters(item, depth + 1) for item in value]
    return value
