"""`moeinf run --batch`: from the files that a user names to the model, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from moeinf.batch.answers_file import AnswersFile, answers_file
from moeinf.batch.batch_lines import BatchLine, LineFault, lines_of
from moeinf.batch.batch_progress import BatchProgress
from moeinf.batch.batch_run import BatchRow, answer_rows, own_fault
from moeinf.config import RuntimeConfig
from moeinf.config.batch_options import BatchOptions
from moeinf.config.environment import store_home
from moeinf.config.pull_options import PullOptions
from moeinf.config.user_text import decoded, open_file
from moeinf.engine.stored.preset import Preset
from moeinf.engine.vision.parts import without_pictures
from moeinf.errors import ModelNotFoundError, MoeinfError, UsageError
from moeinf.server.admission import admitted
from moeinf.server.ask import Ask, Thoughts
from moeinf.server.http_errors import Refusal, fault_of, log_fault
from moeinf.server.openai.errors import error_body
from moeinf.server.prompt.prompt_preset import with_preset
from moeinf.server.question import Question
from moeinf.store.library import Library, StoredModel
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.process.interrupt import Interrupt
from moeinf.terminal.remote.look import loaded_there, server_here
from moeinf.terminal.session_opening import check_template, ensure_stored, load
from moeinf.terminal.user_notes import Notices, say
from moeinf.types import JsonMapping, JsonObject

_STANDARD = "-"


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """What the command says of every request that says nothing of it itself."""

    sampling: JsonMapping
    chat: ChatOptions
    raw: bool = False

    def of(self, ask: Ask) -> Ask:
        chat = self.chat
        ask = replace(
            ask, params={**self.sampling, **ask.params}, variables={**(chat.variables or {}), **ask.variables}
        )
        if chat.think is not None and ask.thoughts == Thoughts():
            ask = replace(ask, thoughts=Thoughts(think=chat.think))
        if ask.format is None and ask.tools.forced is None:
            ask = replace(ask, format=chat.answer_format())
        return with_preset(ask, Preset(system=chat.system or ""))

    def told(self) -> list[object]:
        """All of it, in the form of JSON."""
        chat = self.chat
        return [dict(self.sampling), chat.system, chat.think, chat.format, dict(chat.variables or {}), self.raw]


def answer_batch(
    model: str, options: BatchOptions, defaults: BatchDefaults, config: RuntimeConfig, made: PullOptions
) -> int:
    """Answers what --batch names; returns the exit code. Raises UsageError, and what opening a model raises."""
    _refuse_unused(options, defaults.chat, config)
    text, quiet = _read(options.batch or _STANDARD), defaults.chat.quiet
    stored = ensure_stored(model, made, quiet=quiet)
    check_template(stored, defaults.chat)
    salt = json.dumps([stored.own_id, config.memory.kv_cache, defaults.told()], sort_keys=True, default=list)
    try:
        lines = lines_of(text, model, salt, raw=defaults.raw)
    except UsageError as error:
        raise UsageError(f"--batch {options.batch}: {error}") from None
    file: AnswersFile | None = None
    with ExitStack() as opened:
        if options.out not in (None, _STANDARD):
            file = opened.enter_context(answers_file(Path(options.out or ""), [line.id for line in lines]))
        left = [line for line in lines if file is None or line.id not in file.finished]
        before = len(lines) - len(left)
        if before and not quiet:
            say(f"{before} of {len(lines)} requests were answered before")
        batch = _Batch(stored, model, defaults, file, BatchProgress(sys.stderr, before, len(lines), quiet=quiet))
        config = replace(config, parallel=options.rows or 0, in_bulk=True)
        with Interrupt() as interrupt, _going_on(batch):
            _answer_lines(batch, left, config, lambda: interrupt.wanted)
            if interrupt.wanted:
                raise KeyboardInterrupt
        if file is not None:
            file.complete()
    if faults := batch.faults + (0 if file is None else file.faults):
        have = "has no answer; its line says why" if faults == 1 else "have no answer; their lines say why"
        raise MoeinfError(f"{faults} of {len(lines)} requests {have}")
    return 0


@contextmanager
def _going_on(batch: _Batch) -> Iterator[None]:
    """Says how to go on, where the batch ends early."""
    try:
        yield
    except BaseException:
        if batch.file is not None:
            done = batch.progress.done
            say(f"{done} of {batch.progress.total} requests are answered; the same command goes on with the others")
        raise


def _answer_lines(
    batch: _Batch, lines: Sequence[BatchLine], config: RuntimeConfig, stopping: Callable[[], bool]
) -> None:
    rows = [row for line in lines if (row := batch.row(line)) is not None]
    if not rows or stopping():
        return
    notices, quiet = Notices(), batch.defaults.chat.quiet
    if not quiet:
        _tell_of_server(batch.stored)
    sees = any(without_pictures(row.ask.chat)[1] for row in rows)
    model = load(batch.stored, replace(config, pictures=sees), notices, quiet=quiet)
    try:
        notices.show()
        approx = model.runner.approx
        batch.progress.begin("" if approx is None else str(approx.within))
        answer_rows(model, rows, batch.end, batch.progress.step, stopping)
        batch.progress.clear()
        if not quiet:
            say(batch.progress.summary(model.runner.reader.bytes_read()))
    finally:
        batch.progress.clear()
        model.close()
        notices.show()


def _tell_of_server(stored: StoredModel) -> None:
    """Says where a server of this machine has the model in memory, too."""
    client = server_here()
    with suppress(MoeinfError):  # it says nothing
        if client is not None and loaded_there(client, stored) is not None:
            say(
                f"note: the server at {client.url} keeps the memory that it has for {stored.name}; `moeinf stop "
                f"{stored.name}` gives it to this batch"
            )


def _refuse_unused(options: BatchOptions, chat: ChatOptions, config: RuntimeConfig) -> None:
    if chat.keepalive is not None:
        raise UsageError("--keepalive is for a prompt or a chat; leave it out of --batch")
    shown = (("--hidethinking", chat.hidethinking), ("--verbose", chat.verbose), ("--nowordwrap", chat.nowordwrap))
    for flag, given in shown:
        if given:
            raise UsageError(f"{flag} is for answers on a terminal, and --batch writes JSON; leave one of them out")
    if config.recording.trace and (options.rows or 1) > 1:
        raise UsageError("--trace records one answer at a time; leave out --rows, or set it to 1")
    if options.out not in (None, _STANDARD) and options.batch != _STANDARD:
        with_batch, with_out = Path(options.batch or ""), Path(options.out or "")
        if with_out.exists() and with_batch.exists() and with_out.samefile(with_batch):
            raise UsageError(f"--out {options.out} is the file of --batch; choose another one")


def _read(path: str) -> str:
    """The text of a batch. Raises UsageError."""
    if path == _STANDARD:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("--batch - reads standard input, which is a terminal; pipe the requests in")
        return decoded(sys.stdin.buffer.read())
    try:
        with open_file(path) as stream:
            return decoded(stream.read())
    except OSError as error:
        raise UsageError(f"--batch {path} cannot be read: {error.strerror}") from error


@dataclass(slots=True)
class _Batch:
    """Where answers go. file: None for standard output."""

    stored: StoredModel
    model: str  # as the command names it
    defaults: BatchDefaults
    file: AnswersFile | None
    progress: BatchProgress
    same: dict[str, bool] = field(default_factory=dict)  # by the name in a body: whether it is the model that runs
    faults: int = 0

    def row(self, line: BatchLine) -> BatchRow | None:
        """What is to be answered; None for a line of which the answer is what is wrong with it."""
        if isinstance(line.what, LineFault):
            told: JsonObject = {"code": line.what.code, "message": line.what.message}
            self._write(line.id, line.custom_id, None, told)
            return None
        try:
            if not isinstance(line.what, Question):
                raise line.what
            ask = self.defaults.of(line.what.ask)
            self._check_model(ask.model)
            return BatchRow(line.id, line.custom_id or "", admitted(ask, self.stored), line.what.writer)
        except MoeinfError as error:
            self._write_fault(line.id, line.custom_id, own_fault(error))
            return None

    def _check_model(self, name: str) -> None:
        """Raises Refusal for another model than the one that runs, and what finding a model raises."""
        if name not in self.same:
            try:
                self.same[name] = name == self.model or Library(store_home()).find(name).id == self.stored.id
            except (ModelNotFoundError, UsageError):
                self.same[name] = False
        if not self.same[name]:
            raise Refusal(400, f"model {name!r:.80} is not {self.model}, which answers this batch; leave model out")

    def end(self, row: BatchRow, error: Exception | None) -> None:
        """Writes the answer to a row, or what is wrong with it."""
        if error is not None:
            return self._write_fault(row.id, row.custom_id, error)
        self._write(row.id, row.custom_id, _response(row.id, 200, row.writer.whole(row.answer)), None)
        self.progress.answered(len(row.answer.made.token_ids))

    def _write_fault(self, id: str, custom_id: str | None, error: Exception) -> None:
        fault = fault_of(error)
        if fault.kind == "server":
            log_fault(error, f"{custom_id}: ")
        self._write(id, custom_id, _response(id, fault.status, error_body(fault)), None, fault=True)

    def _write(
        self,
        id: str,
        custom_id: str | None,
        response: JsonObject | None,
        error: JsonObject | None,
        *,
        fault: bool = False,
    ) -> None:
        line = msgspec.json.encode({"id": id, "custom_id": custom_id, "response": response, "error": error}) + b"\n"
        if self.file is not None:
            self.file.add(line)
        else:
            self.progress.clear()
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        if fault or error is not None:
            self.faults += 1
            self.progress.answered(0)


def _response(id: str, status: int, body: JsonObject) -> JsonObject:
    return {"status_code": status, "request_id": id.replace("batch_req", "req"), "body": body}
