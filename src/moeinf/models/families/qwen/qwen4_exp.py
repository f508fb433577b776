"""Qwen3.8-Flash-Next, the language model of it: Qwen3-Next's layers between hyper-connections.

Attention goes to blocks of tokens that an indexer chooses; in front of some DeltaNet layers n-grams of the last tokens
are looked up in a table that is larger than the rest of the dense weights. Checkpoints hold a model of images beside it
(`model.visual.*`), which is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.families.qwen.qwen3_next import MTP
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.block_sparse import (
    BlockIndex,
    BlockSparsePart,
    block_index_shapes,
    block_index_workspace,
    index_token_bytes,
    parse_index,
)
from moeinf.models.layers.attention.grouped import attention_shapes, attention_workspace
from moeinf.models.layers.attention_config import Gate, HeadNorms, Shapes, Sight
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.protocol import Attention, Experts, Layers
from moeinf.models.layers.recurrent.delta_config import DeltaConfig, delta_shapes, delta_workspace
from moeinf.models.layers.recurrent.delta_net import DeltaNetPart
from moeinf.models.layers.streams.gated_residual import (
    GatedResidual,
    StreamsConfig,
    gated_residual_shapes,
    streams_workspace,
)
from moeinf.models.layers.streams.hyper import StreamedAttention, streamed
from moeinf.models.layers.streams.ngram_layer import (
    Given,
    NgramLayer,
    NgramLayerConfig,
    WithNgrams,
    ngram_layer_shapes,
    ngram_layer_workspace,
)
from moeinf.models.layers.streams.ngrams import NgramConfig
from moeinf.models.layers.streams.spread import Columns, NgramColumns, NoColumns, StreamsStem
from moeinf.models.text_part import VISION, text_part
from moeinf.types import Expected, JsonObject, Profiler, TensorPlan, Workspace

_LINEAR = "linear_attention"
_MIXER = "hyper_connection_mixer."


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    blocks: Moe
    delta: DeltaConfig
    index: BlockIndex
    linear_layers: frozenset[int]  # that have DeltaNet instead of attention
    streams: StreamsConfig
    ngrams: NgramConfig | None
    ngram_layer: NgramLayerConfig | None

    @staticmethod
    def parse(f: Fields, prefix: str) -> Config:
        f.only("output_gate_type", "silu", "sigmoid", None)
        f.only("decoder_sparse_step", 1, None)
        f.only("mlp_only_layers", [], None)
        f.present("head_dim")
        decoder = parse_decoder(
            f, norm_eps=1e-6, theta=1e4, partial=1.0, head_norms=HeadNorms(), gate=Gate(), norm="rms+1"
        )
        index = parse_index(f, decoder.attention)
        attention = replace(decoder.attention, sight=Sight(most_chosen=index.most))
        decoder = replace(
            decoder.named(norms=LayerNorms(attention=None, block=None), last_norm=None, prefix=prefix),
            attention=attention,
            replaces=True,
        )
        num_layers, hidden = decoder.num_layers, attention.hidden_size
        delta = DeltaConfig.parse(f, hidden, attention.norm_eps, stacked=False)
        streams = StreamsConfig(
            f.count("hc_count", 4, minimum=2, maximum=64), hidden, f.count("hc_lowrank", 320), attention.norm_eps
        )
        ngrams = NgramConfig.parse(f, hidden, decoder.vocab_size, num_layers)
        kernel = f.count("ple_conv_kernel_size", 4, minimum=2)
        return Config(
            decoder,
            qwen_moe(f, num_layers, norm_topk_prob=True),
            replace(delta, sigmoid_gates=f.get("output_gate_type") == "sigmoid"),
            index,
            _linear_layers(f, num_layers),
            streams,
            ngrams,
            None if ngrams is None else NgramLayerConfig(streams, ngrams.embed_dim, kernel, ngrams.size),
        )


def _linear_layers(f: Fields, num_layers: int) -> frozenset[int]:
    every = f.count("full_attention_interval", 4)
    kinds = f.kinds("layer_types", num_layers, _LINEAR, "full_attention", "indexed_attention") or tuple(
        _LINEAR if (i + 1) % every else "indexed_attention" for i in range(num_layers)
    )
    return frozenset(i for i, kind in enumerate(kinds) if kind == _LINEAR)


class Family(DecoderFamily):
    name = "qwen4_exp"
    divisible = False

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config)
        c = self._config = Config.parse(text.fields, text.prefix)
        self.decoder, self.moe, self.num_shared_experts = c.decoder, c.blocks.moe, c.blocks.num_shared_experts

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, weights, given = self._config, layers.weights, Given()
        d = c.decoder
        blocks = c.blocks.make(d, layers, experts, profiler)
        ngrams = self._ngram_layers(layers, given)
        attention = list[Attention]()
        for i in range(d.num_layers):
            prefix, layer = self._layer(i), self._attention(layers, i)
            layer = StreamedAttention(GatedResidual(weights, c.streams, f"{prefix}attn_hyper_connection."), layer)
            attention.append(WithNgrams(ngrams[i], layer) if i in ngrams else layer)
            connection = GatedResidual(weights, c.streams, f"{prefix}mlp_hyper_connection.")
            blocks[i] = streamed(connection, blocks[i])
        mixer = GatedResidual(weights, c.streams, d.prefix + _MIXER, writes=False)
        stem = StreamsStem(
            layers,
            d,
            c.streams.count,
            lambda x: mixer.read(x)[0],
            self._columns(layers),
            given,
            [each.new_state for each in ngrams.values()],
        )
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def _attention(self, layers: Layers, layer: int) -> Attention:
        c = self._config
        if layer in c.linear_layers:
            return layers.make(DeltaNetPart(c.delta, c.decoder.attention_site(layer, "linear_attn")))
        return layers.make(BlockSparsePart(c.decoder.attention, c.decoder.attention_site(layer), c.index))

    def _ngram_layers(self, layers: Layers, given: Given) -> dict[int, NgramLayer]:
        """By decoder layer; their states come behind those of the decoder layers."""
        c = self._config
        if c.ngrams is None or c.ngram_layer is None:
            return {}
        return {
            i: NgramLayer(
                layers.weights, c.ngram_layer, f"{self._layer(i)}ple.", given, table, c.decoder.num_layers + table
            )
            for table, i in enumerate(c.ngrams.layers)
        }

    def _columns(self, layers: Layers) -> Columns:
        c = self._config.ngrams
        if c is None:
            return NoColumns()
        return NgramColumns(layers, c, self._table_prefixes, self.decoder.num_layers + len(c.layers))

    def _layer(self, layer: int) -> str:
        return f"{self.decoder.prefix}layers.{layer}."

    @property
    def _table_prefixes(self) -> list[str]:
        c = self._config.ngrams
        return [] if c is None else [f"{self._layer(i)}ple.ple_embedding." for i in c.layers]

    # ---- the tensors of a checkpoint

    def attention_shapes(self) -> Shapes:
        c, shapes = self._config, Shapes()
        for i in range(c.decoder.num_layers):
            site = c.decoder.attention_site(i)
            if i in c.linear_layers:
                shapes |= delta_shapes(c.delta, f"{self._layer(i)}linear_attn.")
            else:
                shapes |= attention_shapes(c.decoder.attention, site.prefix)
                shapes |= block_index_shapes(site, c.decoder.attention.hidden_size, c.index)
            for part in ("attn", "mlp"):
                shapes |= gated_residual_shapes(c.streams, f"{self._layer(i)}{part}_hyper_connection.")
        return shapes | gated_residual_shapes(c.streams, c.decoder.prefix + _MIXER, writes=False)

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @property
    def _table_shapes(self) -> Shapes:
        c, shapes = self._config.ngrams, Shapes()
        for table, prefix in enumerate(self._table_prefixes if c is not None else ()):
            assert c is not None
            shapes |= c.shapes(table, prefix)
        return shapes

    @cached_property
    def dense(self) -> Shapes:
        c, shapes = self._config, super().dense | self._table_shapes
        for i in c.ngrams.layers if c.ngrams is not None else ():
            assert c.ngram_layer is not None
            shapes |= ngram_layer_shapes(c.ngram_layer, f"{self._layer(i)}ple.")
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.gated_experts(self._config.blocks.experts(self.decoder))
        ends = ("_proj_qkv.weight", "_proj_z.weight", "input_mix_weight_down.weight", "input_mix_weight_up.weight")
        matrices = {name for name in plan.dense if name.endswith(ends)} | self._table_shapes.keys()
        tables = "|".join(map(re.escape, self._table_prefixes))
        hashes = {rf"({tables})(layer_multipliers|ngram_heads_(vocab_sizes|offsets))": self._hash} if tables else {}
        return replace(
            plan,
            ahead=(MTP,),
            ignored=(*plan.ignored, VISION),
            follows={**plan.follows, **hashes},
            matrices=plan.matrices | matrices,
            lookups=plan.lookups | self._table_shapes.keys(),
        )

    def _hash(self, name: str) -> list[Expected]:
        """A table of what hashes n-grams."""
        prefix, _, kind = name.rpartition(".")
        assert self._config.ngrams is not None
        numbers = self._config.ngrams.hashes(self._table_prefixes.index(f"{prefix}."))[kind]
        return [Expected(np.array(numbers, np.int64))]

    # ---- what follows from them

    @property
    def attention_workspace(self) -> Workspace:
        c = self._config
        found = attention_workspace(c.decoder.attention) | delta_workspace(c.delta) | block_index_workspace(c.index)
        found |= streams_workspace(c.streams)
        if c.ngrams is not None and c.ngram_layer is not None:
            found |= ngram_layer_workspace(c.ngram_layer, len(c.ngrams.layers))
        return replace(found, token=found.token + self.streams_token)

    @property
    def streams_token(self) -> int:
        """Numbers of a token that the streams hold while a layer computes."""
        return self._config.streams.width + 2 * self._config.streams.hidden_size

    @property
    def _attending(self) -> int:
        return self.decoder.num_layers - len(self._config.linear_layers)

    @property
    def cache_numbers(self) -> int:
        a = self.decoder.attention
        return 2 * self._attending * a.num_kv_heads * a.head_dim

    @property
    def cache_bytes(self) -> int:
        return self._attending * index_token_bytes(self._config.index)

    @property
    def state_bytes(self) -> int:
        c = self._config
        found = len(c.linear_layers) * c.delta.state_bytes
        if c.ngrams is not None and c.ngram_layer is not None:
            found += len(c.ngrams.layers) * c.ngram_layer.state_bytes + 8 * (c.ngrams.size - 1)
        return found
