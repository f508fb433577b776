"""Headers of GGUF files: what the gguf package writes is read, and nothing else passes."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import CheckpointError
from moeinf.gguf.header import FORMATS, GgufHeader, parse_gguf, read_gguf
from moeinf.types import block_of
from tests.support.gguf_bytes import ARRAY, BOOL, STRING, U32, Entry, header, text, whole

SOUND = whole(header({"general.architecture": "x", "n": 3, "tokens": ["a", "bc", ""]}, [Entry()]), 512)


def parse(data: bytes) -> GgufHeader:
    def read(offset: int, num_bytes: int) -> bytes:
        assert 0 <= offset <= offset + num_bytes <= len(data), "read past the end of the file"
        return data[offset : offset + num_bytes]

    return parse_gguf(read, len(data), "x.gguf")


def refused(data: bytes, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(data)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 1000 and all(word in line for word in words), line


VALUES = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(min_size=1, max_size=40),
    st.lists(st.text(max_size=9), min_size=1, max_size=30),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=30),
)


@given(
    st.dictionaries(st.text("abc.", min_size=1, max_size=9), VALUES, max_size=9),
    st.dictionaries(st.text("abc.0", min_size=1, max_size=8), st.lists(st.integers(1, 5), min_size=1, max_size=4)),
)
@settings(max_examples=40, deadline=None)
def test_a_header_reads_as_the_gguf_package_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any], shapes: dict[str, list[int]]
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    writer = gguf.GGUFWriter(path, "x")
    for name, value in metadata.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(name, value)
    for number, (name, shape) in enumerate(shapes.items()):
        writer.add_tensor(name, np.full(shape, number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(path)
    assert {name: shapes[name] for name in found.tensors} == {n: list(t.shape) for n, t in found.tensors.items()}
    for name, value in metadata.items():
        given_back: Any = found.metadata[name]
        assert (list(given_back) if isinstance(value, list) else given_back) == value
    data = path.read_bytes()
    for number, (name, shape) in enumerate(shapes.items()):
        tensor = found.tensors[name]
        values = np.frombuffer(data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes], np.float32)
        assert len(values) == np.prod(shape) and (values == number).all()


def test_every_format_is_ggmls() -> None:
    for number, name in FORMATS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name.lower() == name and block_of(name) == gguf.GGML_QUANT_SIZES[kind]


def test_a_vocabulary_is_read_across_the_borders_of_what_is_read_at_once() -> None:
    tokens = [f"token {i}" * (i % 7) for i in range(60_000)]
    assert parse(whole(header({"tokens": tokens, "n": 7}, [Entry()]), 512)).metadata == {"tokens": tokens, "n": 7}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a GGUF file"),
        (b"GGML" + SOUND[4:], "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"GGUF" + struct.pack(">I", 3) + SOUND[8:], "big-endian"),
        (header(version=1), "version 1"),
        (header(version=9), "version 9"),
        (header(num_tensors=2**63), "promises"),
        (header(num_keys=2**63), "promises"),
        (header(num_tensors=90_000), "truncated"),
        (header(num_keys=9000), "truncated"),
        (header([("a", 1), ("a", 1)]), "twice"),
        (header([("", 1)]), "empty"),
        (header([("\x1b[2J", 1)]), "unprintable"),
        (header([("a", (STRING, text(b"", 2**63)))]), "text of 9223372036854775808 bytes"),
        (header([("a", (STRING, text(b"", 2**27)))]), "truncated"),
        (header([("a", (STRING, text(b"", 2**64 - 1)))]), "text of"),
        (header([("a", (STRING, text(b"\xff")))]), "UTF-8"),
        (header([("a", (BOOL, b"\2"))]) + b"\0", "neither true nor false"),
        (header([("a", (13, b"\0"))]), "unknown value type 13"),
        (header([("a", (ARRAY, struct.pack("<IQ", STRING, 2**60)))]), "too many"),
        (header([("a", (ARRAY, struct.pack("<IQ", STRING, 7_000_000)))]), "truncated"),
        (header([("a", (ARRAY, struct.pack("<IQ", U32, 7_000_000)))]), "truncated"),
        (header([("a", (ARRAY, struct.pack("<IQ", ARRAY, 1)))]), "arrays within arrays"),
        (header([("a", (ARRAY, struct.pack("<IQ", 99, 1)))]), "unknown type 99"),
        (header([("a", (ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xff")))]), "UTF-8"),
        (header([("general.alignment", 0)]), "power of two"),
        (header([("general.alignment", 48)]), "power of two"),
        (header([("general.alignment", "x")]), "power of two"),
        (whole(header({}, [Entry(), Entry(offset=512)]), 1024), "twice"),
        (whole(header({}, [Entry(), Entry("b", offset=480)]), 1024), "overlap"),
        (whole(header({}, [Entry(), Entry("b")]), 1024), "overlap"),
        (whole(header({}, [Entry(offset=8)]), 1024), "multiple of 32"),
        (whole(header({}, [Entry()]), 511), "truncated"),
        (whole(header({}, [Entry(offset=2**63)]), 512), "truncated"),
        (whole(header({}, [Entry(ne=())]), 512), "0 dimensions"),
        (whole(header({}, [Entry(ne=(1,) * 5)]), 512), "5 dimensions"),
        (whole(header({}, [Entry(ne=(0, 4))]), 512), "shape"),
        (whole(header({}, [Entry(ne=(2**63, 4))]), 512), "shape"),
        (whole(header({}, [Entry(ne=(2**47,) * 4)]), 512), "truncated"),
        (whole(header({}, [Entry(type=8, ne=(33, 4))]), 512), "rows of 33"),
        (whole(header({}, [Entry(type=4)]), 512), "Q4_2, which ggml removed"),
        (whole(header({}, [Entry(type=31)]), 512), "Q4_0_4_4"),
        (whole(header({}, [Entry(type=27)]), 512), "I64"),
        (whole(header({}, [Entry(type=999)]), 512), "type 999, which moeinf does not know"),
        (whole(header({}, [Entry(name="\n")]), 512), "unprintable"),
        (whole(header({}, [Entry(name="a" * 501)]), 512), "text of 501 bytes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(data: bytes, words: str) -> None:
    refused(data, "x.gguf", words)


def test_a_header_that_ends_anywhere_is_truncated() -> None:
    for length in range(4, len(SOUND)):
        refused(SOUND[:length], "x.gguf", "truncated")
    assert parse(SOUND).metadata["tokens"] == ["a", "bc", ""]


@given(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=9))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_it_read_past_the_file_or_take_memory(at: int, wrong: bytes) -> None:
    tracemalloc.start()
    try:
        data = SOUND[:at] + wrong + SOUND[at + len(wrong) :]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            tensors = parse(data).tensors
            assert all(len(data) - t.num_bytes >= t.offset_bytes >= 0 for t in tensors)
        except CheckpointError as error:
            assert "\n" not in str(error)
        assert tracemalloc.get_traced_memory()[1] - before < 1 << 20
    finally:
        tracemalloc.stop()


def part(number: int, count: int, entries: list[Entry], total: int = 2) -> bytes:
    numbers = {
        "split.no": (2, struct.pack("<H", number)),
        "split.count": (2, struct.pack("<H", count)),
        "split.tensors.count": total,
    }
    return whole(header({"general.architecture": "x"} | numbers, entries), 512)


def split(folder: Path, *parts: bytes) -> list[Path]:
    paths = [folder / f"m-{number + 1:05d}-of-{len(parts):05d}.gguf" for number in range(len(parts))]
    for path, data in zip(paths, parts, strict=True):
        path.write_bytes(data)
    return paths


def test_any_part_of_a_split_finds_the_others(tmp_path: Path) -> None:
    paths = split(tmp_path, part(0, 2, [Entry("a")]), part(1, 2, [Entry("b")]))
    for path in paths:
        model = read_gguf(path)
        assert [file.path for file in model.files] == paths
        assert {name: tensor.file for name, tensor in model.tensors.items()} == {"a": 0, "b": 1}
        assert model.metadata == {"general.architecture": "x"}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (None, ("m-00002-of-00002.gguf is missing", "into one folder")),
        (part(1, 2, [Entry("b")])[:-1], ("m-00002-of-00002.gguf is truncated", "fetch it again")),
        (part(0, 2, [Entry("b")]), ("not part 2",)),
        (part(1, 3, [Entry("b")]), ("not part 2",)),
        (part(1, 2, [Entry("a")]), ("in two parts",)),
        (part(1, 2, []), ("promises 2 tensors, its parts have 1",)),
    ],
)
def test_a_split_that_does_not_fit_together_is_refused(
    tmp_path: Path, second: bytes | None, words: tuple[str, ...]
) -> None:
    first, other = split(tmp_path, part(0, 2, [Entry("a")]), second or b"")
    if second is None:
        other.unlink()
    with pytest.raises(CheckpointError) as caught:
        read_gguf(first)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in words), caught.value


def test_a_part_under_another_name_tells_how_parts_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(part(0, 2, [Entry("a")]))
    with pytest.raises(CheckpointError, match=r"-00001-of-00002\.gguf"):
        read_gguf(tmp_path / "m.gguf")


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(CheckpointError, match=str(path)):
            read_gguf(path)


def test_a_part_that_says_it_is_of_another_model_is_refused(tmp_path: Path) -> None:
    parts = []
    for number, name in enumerate(("this", "that")):
        said = {"split.no": number, "split.count": 2, "general.name": name, "general.quantized_by": "us"}
        path = tmp_path / f"m-{number + 1:05d}-of-00002.gguf"
        path.write_bytes(whole(header(said, [Entry(f"t{number}")]), 512))
        parts.append(path)
    for path in parts:
        with pytest.raises(CheckpointError, match=r"general.name is 'that', and 'this' in m-00001-of-00002.gguf"):
            read_gguf(path)
