"""A checkpoint of the reference that is changed before it is pulled, and the decoder that the store then has."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import ExpertKernel, Kernels
from moeinf.config.pull_options import PullOptions
from moeinf.engine.stored.outline import outline_of
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import AnyFamily, family_of
from moeinf.pull.events import SilentProgress
from moeinf.pull.pull import pull
from moeinf.store.format import shard_file
from moeinf.store.library import StoredModel
from moeinf.types import Profiler
from tests.oracles.resident_experts import ResidentExperts
from tests.support.checkpoints import write_tokenizer
from tests.support.pairs.experts import stored as stored_tensor
from tests.support.tiny_models import reference

Tensors = dict[str, Tensor]


class Notes(SilentProgress):
    """What a pull tells its user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def objects(config: Mapping[str, Any]) -> Iterator[Any]:
    """The objects of a config.json that may say how its embedding and its head belong together, the outermost first."""
    yield config
    for name in ("thinker_config", "text_config", "llm_config"):
        if isinstance(config.get(name), dict):
            yield from objects(config[name])


def written(config: dict[str, Any], folder: Path, auto_class: str = "AutoModelForCausalLM") -> Any:
    """The reference over random weights, saved in the folder with what a pull needs beside them."""
    torch.manual_seed(7)
    theirs = reference(config, auto_class)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name or name.endswith(("bias", ".D")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    folder.mkdir(parents=True)
    theirs.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    write_tokenizer(folder)
    return theirs


def change(folder: Path, tensors: Callable[[Tensors], Tensors] = dict, config: Callable[[Any], object] = id) -> None:
    """Writes the checkpoint anew: tensors makes others of those that are there, config changes config.json."""
    path = folder / "model.safetensors"
    found = {name: tensor.contiguous().clone() for name, tensor in tensors(safetensors.torch.load_file(path)).items()}
    safetensors.torch.save_file(found, path, metadata={"format": "pt"})
    saved = json.loads((folder / "config.json").read_text())
    config(saved)
    (folder / "config.json").write_text(json.dumps(saved))


def pulled(folder: Path, quant: str = "keep") -> tuple[StoredModel, list[str]]:
    notes = Notes()
    stored = pull(str(folder), PullOptions(name="tiny", quant=quant), home=folder.parent / "home", progress=notes)
    return stored, notes.lines


def stored_names(stored: StoredModel) -> set[str]:
    """Of the tensors in the dense file."""
    return set(safetensors.torch.load_file(stored.dense_path))


def built(stored: StoredModel) -> Any:
    """The model as it runs: dense weights and experts are those of the store."""
    outline_of(stored)  # which compares the store with its config.json
    manifest, kernels = stored.manifest, Kernels(1)
    family: AnyFamily = family_of(json.loads((stored.path / "config.json").read_text()))
    layout, moe = manifest.layout, manifest.moe
    blocks = [(stored.path / shard_file(layer)).read_bytes() for layer in range(moe.num_layers)]
    starts = [sum(map(len, blocks[:layer])) for layer in range(moe.num_layers)]
    memory = torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.uint8).numpy()
    parts = {t.name: (str(t.dtype), t.shape[0], math.prod(t.shape[1:]), t.offset_bytes) for t in layout.tensors}
    kernel = ExpertKernel(kernels, memory, parts, family.tensors.forms)
    experts = ResidentExperts(kernel, lambda layer, expert: starts[layer] + expert * layout.stride_bytes)
    dense = {name: stored_tensor(each) for name, each in safetensors.torch.load_file(stored.dense_path).items()}
    return family.build(NativeLayers(kernels, dense, "f32"), experts, Profiler())
