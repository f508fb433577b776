"""GGUF files whose layers and parts of experts differ in type."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from moeinf.pull.pull import ensure
from moeinf.store.library import StoredModel
from tests.support.checkpoints import CONFIG, TOKENIZER, random_tensors
from tests.support.gguf_files import Kinds, write_gguf

MIXED = ("Q4_K", "Q8_0", "Q6_K", "Q5_K", "BF16", "IQ4_XS", "F32", "Q3_K", "MXFP4", "Q4_0")
WIDE = CONFIG | {"hidden_size": 256, "num_hidden_layers": 3}  # rows of whole blocks of every type


def without_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets files be indexed that have none: where weights are the subject."""
    files = {"tokenizer.json": json.dumps(TOKENIZER).encode(), "tokenizer_config.json": b"{}"}
    monkeypatch.setattr("moeinf.pull.gguf.index.tokenizer_files", lambda gguf, note: files)


def small(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In f32, and matrices less; but whole numbers, which name something."""
    return {
        name: (tensor.float() / 8 if tensor.ndim > 1 else tensor.float()) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def by_turns(types: Sequence[str]) -> Kinds:
    """These for the parts of experts, layer by layer; and for dense tensors but what host memory looks up or widens.

    Every other dense tensor is of q8_0: the type that most have says how keys and values are kept. The gate of a shared
    expert has the type of its other half, and keys of an indexer that of its queries: some families have both in one
    matrix, which mixed types would widen.
    """
    halves: dict[str, str] = {}
    experts = itertools.cycle(types)
    dense = itertools.cycle(chain.from_iterable(("Q8_0", each) for each in types))

    def kind(name: str) -> str:
        if re.search(r"token_embd|attn_(k|v|kv)_b|ssm_|hc_\w+_inject|ple_conv1d", name):
            return "BF16"
        half = re.fullmatch(r"(.*(?:ffn|indexer))[._](?:gate_shexp|up_shexp|[qk]_proj)\.weight", name)
        if half is not None:
            return halves.setdefault(half[1], next(dense))
        return next(experts if "exps" in name else dense)

    return kind


def wide_model(folder: Path, types: Sequence[str], name: str = "wide", num_layers: int = 3, **how: Any) -> StoredModel:
    """A model in these types by turns, of which any fits its rows; how: see write_gguf."""
    config = WIDE | {"num_hidden_layers": num_layers}
    tensors = small(random_tensors(config))
    [file] = write_gguf(folder / f"{name}.gguf", config, tensors, kinds=by_turns(types), **how)
    return ensure(str(file), home=folder / "home")
