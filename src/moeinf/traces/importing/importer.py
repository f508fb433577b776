"""Takes over traces of other recorders: which form a source has, and how it becomes a folder of moeinf's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded
from moeinf.errors import UsageError
from moeinf.store.files import errors_named, publish
from moeinf.traces.folder import FACTS_FILE, WHOLE_FILE, TraceFacts, prepare_folder
from moeinf.traces.importing import big_moe, fingerprinting, moe_beyond
from moeinf.traces.importing.request import Foreign, ForeignError, trace_of
from moeinf.traces.trace import Trace, dumps, read_trace

NPZ: Final = "npz"
READERS: Final[dict[str, tuple[str, Callable[[Sequence[Path]], Foreign]]]] = {  # what files end in, and their reader
    moe_beyond.NAME: (".csv", moe_beyond.read),
    fingerprinting.NAME: (".json", fingerprinting.read),
    big_moe.NAME: (".csv", big_moe.read),
}
FORMATS: Final = (NPZ, *READERS)
_RECOGNISED: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = tuple(
    (form.NAME, form.recognises) for form in (moe_beyond, big_moe, fingerprinting)
)


def import_trace(source: Path, folder: Path, form: str = "auto", model: str = "") -> Trace:
    """Reads a file or a folder of one of FORMATS, and writes it to a new or empty folder.

    model: its name, where the source's own is not to be taken. Raises UsageError.
    """
    if form not in ("auto", *FORMATS):
        raise UsageError(f"unknown --format {form!r}; known: auto, {', '.join(FORMATS)}")
    with errors_named(source, UsageError):
        source.stat()
        form = _form_of(source) if form == "auto" else form
        trace = _read_npz(source) if form == NPZ else _read(source, form)
    if prepare_folder(folder) is not None:
        raise UsageError(f"{folder} holds a trace already; import into a new folder")
    with errors_named(folder, UsageError):
        publish(folder / WHOLE_FILE, dumps(trace))
        publish(folder / FACTS_FILE, TraceFacts(model or trace.model or trace.name, trace.shape).dumps())
    return trace


def _read_npz(source: Path) -> Trace:
    path = source / WHOLE_FILE if source.is_dir() else source
    trace = read_trace(path)
    name = path.parent.resolve().name if path.name == WHOLE_FILE else path.stem
    return Trace(**{each: getattr(trace, each) for each in Trace.__slots__} | {"name": name})


def _read(source: Path, form: str) -> Trace:
    ending, read = READERS[form]
    files = [source] if source.is_file() else _files(source, ending)
    if not files:
        raise UsageError(f"{source} holds no files that end in {ending}, as those of {form} do")
    try:
        return trace_of(read(files))
    except ForeignError as error:
        raise UsageError(f"{source} is no trace of {form}: {error}") from error


def _form_of(source: Path) -> str:
    """Looks at the first file. Raises UsageError for a source that is of no known form."""
    if (source.is_dir() and (source / WHOLE_FILE).exists()) or source.suffix == ".npz":
        return NPZ
    files = [source] if source.is_file() else [*_files(source, ".csv"), *_files(source, ".json")]
    if files:
        text = decoded(files[0].read_bytes())
        for name, recognises in _RECOGNISED:
            if recognises(text):
                return name
    raise UsageError(f"{source} is a trace of no known form; those are {', '.join(FORMATS)}")


def _files(folder: Path, ending: str) -> list[Path]:
    """Those below a folder, in the order of the numbers in their names; of JSON only *_examples.json, if any are so."""
    found = sorted(folder.rglob(f"*{ending}"), key=_natural)
    return [path for path in found if path.stem.endswith("_examples")] or found


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
