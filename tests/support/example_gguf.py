"""One file of each architecture that moeinf reads, and what becomes of it with other tensors and fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.gguf.config import config_of
from moeinf.gguf.configs.hybrids import HYBRIDS
from moeinf.gguf.configs.latent_config import LATENT
from moeinf.gguf.configs.plain import ARCHITECTURES
from moeinf.gguf.configs.qwen import QWEN
from moeinf.gguf.configs.windows import WINDOWED
from moeinf.gguf.configs.without_experts import DENSE
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import Gguf, GgufTensor, read_gguf
from moeinf.gguf.placement import Placement
from moeinf.models.family import family_of
from tests.support.converter.record import checkpoint
from tests.support.converter.recorded import recorded
from tests.support.deepseek41_gguf import write_deepseek41
from tests.support.gguf_files import write_gguf
from tests.support.kimi_k3_gguf import published_k3, write_kimi_k3
from tests.support.own_gguf import WRITTEN, drawn_small, write_own

SUPPORTED = sorted(ARCHITECTURES | DENSE | HYBRIDS | LATENT | QWEN | WINDOWED)
EXAMPLES = {each["architecture"]: name for name, each in reversed(list(recorded().items()))}  # the first of each
EXAMPLES |= {"deepseek41": "deepseek_v41", "kimi-k3": "kimi_k3"}
EXAMPLES |= {each.architecture: family for family, each in WRITTEN.items()}


@cache
def example(architecture: str) -> Gguf:
    path = Path(_folder().name) / f"{architecture}.gguf"
    if architecture == "deepseek41":
        return read_gguf(write_deepseek41(path, {}))
    if architecture == "kimi-k3":
        return read_gguf(write_kimi_k3(path, published_k3(), {}))
    if EXAMPLES[architecture] in WRITTEN:
        return read_gguf(write_own(path, EXAMPLES[architecture], drawn_small(EXAMPLES[architecture])))
    config, tensors = checkpoint(EXAMPLES[architecture])
    return read_gguf(write_gguf(path, config, tensors)[0])


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()  # goes with the process


def placed(gguf: Gguf) -> Placement:
    return places_of(gguf, family_of(config_of(gguf)).tensors)


def beside(gguf: Gguf, *tensors: tuple[str, tuple[int, ...]]) -> Gguf:
    """The file with more tensors of f32, whose numbers are any."""
    more = {name: GgufTensor(name, "f32", shape, 0, 0, 4 * math.prod(shape)) for name, shape in tensors}
    return replace(gguf, tensors={**gguf.tensors, **more})


def saying(gguf: Gguf, fields: Mapping[str, Any]) -> Gguf:
    """The file with other fields of its architecture."""
    more = {f"{gguf.metadata['general.architecture']}.{name}": value for name, value in fields.items()}
    return replace(gguf, metadata={**gguf.metadata, **more})


def refusal(gguf: Gguf) -> str:
    """The line with which it is refused."""
    with pytest.raises(CheckpointError) as caught:
        placed(gguf)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 400 and "fetch" not in line, line
    return line


def last_layer(gguf: Gguf) -> int:
    """The last with experts, or with the MLP of a dense model."""
    return max(int(name.split(".")[1]) for name in gguf.tensors if re.search(r"\.ffn_down(_exps)?\.weight$", name))
