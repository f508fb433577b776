"""A decoder of the reference and ours over the same weights."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.decoder import Decoder
from moeinf.pull.checkpoint.tensor_names import plan_name
from moeinf.types import Profiler
from tests.support.pairs.experts import read_by, resident_experts, stored
from tests.support.tiny_models import all_configs, reference

CONFIGS = all_configs()


class Pair:
    """A model of the reference, mostly transformers, and ours over the same weights, as save_pretrained wrote them."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        torch.manual_seed(7)
        self.folder, self.theirs = folder, reference(config)
        with torch.no_grad():
            for name, parameter in (*self.theirs.named_parameters(), *self.theirs.named_buffers()):
                if "norm" in name or name.endswith(("bias", ".D")):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        self.theirs.save_pretrained(folder)
        self.config = saved = json.loads((folder / "config.json").read_text())
        family = family_of(saved)
        assert isinstance(family, DecoderFamily)
        self.plan = family.tensors
        found = read_by(self.plan, safetensors.torch.load_file(folder / "model.safetensors"))
        self.tensors = {plan_name(name, self.plan): tensor for name, tensor in found.items()}
        self.info = family.info("f32")
        self.kernels = Kernels(2)
        experts = resident_experts(self.plan, self.tensors, self.kernels)
        weights = NativeLayers(self.kernels, {name: stored(tensor) for name, tensor in self.tensors.items()}, "f32")
        self.ours = family.build(weights, experts, Profiler())

    @cached_property
    def their_tokens(self) -> list[int]:
        """64 greedy ones behind the prompt."""
        made = self.theirs.generate(
            torch.tensor([PROMPT]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        return list(made[0, len(PROMPT) :].tolist())


PROMPT = [5, 17, 3, 88, 41, 41, 2, 60, 9, 33, 75, 14, 96, 22, 8, 51, 7]


def their_logits(pair: Pair) -> Tensor:
    """Of the prompt: [tokens, vocabulary]."""
    found: Tensor = pair.theirs(torch.tensor([PROMPT])).logits[0]
    return found


def our_tokens(pair: Pair) -> list[int]:
    cache, tokens = pair.ours.new_cache(256), list(PROMPT)
    made: list[int] = []
    while len(made) < 64:
        made.append(int(pair.ours.forward(tokens, cache)[-1].argmax()))
        tokens = made[-1:]
    return made


def logits(model: Decoder, chunks: list[list[int]]) -> Tensor:
    cache, whole = model.new_cache(256), sum(map(len, chunks))
    return torch.cat(
        [torch.from_numpy(model.forward(chunk, cache, of_tokens=whole, last_only=False)) for chunk in chunks]
    )
