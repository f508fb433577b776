"""Records by name, whoever wrote them: lines of JSON, rows of Parquet, or an npz file each. A record is one of three.

- A token in a layer, as loggers inside vLLM write it: {"layer": 3, "token_idx": 7, "topk_ids": [5, 60],
  "topk_weights": [.7, .3]}. Of several tokens both are lists of lists.
- A request, as servers that return routed experts answer it (vLLM: `--enable-return-routed-experts`): routed_experts
  [tokens][layers][top_k], in lists, as the base64 of an npy file, or as {"data", "shape", "dtype"}; in the record
  itself, or in its choices or outputs.
- Facts of the model: {"model_id": .., "num_experts": 64}. Those may stand in other records, too.

NAMES lists how each is called. Tokens of a request without a number are in the order of the file. Where a number comes
again in a request with a name, tokens are numbered in each pass, and the next pass begins; where requests have no name,
the next request.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from moeinf.config.user_text import decoded
from moeinf.errors import MALFORMED, in_a_line
from moeinf.runtime.policy.eamc import DAMAGE
from moeinf.traces.importing.request import Foreign, ForeignError, ForeignRequest

JSON_LINES: Final = "jsonl"
PARQUET: Final = "parquet"
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "layer": ("layer", "layer_id", "layer_idx", "layer_index"),
    "token": ("token_idx", "token", "token_index", "token_pos", "position", "pos"),
    "request": ("request_id", "req_id", "request", "seq_id", "prompt_id", "batch_id"),
    "ids": ("topk_ids", "topk_experts", "expert_ids", "experts", "selected_experts", "topk_indices"),
    "weights": ("topk_weights", "weights", "expert_weights", "gate_weights", "selected_probs"),
    "guesses": ("guesses", "guess_ids"),
    "guess_weights": ("guess_weights",),
    "phase": ("phase",),
    "routed": ("routed_experts",),
    "model": ("model", "model_id", "model_name"),
    "num_experts": ("num_experts", "n_experts", "n_routed_experts", "num_local_experts"),
}
_KEPT: Final = ("weights", "guesses", "guess_weights")  # of a token in a layer, beside its ids

Record = Mapping[str, Any]


def recognises(text: str) -> bool:
    """text: of a whole file, of which the first record is looked at."""
    try:
        first = next(_json_records(text), None)
    except ForeignError:
        return False
    return first is not None and (_is_routing(first) or (_get(first, "model") is not None and "type" in first))


def read_json(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    return _read((path, _json_records(decoded(path.read_bytes()))) for path in files)


def read_parquet(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    return _read((path, _parquet_records(path)) for path in files)


def is_array_of_a_request(path: Path) -> bool:
    """Whether an npz file has what a request was routed to under a name that is not ours, or without our offsets."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return "offsets" not in archive.files and not {*archive.files}.isdisjoint((*NAMES["ids"], *NAMES["routed"]))
    except DAMAGE:
        return False


def read_npz(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    return _read((path, _npz_records(path)) for path in files)


def _npz_records(path: Path) -> Iterator[Record]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except DAMAGE as error:
        raise ForeignError(f"it is no npz file, or cut off ({in_a_line(error)})") from error
    yield {name: array.item() if array.ndim == 0 else array for name, array in arrays.items()}


def _json_records(text: str) -> Iterator[Record]:
    """Of a line each, or of one value that goes over several lines: a record, or a list of them."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > 1:
                raise ForeignError(f"line {number} is cut off, or no JSON") from error
            try:
                found, lines[:] = json.loads(text), []
            except (ValueError, RecursionError) as whole:
                raise ForeignError("it is cut off, or no JSON") from whole
        for record in found if isinstance(found, list) else [found]:
            if not isinstance(record, Mapping):
                raise ForeignError(f"line {number} holds no object")
            yield record


def _parquet_records(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ForeignError("reading Parquet needs pyarrow: pip install 'moeinf[parquet]'") from error
    try:
        with ParquetFile(path) as file:
            facts = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
            yield {name: facts[name] for group in ("model", "num_experts") for name in NAMES[group] if name in facts}
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (ArrowException, UnicodeDecodeError) as error:
        raise ForeignError(f"{path.name} is no Parquet file, or cut off") from error


def _read(files: Iterable[tuple[Path, Iterator[Record]]]) -> Foreign:
    facts: dict[str, str] = {}
    requests: list[ForeignRequest] = []
    for path, records in files:
        tokens = _Tokens()
        try:
            for record in records:
                _note_facts(facts, record)
                if _get(record, "ids") is not None and _get(record, "layer") is not None:
                    tokens.add(record)
                else:
                    requests += _answers(record)
            requests += tokens.requests()
        except ForeignError as error:
            raise ForeignError(f"{path.name}: {error}") from error
        except MALFORMED as error:
            raise ForeignError(f"{path.name} has a record that is no routing ({in_a_line(error)})") from error
    num_experts = facts.get("num_experts", "0")
    if not re.fullmatch(r"\d{1,9}", num_experts):
        raise ForeignError(f"its number of experts is {num_experts!r:.60}")
    return Foreign(facts.get("model", ""), int(num_experts), requests)


def _note_facts(facts: dict[str, str], record: Record) -> None:
    for name in ("model", "num_experts"):
        found = _get(record, name)
        if isinstance(found, str | int) and facts.setdefault(name, str(found)) != str(found):
            raise ForeignError(f"it is of several models ({facts[name]}, {found}); import them one by one")


def _number(token: Any) -> Any:
    """None for a token that is told by its text."""
    return None if isinstance(token, str) else token


def _get(record: Record, what: str) -> Any:
    """The value under the first of NAMES that is there; None for none."""
    return next((record[name] for name in NAMES[what] if record.get(name) is not None), None)


def _is_routing(record: Record) -> bool:
    of_token = _get(record, "layer") is not None and _get(record, "ids") is not None
    return of_token or any(_get(part, "routed") is not None for part in _parts(record))


class _Tokens:
    """Collects tokens in layers, which may come in any order, and puts requests together."""

    def __init__(self) -> None:
        # request -> (pass, number of the token) -> layer -> what it has
        self._requests: dict[object, dict[tuple[int, Any], dict[int, Record]]] = {}
        self._passes: dict[object, int] = {}  # of the requests that have several, the number of the running one
        self._prompts: dict[object, set[object]] = {}  # the tokens of each request that its phase calls prompt
        self._phases = False  # whether any record had one
        self._unnamed = 0  # requests without a name that have begun
        self._layers: set[int] = set()

    def add(self, record: Record) -> None:
        layer, name, token = int(_get(record, "layer")), _get(record, "request"), _number(_get(record, "token"))
        of_token = {what: found for what in ("ids", *_KEPT) if (found := _get(record, what)) is not None}
        many = isinstance(of_token["ids"][0], Sequence)
        rows: Sequence[Record] = [of_token]
        numbers: Sequence[object] = [token]
        if many:
            rows = [{what: value[at] for what, value in of_token.items()} for at in range(len(of_token["ids"]))]
            numbers = [_number(each) for each in token] if isinstance(token, Sequence) else [None] * len(rows)
        for number, row in zip(numbers, rows, strict=True):
            self._add(name, layer, number, row, _get(record, "phase"))

    def _add(self, name: object, layer: int, token: object, row: Record, phase: object) -> None:
        request = self._of(name)
        if token is None:
            token = sum(layer in layers for layers in request.values())
        if layer in request.get((self._passes.get(name, 0), token), ()):
            if name is None:
                self._unnamed += 1
                request = self._of(name)
            else:
                self._passes[name] = self._passes.get(name, 0) + 1
        at = self._passes.get(name, 0), token
        request.setdefault(at, {})[layer] = row
        self._layers.add(layer)
        if phase is not None:
            self._phases = True
            if str(phase).lower() in ("prefill", "prompt", "0"):
                self._prompts.setdefault(name if name is not None else self._unnamed, set()).add(at)

    def _of(self, name: object) -> dict[tuple[int, Any], dict[int, Record]]:
        return self._requests.setdefault(name if name is not None else self._unnamed, {})

    def requests(self) -> Iterator[ForeignRequest]:
        layers = sorted(self._layers)
        for name, tokens in self._requests.items():
            numbers = sorted(tokens)
            rows = [tokens[number] for number in numbers]
            passes = [len(list(group)) for _, group in groupby(numbers, key=lambda at: at[0])]
            if any(set(row) != self._layers for row in rows):
                raise ForeignError("tokens lack layers that others have")
            kept = {
                what: [[row[layer][what] for layer in layers] for row in rows]
                if all(what in row[layer] for row in rows for layer in layers)
                else None
                for what in ("ids", *_KEPT)
            }
            prompt = len(self._prompts.get(name, ())) if self._phases else None
            yield ForeignRequest(
                kept["ids"] or [],
                prompt,
                passes if self._passes else None,
                kept["weights"],
                kept["guesses"],
                kept["guess_weights"],
            )


def _parts(record: Record) -> Iterator[Record]:
    """The record, and those inside it that may hold what a request was routed to."""
    yield record
    for name in ("choices", "outputs"):
        inside = record.get(name)
        yield from (part for part in inside if isinstance(part, Mapping)) if isinstance(inside, list) else ()
    meta = record.get("meta_info")
    if isinstance(meta, Mapping):
        yield meta


def _answers(record: Record) -> Iterator[ForeignRequest]:
    prompt = _prompt_tokens(record)
    for part in _parts(record):
        routed = _get(part, "routed")
        if routed is None and isinstance(_get(part, "ids"), np.ndarray):
            routed = _get(part, "ids")
        if routed is not None:
            experts = _array(routed)
            if experts.ndim != 3 or not len(experts):
                raise ForeignError(
                    f"routed_experts has the shape {list(experts.shape)} in place of [tokens, layers, top_k]; "
                    "store it with its shape"
                )
            known = None if prompt is None else min(prompt, len(experts))
            passes = None if known is None else [*([known] if known else []), *[1] * (len(experts) - known)]
            weights, guesses, guess_weights = (_get(part, what) for what in _KEPT)
            yield ForeignRequest(experts, known, passes, weights, guesses, guess_weights)


def _prompt_tokens(record: Record) -> int | None:
    ids = record.get("prompt_token_ids")
    if isinstance(ids, Sequence):
        return len(ids)
    for inside in (record.get("usage"), record.get("meta_info"), record):
        found = inside.get("prompt_tokens") if isinstance(inside, Mapping) else None
        if isinstance(found, int):
            return found
    return None


def _array(routed: Any) -> Any:
    if isinstance(routed, Mapping):
        data = base64.b64decode(routed["data"], validate=True)
        return np.frombuffer(data, np.dtype(routed["dtype"])).reshape(routed["shape"]).astype(np.int64)
    if isinstance(routed, str):
        data = base64.b64decode(routed, validate=True)
        if not data.startswith(b"\x93NUMPY"):
            return np.frombuffer(data, np.uint8)  # without a shape
        try:
            return np.load(io.BytesIO(data), allow_pickle=False).astype(np.int64)
        except DAMAGE as error:
            raise ForeignError(f"routed_experts is no npy file, or cut off ({in_a_line(error)})") from error
    return np.array(routed, np.int64)
