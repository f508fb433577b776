"""Safetensors headers and expert blocks."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import CheckpointError, StoreError
from moeinf.store.dense import check_dense, dense_tensors
from moeinf.store.format import BlockTensor, dense_header, expert_layout, parse_header, read_header
from moeinf.types import FORMAT_BLOCKS, DType

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
DTYPES: st.SearchStrategy[DType] = st.sampled_from(["bf16", "f16", "f32"])
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def file_of(header: object, data_bytes: int, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data_bytes)


@given(st.dictionaries(st.text("abc.0", min_size=1, max_size=8), st.tuples(DTYPES, SHAPES), max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_header_reads_as_the_safetensors_library_wrote_it(wanted: dict[str, tuple[DType, tuple[int, ...]]]) -> None:
    tensors = {name: torch.zeros(shape, dtype=TORCH[dtype]) for name, (dtype, shape) in wanted.items()}
    data = safetensors.torch.save(tensors)
    length = int.from_bytes(data[:8], "little")
    header = parse_header(data[8 : 8 + length], len(data), "x")
    assert {name: entry.shape for name, entry in header.items()} == {n: shape for n, (_, shape) in wanted.items()}
    assert sum(entry.num_bytes for entry in header.values()) == len(data) - 8 - length


@given(st.dictionaries(st.text("abc.0é", min_size=1, max_size=8), st.tuples(DTYPES, SHAPES), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_dense_file_is_aligned_and_sound_to_the_safetensors_library(
    wanted: dict[str, tuple[DType, tuple[int, ...]]],
) -> None:
    head, specs = dense_header(wanted)
    end = max(spec.offset_bytes + spec.num_bytes for spec in specs)
    loaded = safetensors.torch.load(head + bytes(end - len(head)))
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {n: s for n, (_, s) in wanted.items()}
    assert len(head) % 4096 == 0
    for spec in specs:
        assert spec.offset_bytes % (64 if spec.num_bytes % 64 == 0 else FORMAT_BLOCKS[spec.dtype][1]) == 0


def test_dense_tensors_lie_where_the_file_has_them(tmp_path: Path) -> None:
    head, specs = dense_header({"a": ("f32", (3,)), "b": ("bf16", (64, 2))})
    path = tmp_path / "dense.safetensors"
    path.write_bytes(head + bytes(sum(spec.num_bytes for spec in specs)))
    assert dense_tensors(path) == specs


def test_quantised_tensors_are_bytes_to_the_file_and_blocks_to_the_manifest(tmp_path: Path) -> None:
    head, specs = dense_header(
        {"a": ("f32", (3,)), "b": ("q8_0", (5, 64)), "c": ("q4_k", (2, 512)), "d": ("bf16", (4,))}
    )
    data = head + bytes(sum(spec.num_bytes for spec in specs))
    assert {name: tuple(tensor.shape) for name, tensor in safetensors.torch.load(data).items()} == {
        "a": (3,),
        "b": (5, 68),
        "c": (2, 288),
        "d": (4,),
    }
    path = tmp_path / "dense.safetensors"
    path.write_bytes(data)
    formats = {"b": BlockTensor("q8_0", (5, 64)), "c": BlockTensor("q4_k", (2, 512))}
    assert dense_tensors(path, formats) == specs
    for wrong, words in (
        (formats | {"b": BlockTensor("q8_0", (4, 64))}, "'b' has dtype U8"),
        (formats | {"c": BlockTensor("q8_0", (2, 512))}, "'c' has dtype U8"),
        ({"b": formats["b"]}, "'c' has dtype U8 .*which its manifest does not explain"),
        (formats | {"a": BlockTensor("q8_0", (3, 32))}, "'a' has dtype F32 .*not the q8_0"),
        (formats | {"e": formats["b"]}, "'e' of the manifest is missing"),
    ):
        with pytest.raises(StoreError, match=f"dense.safetensors: tensor {words}"):
            dense_tensors(path, wrong)


def test_a_block_without_a_number_as_its_scale_is_named_before_the_dense_file_is_used(tmp_path: Path) -> None:
    head, specs = dense_header({"a": ("q8_0", (5, 64)), "b": ("mxfp4", (2, 64)), "c": ("f32", (32,))})
    data = bytearray(head + bytes(sum(spec.num_bytes for spec in specs)))
    path = tmp_path / "dense.safetensors"
    offsets = {spec.name: spec.offset_bytes for spec in specs}
    data[offsets["c"] : offsets["c"] + 128] = b"\xff" * 128  # floats may be anything
    check_dense(path, specs, memoryview(data))
    for name, at, value, block in (("a", 7 * 34 + 1, 0x7C, 7), ("b", 3 * 17, 255, 3)):
        spoilt = bytearray(data)
        spoilt[offsets[name] + at] = value
        with pytest.raises(StoreError, match=rf"safetensors: tensor '{name}': the scale of \w+ block {block} is NaN"):
            check_dense(path, specs, memoryview(spoilt))


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "truncated"),
    "shorter than its length field": (b"\x10\0\0", "truncated"),
    "header longer than the file": (file_of(b"{}", 0, 100), "truncated"),
    "pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    "header of 2^63 bytes": (file_of(b"{}", 0, 1 << 63), "not a safetensors file"),
    "header above 100 MB": (file_of(b"{}", 0, 100_000_001), "not a safetensors file"),
    "not JSON": (file_of(b"{nonsense}", 0), "JSON"),
    "not an object": (file_of([], 0), "not a JSON object"),
    "white space first": (file_of(b" {}", 0), "not a JSON object"),
    "invalid UTF-8": (file_of(b'{"\xff": 1}', 0), "JSON"),
    "nested deeply": (file_of(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 0), "nested too deeply"),
    "huge number": (file_of(b'{"a":' + b"9" * 10_000 + b"}", 0), "JSON"),
    "duplicate tensor": (file_of(b'{"a":%s,"a":%s}' % ((json.dumps(GOOD).encode(),) * 2), 24), "occurs twice"),
    "tensor is a number": (file_of({"a": 1}, 0), "'a' must have"),
    "missing dtype": (file_of({"a": {"shape": [1], "data_offsets": [0, 4]}}, 4), "'a' must have"),
    "extra key": (file_of({"a": GOOD | {"x": 1}}, 24), "'a' must have"),
    "unknown dtype": (file_of({"a": GOOD | {"dtype": "F33"}}, 24), "'a' has the unknown dtype 'F33'"),
    "negative size": (file_of({"a": GOOD | {"shape": [-2, -3]}}, 24), "'a' has the shape"),
    "size is true": (file_of({"a": GOOD | {"shape": [True, 6]}}, 24), "'a' has the shape"),
    "size is a float": (file_of({"a": GOOD | {"shape": [2.0, 3]}}, 24), "'a' has the shape"),
    "rank 9": (file_of({"a": GOOD | {"shape": [1] * 8 + [6]}}, 24), "'a' has the shape"),
    "product overflows 64 bits": (file_of({"a": GOOD | {"shape": [1 << 62, 1 << 62]}}, 24), "takes"),
    "offsets swapped": (file_of({"a": GOOD | {"data_offsets": [24, 0]}}, 24), "data_offsets"),
    "three offsets": (file_of({"a": GOOD | {"data_offsets": [0, 24, 24]}}, 24), "data_offsets"),
    "size and offsets disagree": (file_of({"a": GOOD | {"data_offsets": [0, 20]}}, 20), "takes 24 bytes"),
    "hole before the first": (file_of({"a": GOOD | {"data_offsets": [4, 28]}}, 28), "hole"),
    "hole between two": (file_of({"a": GOOD, "b": GOOD | {"data_offsets": [28, 52]}}, 52), "'b' leaves a hole"),
    "overlap": (file_of({"a": GOOD, "b": GOOD | {"data_offsets": [20, 44]}}, 44), "'b' overlaps"),
    "data too short": (file_of({"a": GOOD}, 23), "truncated"),
    "data too long": (file_of({"a": GOOD}, 25), "behind its last tensor"),
    "control character in a name": (file_of({"a\x1b[2J": GOOD}, 24), "unprintable"),
    "lone surrogate in a name": (file_of(b'{"\\ud800":%s}' % json.dumps(GOOD).encode(), 24), "unprintable"),
    "metadata that is a list": (file_of({"__metadata__": [1], "a": GOOD}, 24), "__metadata__ must be"),
    "metadata with a number": (file_of({"__metadata__": {"a": 1}, "a": GOOD}, 24), "__metadata__ must be"),
    "metadata that is a text": (file_of({"__metadata__": "pt", "a": GOOD}, 24), "__metadata__ must be"),
    "empty name": (file_of({"": GOOD}, 24), "unprintable"),
    "endless name": (file_of({"a" * 501: GOOD}, 24), "endless name"),
    "endless dtype": (file_of({"a": GOOD | {"dtype": [0] * 100_000}}, 24), "unknown dtype [0, 0"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malformed_file_is_refused_in_one_line_that_names_it(attack: str, tmp_path: Path) -> None:
    data, words = ATTACKS[attack]
    path = tmp_path / "evil.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"evil\.safetensors") as caught:
        read_header(path)
    assert words in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b",".join(b'"%06d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(100_003)) + b"}",
        b'{"a":[' + b",".join([b"0"] * 2_000_000) + b"]}",
    ],
    ids=["tensors", "numbers"],
)
def test_a_header_of_too_many_values_is_refused_before_they_are_made(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(file_of(header, 0))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"evil.safetensors names more than 100000 tensors"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(header)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_metadata_that_the_safetensors_library_takes_is_taken(metadata: object) -> None:
    data = file_of({"__metadata__": metadata, "a": GOOD}, 24)
    assert list(safetensors.torch.load(data)) == ["a"]
    assert list(parse_header(data[8:-24], len(data), "x")) == ["a"]


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_raise_anything_but_a_checkpoint_error(data: bytes, size: int) -> None:
    with pytest.raises(CheckpointError):
        parse_header(b"{" + data, size, "x")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_mutated_header_is_refused_or_stays_inside_its_file(data: Any) -> None:
    text = bytearray(json.dumps({"a": GOOD, "b": GOOD | {"data_offsets": [24, 48]}}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(32, 126))
    size = 8 + len(text) + 48
    try:
        header = parse_header(bytes(text), size, "x")
    except CheckpointError:
        return
    assert sum(entry.num_bytes for entry in header.values()) == 48
    assert all(8 + len(text) <= e.offset_bytes <= e.offset_bytes + e.num_bytes <= size for e in header.values())


@given(st.lists(st.tuples(DTYPES, SHAPES), min_size=1, max_size=5))
def test_parts_of_a_block_are_aligned_and_do_not_overlap(parts: list[tuple[DType, tuple[int, ...]]]) -> None:
    layout = expert_layout([(str(i), dtype, shape) for i, (dtype, shape) in enumerate(parts)])
    end = 0
    for spec in layout.tensors:
        assert spec.offset_bytes % 64 == 0 and 0 <= spec.offset_bytes - end < 64
        end = spec.offset_bytes + spec.num_bytes
    assert layout.block_bytes == end
    assert layout.stride_bytes % 4096 == 0 and 0 <= layout.stride_bytes - end < 4096
