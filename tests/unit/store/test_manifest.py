"""manifest.json is read back as written, and nothing malformed passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import StoreError
from moeinf.store.format import BlockTensor, expert_layout
from moeinf.store.library import StoredModel
from moeinf.store.manifest import VERSION, Manifest, ModelSource, load, model_id, parse, shard_entries, slot_layout
from moeinf.store.placed.places import DensePlace, InPlace, PartPlace, PlacedFile, TensorPlace, placed_layout
from moeinf.store.quantisation import Quantisation
from moeinf.types import TensorSpec, format_bytes


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
    value = json.loads((demo.path / "manifest.json").read_bytes()) | {"version": VERSION + 1, "unheard": "of"}
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
    assert manifest.formats.dense == {"a": BlockTensor("q4_k", (3, 512))}
    assert (manifest.formats.asked, manifest.formats.fallbacks) == (Quantisation("q4_k", "q8_0"), ("for a reason",))
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
    "format of later": (change("quantisation", "dense", to="q1"), "; upgrade moeinf if a newer one made it, else pull"),
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


def by_layer(demo: StoredModel) -> Manifest:
    """The same with half of the layers in another format, so that their blocks are smaller."""
    manifest, num_layers = demo.manifest, demo.manifest.moe.num_layers
    shapes = [(spec.name, spec.shape) for spec in manifest.layout.tensors]
    small = expert_layout([(name, "bf16", shape) for name, shape in shapes])
    large = expert_layout([(name, "f32", shape) for name, shape in shapes])
    layers = tuple(large if layer % 2 else small for layer in range(num_layers))
    shards = tuple(
        replace(shard, num_bytes=manifest.moe.num_experts * layout.stride_bytes)
        for shard, layout in zip(manifest.shards, layers, strict=True)
    )
    return replace(manifest, layout=slot_layout(layers), layers=layers, shards=shards)


def test_layouts_that_differ_by_layer_are_of_version_3(demo: StoredModel) -> None:
    manifest = by_layer(demo)
    assert json.loads(manifest.dumps())["version"] == 3
    assert json.loads(demo.manifest.dumps())["version"] == 2
    parsed = parse(manifest.dumps(), "m")
    assert parsed == manifest
    assert parsed.layout.stride_bytes == max(layout.stride_bytes for layout in manifest.layers)
    assert parsed.layout_of(0) != parsed.layout_of(1)
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda value: value["experts"]["layers"].pop(), "layers are 5, not 6"),
        (lambda value: value["experts"]["layers"][1].pop("block_bytes"), "block_bytes is missing"),
        (lambda value: value["experts"]["layers"][1].update(more=1), "more is not known"),
        (lambda value: value["shards"][0].update(num_bytes=1), "32 experts [*] stride_bytes"),
        (lambda value: value["experts"].update(tensors=[]), "tensors is not known"),
    ]
    for change, said in changes:
        value = json.loads(manifest.dumps())
        change(value)
        with pytest.raises(StoreError, match=said):
            parse(json.dumps(value).encode(), "m")


def test_layers_of_different_numbers_of_experts_are_of_version_4(demo: StoredModel) -> None:
    plain, counts = demo.manifest, (32, 31, 32, 20, 32, 32)
    pruned = [replace(shard, sha256=shard.sha256[:n]) for shard, n in zip(plain.shards, counts, strict=True)]
    shards = shard_entries(
        moe := replace(plain.moe, counts=counts),
        [plain.layout.stride_bytes] * len(counts),
        [sha256 for shard in pruned for sha256 in shard.sha256],
    )
    manifest = replace(plain, moe=moe, shards=shards)
    value = json.loads(manifest.dumps())
    assert (value["version"], value["experts"]["counts"], len(value["shards"][3]["sha256"])) == (4, list(counts), 20)
    assert parse(manifest.dumps(), "m") == manifest and not manifest.layers
    layers = replace(manifest, layers=by_layer(demo).layers)
    assert json.loads(layers.dumps())["version"] == 4
    for wrong in ([32] * 6, [31] * 5 + [30], [33, *counts[1:]], counts[1:], [0, *counts[1:]], ["32", *counts[1:]]):
        value["experts"]["counts"] = wrong
        with pytest.raises(StoreError, match=r"experts: counts (are not 6 numbers|do not differ)"):
            parse(json.dumps(value).encode(), "m")
    value["experts"] |= {"counts": [3, *counts[1:]]}
    with pytest.raises(StoreError, match="top_k is 4 of 3 experts"):
        parse(json.dumps(value).encode(), "m")
    value["experts"] |= {"counts": [30, *counts[1:]]}
    with pytest.raises(StoreError, match=r"num_bytes is .*; must be 30 experts"):
        parse(json.dumps(value).encode(), "m")


def in_place(demo: StoredModel) -> Manifest:
    """Experts and a dense tensor in two files of another program, in pieces that begin anywhere."""
    manifest, moe = demo.manifest, demo.manifest.moe
    files = (
        PlacedFile("a model-00001-of-00002.gguf", 1 << 24, 4000, "0" * 64),
        PlacedFile("a model-00002-of-00002.gguf", 1 << 24, 100, "1" * 64, "2" * 64),
    )
    layers, experts = [], []
    for layer in range(moe.num_layers):
        specs = [
            TensorSpec(spec.name, "f32", spec.shape, 0, format_bytes("f32", spec.shape))
            for spec in manifest.layout.tensors
        ]
        parts = [
            PartPlace(spec.name, f"blk.{layer}.{spec.name}", layer % 2, 4000 + 32 * i, spec.num_bytes)
            for i, spec in enumerate(specs)
        ]
        layers.append(placed_layout(specs, parts, moe.num_experts))
        experts.append(tuple(parts))
    source = TensorPlace("token_embd.weight", 0, "q8_0", (8, 64), 5000)
    dense = (
        DensePlace("embed", (source,), (8, 64)),
        DensePlace("half", (source,), (4, 64), ({"step": "TakeRows", "start": 0, "count": 4},)),
    )
    small = tuple(file for file in manifest.files if file.file != "dense.safetensors")
    return replace(
        manifest,
        source=ModelSource("file", "/models/a model-00001-of-00002.gguf"),
        layout=slot_layout(layers),
        layers=tuple(layers),
        shards=(),
        files=small,
        in_place=InPlace("/models", files, dense, tuple(experts)),
    )


def test_weights_in_place_read_back(demo: StoredModel) -> None:
    manifest = in_place(demo)
    parsed = parse(manifest.dumps(), "m")
    assert parsed == manifest
    assert parsed.in_place is not None
    assert parsed.in_place.dense_bytes == 8 * 68
    assert [str(path) for path in parsed.in_place.paths(demo.path)] == [
        "/models/a model-00001-of-00002.gguf",
        "/models/a model-00002-of-00002.gguf",
    ]
    downloaded = replace(manifest, in_place=replace(parsed.in_place, folder=""))
    assert replace(downloaded).in_place is not None
    assert parse(downloaded.dumps(), "m") == downloaded


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("folder",), "models", "no absolute path"),
        (("files",), [], "files must name"),
        (("files", 0, "file"), "../a", "not allowed"),
        (("files", 0, "file"), "..", "is no file"),
        (("files", 0, "header_bytes"), 1 << 30, "such a header"),
        (("files", 0, "header_sha256"), "", "not allowed"),
        (("files", 1, "file"), "a model-00001-of-00002.gguf", "each once"),
        (("dense", 0, "sources"), [], "nothing to work on"),
        (("dense", 0, "sources", 0, "file"), 2, "is 2 of 2"),
        (("dense", 0, "sources", 0, "offset_bytes"), 3999, "outside of"),
        (("dense", 0, "sources", 0, "offset_bytes"), (1 << 24) - 1, "outside of"),
        (("dense", 0, "sources", 0, "format"), "q9", "format is 'q9'"),
        (("dense", 1, "name"), "embed", "names a tensor twice"),
        (("experts",), [], "6 lists"),
        (("experts", 0, 0, "part"), "other", "do not name the parts"),
        (("experts", 0, 1, "step_bytes"), 1, "overlap"),
        (("experts", 0, 1, "step_bytes"), 1 << 24, "outside of"),
        (("experts", 0, 1, "offset_bytes"), 4096, "do not fit the regions"),
        (("experts", 5, 2, "file"), -1, "whole number"),
        (("more",), 1, "not known"),
    ],
)
def test_places_that_do_not_fit_are_refused(
    demo: StoredModel, path: tuple[str | int, ...], value: object, said: str
) -> None:
    root = json.loads(in_place(demo).dumps())
    at = root["in_place"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(StoreError, match=said):
        parse(json.dumps(root).encode(), "m")
