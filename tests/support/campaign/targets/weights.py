"""Files of weights: headers, manifests, importance matrices, tables of checksums."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import numpy as np

from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tokenizer import tokenizer_files
from moeinf.gguf.header import join_parts, parse_gguf
from moeinf.gguf.imatrix import read_imatrix
from moeinf.pull.gguf.index import check_runs
from moeinf.pull.source import parse_index
from moeinf.store.format import header_length, parse_header
from moeinf.store.manifest import parse
from moeinf.store.sums.checksums import dump_checksums, parse_checksums
from moeinf.types import SumRun
from tests.support.campaign.targets.target import Target, as_json, file_of, folder, refusing
from tests.support.gguf_bytes import Entry, header

_SIZES: Final = {"a": 100, "b": 8}  # of files that a table of checksums may name


def _safetensors(data: bytes) -> None:
    """A file's header: what is returned lies inside the file, without hole or overlap."""

    def read() -> None:
        length = header_length(data[:8], len(data), "x")
        found = parse_header(data[8 : 8 + length], len(data), "x")
        assert sum(each.num_bytes for each in found.values()) == len(data) - 8 - length
        assert all(8 + length <= each.offset_bytes <= len(data) for each in found.values())

    refusing(read)


def _index(data: bytes) -> None:
    """model.safetensors.index.json."""
    refusing(lambda: parse_index(data))


def _gguf(data: bytes) -> None:
    """A file's header, then the configuration, the tokenizer and the places of tensors that follow from it."""

    def read() -> None:
        found = parse_gguf(lambda offset, num_bytes: data[offset : offset + num_bytes], len(data), "x")
        assert found.header_bytes <= len(data)
        whole = join_parts([(folder() / "x.gguf", found)])
        for made in (config_of, tokenizer_files, check_runs):
            refusing(lambda made=made: made(whole))  # type: ignore[misc]

    refusing(read)


def _imatrix(data: bytes) -> None:
    """An importance matrix in either form."""
    refusing(lambda: read_imatrix(file_of(data, "imatrix")))


def _manifest(data: bytes) -> None:
    """A manifest that is read says the same when it is written and read again."""

    def read() -> None:
        found = parse(data, "x")
        assert parse(found.dumps(), "x") == found

    refusing(read)


def _checksums(data: bytes) -> None:
    """A table of checksums, whose digest is right: what is read says the same once it is written again."""

    def read() -> None:
        body = b"moeinf checksums 1\n" + data
        found = parse_checksums(body + hashlib.sha256(body).digest(), "x", _SIZES)
        again = parse_checksums(dump_checksums(found), "x", _SIZES)
        for one, other in zip(found, again, strict=True):
            assert (one.file, one.start, one.num_bytes, one.unit_bytes) == (
                other.file,
                other.start,
                other.num_bytes,
                other.unit_bytes,
            )
            assert np.array_equal(one.sums, other.sums)

    refusing(read)


def _safetensors_seeds() -> list[bytes]:
    tensors = {"a": {"dtype": "F16", "shape": [2, 1], "data_offsets": [0, 4]}}
    found = json.dumps(tensors | {"__metadata__": {"format": "pt"}}).encode()
    return [len(found).to_bytes(8, "little") + found + bytes(4)]


def _gguf_seeds() -> list[bytes]:
    metadata: dict[str, Any] = {
        "general.architecture": "qwen3moe",
        "general.alignment": 32,
        "qwen3moe.block_count": 1,
        "qwen3moe.context_length": 64,
        "qwen3moe.embedding_length": 32,
        "qwen3moe.expert_count": 2,
        "qwen3moe.expert_used_count": 1,
        "qwen3moe.expert_feed_forward_length": 32,
        "qwen3moe.feed_forward_length": 32,
        "qwen3moe.attention.head_count": 2,
        "qwen3moe.attention.head_count_kv": 1,
        "qwen3moe.attention.key_length": 16,
        "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3moe.rope.freq_base": 1e4,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return [b"GGUF\x03\0\0\0" + bytes(16), header(metadata, [Entry("token_embd.weight", (32, 3))])]


def _checksum_seeds() -> list[bytes]:
    runs = [SumRun("a", 0, 100, 64, np.arange(2, dtype=np.uint32)), SumRun("b", 0, 8, 8, np.ones(1, np.uint32))]
    return [dump_checksums(runs)[len(b"moeinf checksums 1\n") : -32]]


def _imatrix_seeds() -> list[bytes]:
    words = (1).to_bytes(4, "little"), (4).to_bytes(4, "little")
    older = words[0] + words[1] + b"name" + words[0] + words[1] + bytes(16) + words[0] + words[1] + b"text"
    tensors = [Entry("a.in_sum2", (4, 1)), Entry("a.counts", (1, 1), offset=32)]
    newer = header({"general.type": "imatrix", "imatrix.chunk_count": 1, "imatrix.chunk_size": 512}, tensors)
    return [older, newer + bytes(-len(newer) % 32 + 64)]


TARGETS: Final = {
    "safetensors": Target(_safetensors, _safetensors_seeds, lambda: ("BF16", "F8_E4M3", "dtype", "I64")),
    "index": Target(
        _index, lambda: as_json({"metadata": {}, "weight_map": {"a.b": "model-00001-of-00002.safetensors"}})
    ),
    "gguf": Target(_gguf, _gguf_seeds),
    "imatrix": Target(_imatrix, _imatrix_seeds),
    "manifest": Target(_manifest, lambda: [b"{}"]),
    "checksums": Target(_checksums, _checksum_seeds),
}
