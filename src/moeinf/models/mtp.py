"""A layer that guesses at the token after the next one (multi-token prediction, MTP), as a model of its own.

Its row i is made of what the head of the published model is given of token i, and of the embedding of token i + 1; a
layer of attention and experts and a norm make of it what that head makes logits of token i + 2 of (DeepSeek-V3, arXiv
2412.19437, section 2.2). Embedding and head are the published model's, which lends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import Connections, DecoderFamily, Spec
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import HEAD, Decoder, DecoderConfig, Ends
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.streams.stem import PlainStem
from moeinf.types import Float32Array, Json, JsonObject, Profiler, TensorPlan, Workspace

MODEL_TYPE: Final = "mtp"  # of moeinf's own config.json
# Whose layer that guesses is one of attention and experts, as their others are.
KNOWN: Final = frozenset(("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text", "deepseek_v3", "glm4_moe", "glm4_moe_lite"))
# What a config.json says of a model of one layer that has experts and attends to all tokens.
_ONE_LAYER: Final[Mapping[str, Json]] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "full_attention_interval": 1,
    "layer_types": ["full_attention"],
    "mlp_layer_types": ["sparse"],
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "num_mtp_layers": 0,
}
_OTHERWISE: Final[Mapping[str, Mapping[str, Json]]] = {
    "glm4_moe_lite": {"first_k_dense_replace": None, "mlp_layer_types": ["sparse"]}
}
_OWN: Final = "mtp."  # what its tensors begin with that no other layer has


def mtp_config(config: JsonObject) -> JsonObject:
    """The config.json of the layer that guesses, by that of the model. Raises UnsupportedModelError."""
    of = {key: value for key, value in config.items() if key not in ("vision_config", "quantization_config")}
    nested = of.get("text_config")
    text: JsonObject = nested if isinstance(nested, dict) else of
    layers = Fields(text).count("num_hidden_layers")
    one = {key: value for key, value in _ONE_LAYER.items() if key in text or key == "num_nextn_predict_layers"}
    one |= _OTHERWISE.get(str(config.get("model_type")), {})
    of = of | {"text_config": text | one} if text is nested else of | one
    above = {key: value for key, value in config.items() if key == "quantization_config"}
    return one_layer(of, layers) | above


def one_layer(of: JsonObject, behind: int = 0) -> JsonObject:
    """The config.json of a layer that guesses. of: of a model whose only layer it would be. behind: how many layers are
    in front of it in a checkpoint. Raises UnsupportedModelError."""
    if str(of.get("model_type")) not in KNOWN:
        raise UnsupportedModelError(
            f"moeinf does not run the layers of {of.get('model_type')!r:.100} that guess tokens, only those of "
            f"{', '.join(sorted(KNOWN))}"
        )
    return {"model_type": MODEL_TYPE, "of": of, "behind": behind}


_NORMS: Final = ("enorm", "hnorm")  # of the token's row, and of what was before it


def _nobody(given: object) -> Array:
    raise AssertionError("the model has not lent its embedding and its head")


class MtpStem(PlainStem):
    """Norms of both rows that a token's is made of, and the matrix that makes one of them."""

    def __init__(self, layers: Layers, config: DecoderConfig) -> None:
        super().__init__(_nobody)
        weights, norm = layers.weights, config.attention.norm
        self._norms = [weights.norm(NormConfig(f"{_OWN}{n}.weight", config.norm_eps(0), norm)) for n in _NORMS]
        self._product, self._math = weights.linear(f"{_OWN}eh_proj.weight"), weights.math
        self.hidden: Array | None = None  # [tokens, hidden_size], of the tokens in front of those of the next pass

    def lend(self, embedding: Callable[[Sequence[int]], Array]) -> None:
        self._embedding = embedding

    def inputs(self, ids: Sequence[int], cache: Cache) -> Array:
        assert self.hidden is not None, "the caller says behind what the tokens come"
        return self._math.concatenate([super().inputs(ids, cache), self.hidden], 1)

    def begin(self, x: Array) -> Hidden:
        half = x.shape[1] // 2
        token, hidden = (norm(each) for norm, each in zip(self._norms, (x[:, :half], x[:, half:]), strict=True))
        return self._product(self._math.concatenate([token, hidden], 1))


class MtpDecoder(Decoder):
    """The layer that guesses, which runs on the CPU."""

    _stem: MtpStem

    def _ends(self) -> Ends:
        return Ends(_nobody, _nobody)

    def lend(self, model: Decoder) -> None:
        """Takes embedding and head of the model that it guesses for, which is open as long."""
        self.ends = model.ends
        self._stem.lend(self.ends.embedding)

    def guess(self, ids: Sequence[int], hidden: Float32Array, cache: Cache) -> tuple[Float32Array, Float32Array]:
        """ids: tokens that follow those of which `hidden` [tokens, hidden_size] is what the head was given, and behind
        what the cache holds. Returns the logits [1, vocab] of what follows the last of them, and what the head was
        given of that [1, hidden_size]."""
        rows = list[Float32Array]()
        cache.on_hidden = lambda length, found: rows.append(found)
        self._stem.hidden = hidden
        logits = self.forward(ids, cache)
        return logits, rows[0][-1:]


class _Connections(Connections):
    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        attention, blocks = spec.attention(layers), spec.blocks.make(spec.decoder, layers, experts, profiler)
        stem = MtpStem(layers, spec.decoder)
        return MtpDecoder(spec.decoder, layers, blocks, experts, profiler, attention, stem)


class Family(DecoderFamily):
    name = MODEL_TYPE
    divisible = False

    def __init__(self, config: JsonObject, inner: DecoderFamily) -> None:
        """inner: of the model whose only layer it would be, `of` in the config."""
        self._inner, self._behind = inner, Fields(config).count("behind", minimum=0)
        self.take(replace(inner.spec, connections=_Connections()))

    @cached_property
    def tensors(self) -> TensorPlan:
        plan, d = self._inner.tensors, self.decoder
        lent = {d.embedding, d.head, HEAD}
        hidden = d.attention.hidden_size
        own: Shapes = {f"{_OWN}{name}.weight": (hidden,) for name in _NORMS}
        own[f"{_OWN}eh_proj.weight"] = (hidden, 2 * hidden)
        return replace(
            plan,
            dense={name: shape for name, shape in plan.dense.items() if name not in lent} | own,
            matrices=(plan.matrices - lent) | {f"{_OWN}eh_proj.weight"},
            lookups=plan.lookups - lent,
            head=None,
            copies={},
            tied_head=None,
            ahead=(),
            ignored=(*plan.ignored, *self._left_out),
            renamed={**self._renamed, **plan.renamed},
            vision={},
        )

    @property
    def _renamed(self) -> dict[str, str]:
        """What its tensors are called in the checkpoint of the model, which names them in one of two ways."""
        d, behind = self.decoder, rf"^.*?{re.escape(self.decoder.names.layers)}\.{self._behind}\."
        norm = f"{d.prefix}{d.names.last_norm}."
        return {
            r"^mtp\.fc\.": f"{_OWN}eh_proj.",
            r"^mtp\.pre_fc_norm_embedding\.": f"{_OWN}enorm.",
            r"^mtp\.pre_fc_norm_hidden\.": f"{_OWN}hnorm.",
            r"^mtp\.norm\.": norm,
            r"^mtp\.layers\.0\.": d.layer(0),
            rf"{behind}(eh_proj|enorm|hnorm)\.": rf"{_OWN}\1.",
            rf"{behind}shared_head\.norm\.": norm,
            rf"{behind}(?!shared_head\.|embed_tokens\.)": d.layer(0),
        }

    @property
    def _left_out(self) -> tuple[str, ...]:
        """Copies of what the model lends, and layers that guess further tokens."""
        of_layer = rf".*layers\.{self._behind}\.(shared_head\.head|embed_tokens)\..*"
        later = "|".join(str(self._behind + more) for more in range(1, 8))
        return (of_layer, rf".*layers\.({later})\..*", r"mtp\.layers\.[1-9].*", r"mtp\.(embed_tokens|lm_head)\..*")

    @property
    def workspace(self) -> Workspace:
        hidden = self.decoder.attention.hidden_size
        return super().workspace | Workspace(token=4 * hidden, inputs=2 * hidden)
