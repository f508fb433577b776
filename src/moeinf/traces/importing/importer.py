"""Takes over traces of other recorders: which form a source has, and how it becomes a folder of moeinf's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded
from moeinf.errors import UsageError
from moeinf.store.files import errors_named, publish
from moeinf.traces.folder import FACTS_FILE, WHOLE_FILE, TraceFacts, prepare_folder
from moeinf.traces.importing import big_moe, fingerprinting, moe_beyond, records
from moeinf.traces.importing.request import Foreign, ForeignError, trace_of
from moeinf.traces.trace import Trace, dumps, read_trace

NPZ: Final = "npz"
READERS: Final[dict[str, tuple[str, Callable[[Sequence[Path]], Foreign]]]] = {  # what files end in, and their reader
    NPZ: (".npz", records.read_npz),  # of others; see _read_npz
    moe_beyond.NAME: (".csv", moe_beyond.read),
    fingerprinting.NAME: (".json", fingerprinting.read),
    big_moe.NAME: (".csv", big_moe.read),
    records.JSON_LINES: (".jsonl", records.read_json),
    records.PARQUET: (".parquet", records.read_parquet),
}
FORMATS: Final = tuple(READERS)
_RECOGNISED: Final[tuple[tuple[str, Callable[[str], bool]], ...]] = (
    *((form.NAME, form.recognises) for form in (moe_beyond, big_moe, fingerprinting)),
    (records.JSON_LINES, records.recognises),
)


def import_trace(source: Path, folder: Path, form: str = "auto", model: str = "", num_experts: int = 0) -> Trace:
    """Reads a file or a folder of one of FORMATS, and writes it to a new or empty folder.

    model: its name, where the source's own is not to be taken. num_experts: of a layer, where the source does not say
    it. Raises UsageError.
    """
    if form not in ("auto", *FORMATS):
        raise UsageError(f"unknown --format {form!r}; known: auto, {', '.join(FORMATS)}")
    with errors_named(source, UsageError):
        source.stat()
        form = _form_of(source) if form == "auto" else form
        trace = _read_npz(source, num_experts) if form == NPZ else _read(source, form, num_experts)
    if num_experts and num_experts != trace.shape.num_experts:
        raise UsageError(f"--num-experts {num_experts}: {source} says {trace.shape.num_experts}; leave it out")
    if prepare_folder(folder) is not None:
        raise UsageError(f"{folder} holds a trace already; import into a new folder")
    with errors_named(folder, UsageError):
        publish(folder / WHOLE_FILE, dumps(trace))
        publish(folder / FACTS_FILE, TraceFacts(model or trace.model or trace.name, trace.shape).dumps())
    return trace


def _read_npz(source: Path, num_experts: int) -> Trace:
    """Of this project's own arrays, or of one array of a request in each file."""
    path = source / WHOLE_FILE if (source / WHOLE_FILE).exists() else source
    if path.is_dir() or records.is_array_of_a_request(path):
        return _read(source, NPZ, num_experts)
    trace = read_trace(path)
    name = path.parent.resolve().name if path.name == WHOLE_FILE else path.stem
    return Trace(**{each: getattr(trace, each) for each in Trace.__slots__} | {"name": name})


def _read(source: Path, form: str, num_experts: int) -> Trace:
    ending, read = READERS[form]
    files = [source] if source.is_file() else _files(source, ending)
    if not files:
        raise UsageError(f"{source} holds no files that end in {ending}, as those of {form} do")
    try:
        foreign = read(files)
        return trace_of(foreign if foreign.num_experts else replace(foreign, num_experts=num_experts))
    except ForeignError as error:
        raise UsageError(f"{source} is no trace of {form}: {error}") from error


def _form_of(source: Path) -> str:
    """Looks at the first file. Raises UsageError for a source that is of no known form."""
    endings = (".csv", ".json", ".jsonl", ".parquet", ".npz")
    files = [source] if source.is_file() else [path for each in endings for path in _files(source, each)]
    if (source.is_dir() and (source / WHOLE_FILE).exists()) or (files and files[0].suffix == ".npz"):
        return NPZ
    if files and files[0].suffix == ".parquet":
        return records.PARQUET
    if files:
        text = decoded(files[0].read_bytes())
        for name, recognises in _RECOGNISED:
            if recognises(text):
                return name
    raise UsageError(
        f"{source} is a trace of no known form; those are {', '.join(FORMATS)} (a line of jsonl has layer and "
        "topk_ids, or routed_experts)"
    )


def _files(folder: Path, ending: str) -> list[Path]:
    """Those below a folder, in the order of the numbers in their names; of JSON only *_examples.json, if any are so."""
    found = sorted(folder.rglob(f"*{ending}"), key=_natural)
    return [path for path in found if path.stem.endswith("_examples")] or found


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
