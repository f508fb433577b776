"""manifest.json is read back as written, and nothing malformed passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import StoreError
from moeinf.store.format import BlockTensor
from moeinf.store.library import StoredModel
from moeinf.store.manifest import load, model_id, parse
from moeinf.store.quantisation import Quantisation


def test_a_manifest_reads_back_to_the_same_bytes(demo: StoredModel) -> None:
    data = (demo.path / "manifest.json").read_bytes()
    assert parse(data, "m").dumps() == data
    assert model_id(data) == demo.id == demo.path.name


def test_the_contract_s_fields_are_there(demo: StoredModel) -> None:
    value = json.loads((demo.path / "manifest.json").read_bytes())
    assert value["format"] == "moeinf" and value["version"] == 2
    assert value["source"] == {"kind": "embedded", "name": "demo"}
    assert [tensor["name"] for tensor in value["experts"]["tensors"]] == ["gate", "up", "down"]
    assert len(value["shards"]) == value["experts"]["num_layers"] == 6
    assert {len(shard["sha256"]) for shard in value["shards"]} == {32}
    assert demo.manifest.size_bytes == sum(entry["num_bytes"] for entry in value["shards"] + value["files"])


def test_the_state_of_recurrent_layers_is_kept_and_nothing_is_said_of_none(demo: StoredModel) -> None:
    assert b"state_bytes" not in demo.manifest.dumps()
    recurrent = replace(demo.manifest, info=replace(demo.manifest.info, state_bytes=12345))
    assert parse(recurrent.dumps(), "m") == recurrent


def test_a_newer_version_asks_for_an_upgrade(demo: StoredModel) -> None:
    value = json.loads((demo.path / "manifest.json").read_bytes()) | {"version": 3, "unheard": "of"}
    with pytest.raises(StoreError, match=r"newer moeinf.*upgrade"):
        parse(json.dumps(value).encode(), "m")


def test_a_manifest_of_version_1_has_no_quantised_formats(demo: StoredModel) -> None:
    value = json.loads((demo.path / "manifest.json").read_bytes()) | {"version": 1}
    with pytest.raises(StoreError, match="is not known to this version"):
        parse(json.dumps(value).encode(), "m")
    del value["quantisation"], value["dense_formats"]
    assert parse(json.dumps(value).encode(), "m") == demo.manifest


def test_quantised_tensors_read_back(demo: StoredModel) -> None:
    value = json.loads((demo.path / "manifest.json").read_bytes()) | QUANTISED
    manifest = parse(json.dumps(value).encode(), "m")
    assert manifest.dense_formats == {"a": BlockTensor("q4_k", (3, 512))}
    assert (manifest.quantisation, manifest.fallbacks) == (Quantisation("q4_k", "q8_0"), ("for a reason",))
    assert parse(manifest.dumps(), "m") == manifest


def test_a_manifest_whose_hash_is_not_the_id_is_damaged(demo: StoredModel, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes((demo.path / "manifest.json").read_bytes().replace(b"embedded", b"imbedded"))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        load(path, demo.id)


def change(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(value: Any) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return apply


QUANTISED = {
    "quantisation": {"experts": "q4_k", "dense": "q8_0", "fallbacks": ["for a reason"]},
    "dense_formats": {"a": {"format": "q4_k", "shape": [3, 512]}},
}
FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "format": (change("format", to="gguf"), "format"),
    "version is text": (change("version", to="1"), "version"),
    "version is zero": (change("version", to=0), "version"),
    "unknown field": (change("extra", to=1), "extra"),
    "source kind": (change("source", "kind", to="magic"), "source: kind"),
    "negative size": (change("model", "hidden_size", to=-1), "model: hidden_size"),
    "size is a float": (change("model", "num_params", to=1.5), "model: num_params"),
    "dtype": (change("model", "dtype", to="f8"), "model: dtype"),
    "escape sequence": (change("model", "architecture", to="\x1b[2J"), "model: architecture"),
    "quantisation": (change("quantisation", "experts", to="q5"), "quantisation: experts is 'q5'; known: keep, q8_0"),
    "fallbacks": (change("quantisation", "fallbacks", to=["\x1b"]), "quantisation: fallbacks"),
    "tensor format": (change("experts", "tensors", 0, "dtype", to="q9_0"), "tensors[0]: dtype is 'q9_0'; known: bf16"),
    "tensor of part blocks": (change("experts", "tensors", 0, "dtype", to="q4_k"), "must be whole q4_k blocks of 256"),
    "dense format": (change("dense_formats", to={"a": {"format": "q5", "shape": [32]}}), "a: format is 'q5'; known: "),
    "dense format without blocks": (change("dense_formats", to={"a": {"format": "bf16", "shape": [32]}}), "no blocks"),
    "dense tensor of part blocks": (
        change("dense_formats", to={"a": {"format": "q8_0", "shape": [2, 33]}}),
        "a: shape is [2, 33]; rows must be whole q8_0 blocks of 32",
    ),
    "dense tensor without shape": (change("dense_formats", to={"a": {"format": "q8_0", "shape": []}}), "a: shape"),
    "dense tensor's name": (change("dense_formats", to={"\x1b[2J": {"format": "q8_0", "shape": [32]}}), "not a name"),
    "no layers": (change("experts", "num_layers", to=0), "experts: num_layers"),
    "more layers than shards": (change("experts", "num_layers", to=7), "shards has 6 entries"),
    "top_k": (change("experts", "top_k", to=33), "experts: top_k"),
    "stride": (change("experts", "stride_bytes", to=4096), "experts: stride_bytes"),
    "block": (change("experts", "block_bytes", to=1), "experts: block_bytes"),
    "tensor offset": (change("experts", "tensors", 1, "offset_bytes", to=1), "overlapping"),
    "tensor size": (change("experts", "tensors", 0, "num_bytes", to=1), "experts: tensors[0]: num_bytes"),
    "tensor shape": (change("experts", "tensors", 0, "shape", to=[1 << 40]), "experts: tensors[0]: shape"),
    "shard name": (change("shards", 0, "file", to="../../etc/passwd"), "shards[0]: file"),
    "shard size": (change("shards", 0, "num_bytes", to=1), "shards[0]: num_bytes"),
    "sum missing": (change("shards", 0, "sha256", to=[]), "shards[0]: sha256"),
    "sum malformed": (change("shards", 0, "sha256", 3, to="zz"), "shards[0]: sha256"),
    "file name": (change("files", 0, "file", to="a/../b"), "files[0]: file"),
    "hidden file": (change("files", 0, "file", to=".x"), "files[0]: file"),
    "file named twice": (change("files", 0, "file", to="experts-00000.bin"), "each file once"),
    "file sum": (change("files", 0, "sha256", to=5), "files[0]: sha256"),
    "files is an object": (change("files", to={}), "files"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_field_is_refused_by_name(fault: str, demo: StoredModel) -> None:
    spoil, words = FAULTS[fault]
    value = json.loads((demo.path / "manifest.json").read_bytes())
    spoil(value)
    with pytest.raises(StoreError) as caught:
        parse(json.dumps(value).encode(), "the-manifest")
    assert "the-manifest" in str(caught.value) and words in str(caught.value)
    assert str(caught.value).isprintable()


def test_every_field_is_required(demo: StoredModel) -> None:
    whole = json.loads((demo.path / "manifest.json").read_bytes())
    for part in (
        (),
        ("model",),
        ("experts",),
        ("source",),
        ("shards", 0),
        ("files", 0),
        ("experts", "tensors", 0),
        ("quantisation",),
    ):
        for field in _at(whole, part):
            value = json.loads(json.dumps(whole))
            del _at(value, part)[field]
            with pytest.raises(StoreError, match=rf"{field}|shards has"):
                parse(json.dumps(value).encode(), "m")


def _at(value: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null", b'{"format": 1, "format": 2}'])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="the-manifest"):
        parse(data, "the-manifest")
