"""`pull` where a size is asked for, or a calibration: stores the checkpoint as it is, and a fitted copy of it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moeinf.bench.divergence.calibrating import calibrated, least_tokens, states_of
from moeinf.bench.divergence.correcting import Correction
from moeinf.bench.divergence.fitting import fitted, weighed
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.config.environment import store_home
from moeinf.config.fit_options import BUILT_IN, FitOptions, fit_tag, gathers, sized, wanted_bytes
from moeinf.config.pull_options import PullOptions
from moeinf.config.user_text import text_of
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.gguf.imatrix import Imatrix, imatrix_pieces, read_imatrix
from moeinf.models.family import check_writer
from moeinf.pull.checkpoint.convert import num_threads
from moeinf.pull.importance import LEAST_TOKENS, Importance
from moeinf.pull.pull import pull, read_headers
from moeinf.pull.refit import ALIKE, Weighing, check_whole
from moeinf.pull.steps import Headers
from moeinf.store.files import errors_named, publish
from moeinf.store.library import StoredModel
from moeinf.store.naming.names import full_name, has_tag, parse_name
from moeinf.store.quantisation import chosen
from moeinf.terminal.progress import LoadBar, StatusLine
from moeinf.terminal.pull_progress import PullDisplay
from moeinf.terminal.screen import can_draw
from moeinf.terminal.user_notes import say

_CHARACTERS: Final = 6  # for each token


def fit_pull(source: str, options: PullOptions, fit: FitOptions, *, dry_run: bool, quiet: bool) -> None:
    """Raises as `pull` and `fitted`, and UsageError for options that say nothing here."""
    _check_options(options, fit, dry_run)
    texts, gathering = _texts_of(options, fit), gathers(options.quant, fit)
    imatrix = read_imatrix(Path(fit.imatrix)) if fit.imatrix is not None and texts.sample is None else None
    plain = replace(options, quant=None, name=options.name if gathering else None)
    with PullDisplay(sys.stderr, quiet=quiet) as display:
        headers = read_headers(source, plain, home=store_home())
        _check_source(headers, source)
        _check_length("--calibrate", fit.calibrate, texts.sample, least_tokens(headers.manifest.moe))
        _check_length("--text", fit.text, texts.measured, _compared(fit).window)
        whole = pull(source, plain, home=store_home(), progress=display)
    with _reporting(quiet) as reporting, PullDisplay(sys.stderr, quiet=quiet) as display:
        if texts.note:
            reporting.notify(texts.note)
        if gathering and texts.sample is not None:
            _write(fit, calibrated(whole, texts.sample, fit, RuntimeConfig(), reporting))
            done = f"{fit.imatrix} has what was gathered; {whole.name} is stored as it is"
        else:
            made = _made(whole, options, fit, texts, imatrix, reporting, display)
            done = f"stored as {made.name}; {whole.name} stays, and `moeinf rm {whole.name}` frees what it takes"
    if not quiet:
        say(done)
        print("success", file=sys.stderr)


def _made(
    whole: StoredModel,
    options: PullOptions,
    fit: FitOptions,
    texts: _Texts,
    imatrix: Imatrix | None,
    reporting: Reporting,
    display: PullDisplay,
) -> StoredModel:
    """The copy, whose weights are rounded by the importance matrix or by what the text gives."""
    name, states = _copy_name(whole, options, fit), None
    if texts.sample is not None:
        states = states_of(whole, texts.sample, fit)
        imatrix = calibrated(whole, texts.sample, fit, RuntimeConfig(), reporting, states)
        _write(fit, imatrix)
    weighing = ALIKE if imatrix is None else _weighing(whole, imatrix, fit, texts.sample)
    if states is not None:
        weighing = replace(weighing, correction=Correction(whole, states, num_threads()))
    asked = None if sized(options.quant, fit) else chosen(options.quant)
    if asked is not None:
        made = weighed(whole, asked, name, reporting, display, weighing)
    else:
        assert texts.measured is not None, "a size or a format is asked for"
        most_bytes, compared = wanted_bytes(options.quant, fit, whole.manifest.info.num_params), _compared(fit)
        made = fitted(whole, most_bytes, name, texts.measured, compared, RuntimeConfig(), reporting, display, weighing)
    if states is not None:
        states.forget()
    return made


def _compared(fit: FitOptions) -> CompareOptions:
    return CompareOptions(fit.text, fit.tokens, min(512, fit.tokens))


def _check_options(options: PullOptions, fit: FitOptions, dry_run: bool) -> None:
    for flag, given in (
        ("--quant-experts", options.quant_experts),
        ("--quant-dense", options.quant_dense),
        ("--dry-run", dry_run),
        ("--also", options.also),
        ("--repack", options.repack),
    ):
        if given:
            raise UsageError(f"{flag} does not go with a size, a number of bits or a calibration; leave it out")
    if sized(options.quant, fit):
        wanted_bytes(options.quant, fit, 0)  # refuses what is no size before anything is fetched
    else:
        chosen(options.quant)


def _copy_name(whole: StoredModel, options: PullOptions, fit: FitOptions) -> str:
    word, tag = parse_name(options.name or whole.name)
    own = options.name is not None and has_tag(options.name)
    name = full_name(f"{word}:{tag if own else fit_tag(options.quant, fit)}")
    if name == whole.name:
        raise UsageError(f"{name} is the model that is fitted; give its copy another --name")
    return name


@contextmanager
def _reporting(quiet: bool) -> Iterator[Reporting]:
    """Lines behind each other, and the last one of a terminal, which shows how far the work is."""
    line = StatusLine(sys.stderr, enabled=can_draw(sys.stderr) and not quiet)

    def told(text: str) -> None:
        if not quiet:
            line.clear()
            say(text)

    try:
        yield Reporting(told, progress=LoadBar(line, "loading"), step=line.show)
    finally:
        line.clear()


@dataclass(frozen=True, slots=True)
class _Texts:
    """What a model reads before it is stored otherwise."""

    sample: str | None  # calibrates
    measured: str | None  # on which parts are measured, where a size is asked for
    note: str = ""  # for the user


def _texts_of(options: PullOptions, fit: FitOptions) -> _Texts:
    text, sample = text_of("--text", fit.text), _calibration_text(fit)
    if not sized(options.quant, fit):
        return _Texts(sample, None)
    return _Texts(*divided(text, fit.tokens)) if sample == text else _Texts(sample, text)


def divided(text: str, tokens: int) -> tuple[str, str, str]:
    """What calibrates and what is measured on, of one text, and a line for the user.

    What is measured on what calibrated looks better than it is, so that the end of the text is for the one alone: what
    has so many tokens by any tokenizer that is met. A text that is short beside that serves for both.
    """
    length = _CHARACTERS * tokens
    if len(text) < 3 * length:
        return text, text, "note: the text that calibrates is too short to be divided: parts are measured on it, too"
    note = f"note: the last {length:,} characters of the text do not calibrate; parts are measured on them"
    return text[:-length], text[-length:], note


def _check_length(flag: str, file: str | None, text: str | None, tokens: int) -> None:
    """Raises UsageError for a text that cannot have so many tokens by any tokenizer: each has a byte or more."""
    if text is not None and len(text.encode()) < tokens:
        raise UsageError(
            f"{flag} {file} has {len(text.encode())} bytes, too few for {tokens} tokens; give a longer text"
        )


def _check_source(headers: Headers, source: str) -> None:
    """Raises UsageError, before anything is fetched, for what cannot be fitted."""
    check_writer(source, dict(headers.config), "fit")
    check_whole(source, headers.manifest)


def _calibration_text(fit: FitOptions) -> str | None:
    if fit.calibrate is None:
        return None
    return text_of("--calibrate", None if fit.calibrate == BUILT_IN else fit.calibrate)


def _write(fit: FitOptions, imatrix: Imatrix) -> None:
    if fit.imatrix is not None:
        path = Path(fit.imatrix)
        with errors_named(path, UsageError):
            publish(path, *imatrix_pieces(imatrix))


def _weighing(stored: StoredModel, imatrix: Imatrix, fit: FitOptions, text: str | None) -> Weighing:
    """Raises UsageError for an importance matrix of another model."""
    hashed = hashlib.sha256()
    for piece in imatrix_pieces(imatrix):
        hashed.update(piece)
    sha256 = hashed.hexdigest()
    tokens = max((int(each.counts.max()) for each in imatrix.sums.values()), default=0)
    if text is None:
        source = f"--imatrix {fit.imatrix}"
        of = f"{Path(fit.imatrix or '').name} (SHA-256 {sha256[:12]}), of {tokens:,} tokens"
        if imatrix.texts:
            of += f" of {', '.join(Path(each).name for each in imatrix.texts)}"
    else:
        source = f"--calibrate {fit.calibrate}"
        where = "the text that comes along" if fit.calibrate == BUILT_IN else Path(fit.calibrate or "").name
        of = f"{tokens:,} tokens of {where} (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"
    importance = Importance(stored, imatrix, source)
    few, experts = importance.rare
    rare = f"; {few} of {experts} experts had fewer than {LEAST_TOKENS}, and go by their layer's, too" if few else ""
    corrected = "" if text is None else "; later columns of experts make up for what earlier ones lose (GPTQ)"
    told = f"rounded by how much each column matters by {of}{rare}{corrected}"
    return Weighing(importance, sha256, ("".join(each if each.isprintable() else "?" for each in told),))
