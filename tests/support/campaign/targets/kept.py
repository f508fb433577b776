"""Files that moeinf keeps and reads again: what it has learned and measured, names and what goes with them, traces."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import moeinf._native as _native
from moeinf.engine.approximate import approx_file
from moeinf.engine.speed import rates_file
from moeinf.engine.stored import compared_file, hit_record
from moeinf.engine.stored.modelfile import commands, quoted
from moeinf.engine.stored.preset import preset_of
from moeinf.prefixes.prefix_file import MAGIC, read_header, write_prefix
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.runtime.policy.tuned import Gain, TunedNetwork, weight_shapes
from moeinf.store.library import StoredModel
from moeinf.store.naming.aliases import ALIAS_FILE, own_aliases
from moeinf.store.naming.name_files import NameFiles
from moeinf.store.processes.partials import parse_source_record
from moeinf.store.spread.copy_list import COPIES_FILE, CopyList
from moeinf.terminal.arguments.modelfile_options import parse_modelfile
from moeinf.traces.folder import FACTS_FILE, read_facts
from moeinf.traces.importing import importer
from moeinf.traces.trace import dumps, passes_of, read_trace, visits
from moeinf.types import MoeShape
from tests.support.campaign.targets.target import Target, as_json, file_of, folder, refusing

_SHAPE: Final = MoeShape(2, 4, 2)
_ID: Final = "0123456789ab"
_MEASURED: Final = approx_file.Measured(0.01, "x", 0.5, ("a",))
_RATES: Final = {
    "version": 2,
    "cpu": "x",
    "isa": "avx2",
    "threads": 2,
    "memory_bytes": 1 << 30,
    "measured": "2026-01-01",
    "disk": {"4096": 1e9},
    "direct": True,
    "memory": 1e10,
    "experts": {"bf16": {"rows": [1, 8], "seconds": [1e-9, 2e-9]}},
    "linear": {"bf16": {"rows": [1], "seconds": [1e-9]}},
    "reading": {"bf16": {"256": {"plain": 1e10, "product": 9e9}}},
    "layer_s": 1e-5,
    "streamed_layer_s": 1e-5,
}


def _stored() -> StoredModel:
    return StoredModel("x:latest", _ID, folder())


def _prefix_path() -> Path:
    path = folder() / "again"
    path.unlink(missing_ok=True)
    return path


def _notes(data: bytes) -> None:
    """A file of notes beside a model or in a store, which is as good as missing where it is damaged: the first byte
    says which."""
    if data:
        name, read = _NOTES[data[0] % len(_NOTES)]
        file_of(data[1:], name)
        refusing(read)


def _look_at_hits() -> None:
    for slots, each in hit_record.load_hits(_stored()).items():
        assert slots == int(slots) and each.hits <= each.activations


def _look_at_rates() -> None:
    rates = rates_file.load(folder() / "rates.json")
    if rates is not None:
        again = json.loads(json.dumps(rates_file.rates_json(rates)))
        file_of(json.dumps({"version": 2, **again}).encode(), "rates.json")
        assert rates_file.load(folder() / "rates.json") == rates
        for products in (*rates.experts.values(), *rates.linear.values()):
            assert products.of(3) >= 0


def _look_at_copies() -> None:
    for copy in CopyList(folder()).all():
        copy.is_in(folder())
        copy.path.exists()


_NOTES: Final[tuple[tuple[str, Callable[[], object]], ...]] = (
    (hit_record.FILE, _look_at_hits),
    (approx_file.FILE, lambda: approx_file.load(_stored(), _MEASURED)),
    (compared_file.FILE, lambda: compared_file.load_compared(_stored())),
    ("rates.json", _look_at_rates),
    (COPIES_FILE, _look_at_copies),
    (ALIAS_FILE, lambda: own_aliases(folder())),
    ("latest", lambda: NameFiles(folder().parent).read(f"{folder().name}:latest")),
    (FACTS_FILE, lambda: read_facts(folder())),
)


def _preset(data: bytes) -> None:
    """What goes with a name: it says the same once it is written and read again."""
    text = data.decode(errors="replace")

    def read() -> None:
        found = preset_of(StoredModel("x:latest", _ID, folder(), text))
        again = preset_of(StoredModel("x:latest", _ID, folder(), found.dumps()))
        assert again == found

    refusing(read)
    parse_source_record({"asked": text})


def _modelfile(data: bytes) -> None:
    """A Modelfile, and each of its values once more as moeinf writes it."""
    text = data.decode(errors="replace")

    def read() -> None:
        for command in commands(text, "x"):
            if command.value and command.value == command.value.strip() and '"""' not in command.value:
                (again,) = commands(f"SYSTEM {quoted(command.value)}", "x")
                assert again.value == command.value, f"{command.value!r} {again.value!r}"
        parse_modelfile(text, "x")

    refusing(read)


def _prefix(data: bytes) -> None:
    """The file of a block of a prompt, and the same with a header whose sum is right."""
    refusing(lambda: read_header(file_of(data, "prefix")))
    head = MAGIC + struct.pack("<II", len(data), _native.crc32c(data)) + data

    def read() -> None:
        found = read_header(file_of(head, "prefix"))
        path = _prefix_path()
        write_prefix(path, found, np.zeros(3, np.uint8))
        assert read_header(path) == found

    refusing(read)


def _collection(data: bytes) -> None:
    """The activation matrices of past requests: what is read says the same once it is written and read again."""

    def read() -> None:
        found = ActivationCollection.loads(data, _SHAPE, 3)
        again = ActivationCollection.loads(found.dumps(), _SHAPE, 3)
        assert len(again) == len(found) and all(
            np.array_equal(again.counts(at), found.counts(at)) for at in range(len(found))
        )

    refusing(read)
    refusing(lambda: TunedNetwork.loads(data, _ID, _SHAPE).use())


def _arrays(data: bytes) -> None:
    """The same and a trace, as an npz file of arrays that JSON says: {"name": [type, numbers]}."""
    try:
        given = json.loads(data)
        arrays: dict[str, Any] = {name: np.array(numbers).astype(kind) for name, (kind, numbers) in given.items()}
        buffer = io.BytesIO()
        with np.errstate(all="ignore"):
            np.savez(buffer, **arrays)
    except Exception:  # no arrays that numpy would write
        return
    _collection(buffer.getvalue())
    _trace(buffer.getvalue())


def _trace(data: bytes) -> None:
    """A recorded trace: it says the same once it is written and read again, and can be run through."""

    def read() -> None:
        found = read_trace(file_of(data, "trace.npz"))
        again = read_trace(file_of(dumps(found), "trace.npz"))
        assert again.shape == found.shape and np.array_equal(again.experts, found.experts)
        assert np.array_equal(again.offsets, found.offsets)
        assert sum(last - first for _, first, last in passes_of(found, 3)) == found.num_tokens
        assert all(ids.min() >= 0 for _, _, ids in visits(found, 3))
        read_trace(folder() / "trace.npz", max_tokens=1)

    refusing(read)


def _recorded(data: bytes) -> None:
    """A trace of another recorder; the first byte says in what kind of file."""
    if not data:
        return
    ending = (".jsonl", ".csv", ".json")[data[0] % 3]
    path = file_of(data[1:], f"recorded{ending}")
    private = vars(importer)
    refusing(lambda: private["_read"](path, private["_form_of"](path), 8))


def _note_seeds() -> list[bytes]:
    values: tuple[Any, ...] = (
        {"7": [2000, 1000, 5]},
        {_MEASURED.key: [0.1, 0.005]},
        {
            "compared": [
                {
                    "reference": "a",
                    "reference_id": "b",
                    "text": "",
                    "predictions": 5,
                    "kl": 0.1,
                    "kl_error": 0.01,
                    "more_perplexity": 0.0,
                    "same": 0.9,
                }
            ]
        },
        _RATES,
        {"copies": [{"folder": "/x", "id": _ID, "name": "x:latest", "first_bytes": [4096]}]},
        {"small": "org/repo:tag@main", "other": "https://hf.co/org/repo"},
        None,
        {"format": "moeinf trace", "version": 1, "model": "x", "num_layers": 2, "num_experts": 4, "top_k": 2},
    )
    found = [bytes([at]) + json.dumps(value).encode() for at, value in enumerate(values) if value is not None]
    return [*found, b"\6" + f'{_ID} @main\n{{"system": "x", "options": []}}'.encode()]


def _preset_seeds() -> list[bytes]:
    preset = {"system": "x", "options": [["temperature", "0.5"], ["stop", "a"]]}
    message = {"role": "user", "content": "x"}
    asked = {
        "label": "x:latest",
        "source": {"kind": "hub", "location": "org/repo", "revision": "main", "file": ""},
        "quantisation": {"experts": "keep", "dense": "keep"},
    }
    return as_json(preset, preset | {"messages": [message]}, asked)


_MODELFILE: Final = (
    b'# a comment\nFROM org/repo\nPARAMETER temperature 0.5\nPARAMETER stop "a b"\nSYSTEM """\nBe kind.\n"""\n'
    b"ADAPTER ./x\nLICENSE '''y'''\n"
)


def _collection_seeds() -> list[bytes]:
    collection = ActivationCollection(_SHAPE, 3)
    collection.add(ActivationMatrix(_SHAPE))
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(_SHAPE, 1).items()}
    gain = Gain((10,), (1.0,), (2.0,), 1, 1)
    return [collection.dumps(), TunedNetwork(_ID, _SHAPE, weights, gain).dumps()]


def _array_seeds() -> list[bytes]:
    ids = [[[0, 1], [2, 3]], [[1, 0], [3, 1]], [[0, 2], [1, 2]]]
    trace = {"experts": ["i1", ids], "offsets": ["i8", [0, 2, 3]], "n_experts": ["i8", 4], "top_k": ["i8", 2]}
    more = {
        "passes": ["i8", [0, 1, 2, 3]],
        "prompt_tokens": ["i8", [1, 1]],
        "weights": ["f4", [[[0.5, 0.5]] * 2] * 3],
        "guesses": ["i1", ids],
        "guess_weights": ["f4", [[[0.5, 0.5]] * 2] * 3],
    }
    return as_json(trace, trace | more, {"shape": ["i8", [2, 4, 2]], "counts": ["u4", [[[1, 0, 2, 0], [0, 0, 0, 4]]]]})


def _trace_seeds() -> list[bytes]:
    buffers = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, experts=np.zeros((1, 1, 1), np.int8), offsets=np.array([0, 1]), n_experts=2, top_k=1)
        buffers.append(buffer.getvalue())
    return buffers


def _recorded_seeds() -> list[bytes]:
    token = {"layer": 0, "token_idx": 0, "topk_ids": [5, 6], "topk_weights": [0.7, 0.3], "request_id": "a"}
    request = {"id": "x", "prompt_token_ids": [1], "routed_experts": [[[1, 2]], [[3, 4]]]}
    lines = b"\n".join(as_json({"model_id": "m", "num_experts": 8}, token, {**token, "layer": 1}))
    return [b"\0" + lines, b"\0" + as_json(request)[0], b"\1token,layer,expert\n0,0,5\n", b"\2" + as_json([[token]])[0]]


TARGETS: Final = {
    "notes": Target(_notes, _note_seeds, lambda: ("1e999", "Infinity", "NaN")),
    "preset": Target(_preset, _preset_seeds, lambda: ("num_ctx", "top_k", "seed", "num_predict", "expert_cache")),
    "modelfile": Target(_modelfile, lambda: [_MODELFILE], lambda: ("TEMPLATE", "MESSAGE", "num_ctx")),
    "prefix": Target(
        _prefix,
        lambda: as_json(
            {
                "identity": {"a": 1},
                "parent": "",
                "digest": "a",
                "start": 0,
                "tokens": [1, -2],
                "payload_bytes": 3,
                "crc32c": 5,
            }
        ),
    ),
    "collection": Target(_collection, _collection_seeds),
    "arrays": Target(_arrays, _array_seeds, lambda: ("f8", "u1", "c8", "U3", "facts", "top_k")),
    "trace": Target(_trace, _trace_seeds),
    "recorded": Target(_recorded, _recorded_seeds),
}
