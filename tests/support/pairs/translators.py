"""An encoder-decoder model of the reference and ours over the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import EncoderDecoderFamily
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.protocol import ExpertsOf
from moeinf.sampling.beam_search import BeamSearch, search_beams
from moeinf.sampling.loop import Timing
from moeinf.types import Float32Array, Profiler, Routing
from tests.support.pairs.experts import resident_experts, stored
from tests.support.tiny_models import all_configs, reference

CONFIGS = all_configs("SEQ2SEQ_CONFIGS")

SOURCE = [5, 17, 3, 88, 41, 41, 2, 60, 9, 33, 75, 14, 96, 22, 8, 51, 7, 34, 35, 36, 37, 38, 39, 40, 41, 43]

ANSWER = [0, 5, 80, 21, 22, 68, 41, 9, 9, 53, 17, 90]  # not from the model: the tokens of which it is asked the logits

SHARPER = {"SelfAttention": 4, "self_attn": 4, "wi.": 6, "fc1": 6}


class Watched:
    """Experts, and which layers asked for them."""

    wants_expectations = False

    def __init__(self, experts: ExpertsOf[Float32Array, Routing]) -> None:
        self._experts = experts
        self.norm_outputs = experts.norm_outputs
        self.layers: list[int] = []

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        self.layers.append(layer)
        self._experts.run(layer, hidden, routing, out)

    def expect(self, layer: int, guess: Routing) -> None:
        pass


class Pair:
    """A model of the reference and ours over the same weights, as save_pretrained wrote them."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        torch.manual_seed(9)
        self.theirs = reference(config, "AutoModelForSeq2SeqLM")
        with torch.no_grad():
            for name, parameter in self.theirs.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                elif any(part in name for part in ("shared", "embed_tokens", "lm_head")):
                    # small beside what layers add, lest a tied head repeats the token
                    parameter.copy_(torch.randn_like(parameter) * 0.1)
                else:  # sharper than at the start of training, so that what is decoded varies
                    parameter.mul_(next((factor for part, factor in SHARPER.items() if part in name), 1))
        self.theirs.save_pretrained(folder)
        self.tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.config = saved = json.loads((folder / "config.json").read_text())
        family = family_of(saved)
        assert isinstance(family, EncoderDecoderFamily)
        own = [name for name in family.tensors.copies if name in self.tensors]
        self.plan, self.info = family.tensors.owning(own), family.info("f32")
        self.own_params = sum(self.tensors[name].numel() for name in own)
        kernels = Kernels(1)
        self.experts = Watched(resident_experts(self.plan, self.tensors, kernels))
        weights = NativeLayers(kernels, {name: stored(tensor) for name, tensor in self.tensors.items()}, "f32")
        self.ours = family.build(weights, self.experts, Profiler())


def their_logits(pair: Pair) -> Tensor:
    """Token by token, as it generates: a pass of several would count them against the experts' capacity."""
    source, past, rows = pair.theirs.get_encoder()(torch.tensor([SOURCE])), None, []
    for token in ANSWER:
        out = pair.theirs(
            encoder_outputs=source, decoder_input_ids=torch.tensor([[token]]), past_key_values=past, use_cache=True
        )
        past = out.past_key_values
        rows.append(out.logits[0])
    return torch.cat(rows)


def their_tokens(pair: Pair) -> list[int]:
    """64 greedy ones."""
    made = pair.theirs.generate(
        torch.tensor([SOURCE]), max_new_tokens=64, do_sample=False, eos_token_id=None, num_beams=1
    )
    return list(made[0, 1:].tolist())


def our_tokens(pair: Pair) -> list[int]:
    cache = pair.ours.new_cache(80)
    pair.ours.encode(SOURCE, cache)
    made = [int(pair.config["decoder_start_token_id"])]
    while len(made) < 65:
        made.append(int(pair.ours.forward(made[-1:], cache)[-1].argmax()))
    return made[1:]


def logits(model: EncoderDecoder, chunks: list[list[int]]) -> Tensor:
    cache = model.new_cache(64)
    model.encode(SOURCE, cache)
    return torch.cat([torch.from_numpy(model.forward(chunk, cache, last_only=False)) for chunk in chunks])


class OneSequence:
    """moeinf.sampling.beam_search.EncoderDecoderModel of a network, and its monitor, which lets it go on."""

    def __init__(self, network: Any, num_beams: int) -> None:
        self.timing, self.cache = Timing(), network.new_cache(80, num_beams)
        self._network = network

    def encode(self, token_ids: Sequence[int], between_layers: Callable[[], None]) -> None:
        self._network.encode(token_ids, self.cache, between_layers)

    def forward(
        self, token_ids: Sequence[int], between_layers: Callable[[], None], *, of_tokens: int = 0
    ) -> Float32Array:
        logits: Float32Array = self._network.forward(token_ids, self.cache, between_layers, of_tokens=of_tokens)
        return logits

    def keep_beams(self, beams: Sequence[int]) -> None:
        self.cache.keep(beams)

    def check(self) -> None: ...

    def gives_way(self) -> bool:
        return False

    def begin(self, phase: str) -> None: ...

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None: ...


def searched(pair: Pair, search: BeamSearch, num_tokens: int, forced: list[int]) -> list[int]:
    model = OneSequence(pair.ours, search.num_beams)
    start = [pair.config["decoder_start_token_id"], *forced]
    model.encode(SOURCE, model.check)
    return start + list(search_beams(model, start, search, model, max_tokens=num_tokens))
