"""Qwen3.8-Flash-Next: Qwen3-Next's layers between hyper-connections, and Qwen3.5's tower, which sees pictures.

Attention goes to blocks of tokens that an indexer chooses; in front of some DeltaNet layers n-grams of the last tokens
are looked up in a table that is larger than the rest of the dense weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.families.qwen.qwen3_next import MTP
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Connections, DecoderFamily, Spec
from moeinf.models.layers.attention.block_sparse import BlockSparse, parse_index
from moeinf.models.layers.attention_config import Gate, HeadNorms, Shapes, Sight
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.delta_net import delta_mixer
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
from moeinf.models.layers.vision.picture_positions import turned_by_pictures
from moeinf.models.layers.vision.qwen_vision import qwen_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import VISION, text_part
from moeinf.types import Expected, JsonObject, Profiler, TensorPlan, Workspace

_LINEAR = "linear_attention"
_MIXER = "hyper_connection_mixer."
_PARTS = ("attn_hyper_connection.", "mlp_hyper_connection.")


_IDS = (248053, 248056, 248054)  # of what stands in front of a picture, of one, and of what stands behind it


def _parse(config: JsonObject) -> Spec:
    text = text_part(config)
    f, prefix = text.fields, text.prefix
    f.only("output_gate_type", "silu", "sigmoid", None)
    f.fixed(decoder_sparse_step=1, mlp_only_layers=[])
    f.present("head_dim")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, partial=1.0, head_norms=HeadNorms(), gate=Gate(), norm="rms+1")
    index = parse_index(f, decoder.attention)
    rope = turned_by_pictures(config, decoder.attention.rope, [11, 11, 10])
    attention = replace(decoder.attention, sight=Sight(most_chosen=index.most), rope=rope)
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
    if ngrams is not None:
        ngrams = replace(ngrams, picture_id=Fields(config).count("image_token_id", _IDS[1]))
    kernel = f.count("ple_conv_kernel_size", 4, minimum=2)
    delta = replace(delta, sigmoid_gates=f.get("output_gate_type") == "sigmoid")
    linear, sparse = delta_mixer(delta), BlockSparse(attention, index)
    linear_layers = _linear_layers(f, num_layers)
    lookup = None if ngrams is None else NgramLayerConfig(streams, ngrams.embed_dim, kernel, ngrams.size)
    connections = GatedConnections(streams, ngrams, lookup)
    return Spec(
        decoder,
        qwen_moe(f, num_layers, norm_topk_prob=True),
        {i: linear if i in linear_layers else sparse for i in range(num_layers)},
        connections,
        amended=partial(connections.with_tables, decoder),
    )


def _linear_layers(f: Fields, num_layers: int) -> frozenset[int]:
    every = f.count("full_attention_interval", 4)
    kinds = f.kinds("layer_types", num_layers, _LINEAR, "full_attention", "indexed_attention") or tuple(
        _LINEAR if (i + 1) % every else "indexed_attention" for i in range(num_layers)
    )
    return frozenset(i for i, kind in enumerate(kinds) if kind == _LINEAR)


@dataclass(frozen=True, slots=True)
class GatedConnections(Connections):
    """Layers whose outputs replace their inputs, between streams, some behind n-grams that are looked up."""

    streams: StreamsConfig
    ngrams: NgramConfig | None
    ngram_layer: NgramLayerConfig | None

    @property
    def state_bytes(self) -> int:
        if self.ngrams is None or self.ngram_layer is None:
            return 0
        return len(self.ngrams.layers) * self.ngram_layer.state_bytes + 8 * (self.ngrams.size - 1)

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes = gated_residual_shapes(self.streams, decoder.prefix + _MIXER, writes=False) | self._tables(decoder)
        for i in range(decoder.num_layers):
            for part in _PARTS:
                shapes |= gated_residual_shapes(self.streams, decoder.layer(i) + part)
        for i in self.ngrams.layers if self.ngrams is not None else ():
            assert self.ngram_layer is not None
            shapes |= ngram_layer_shapes(self.ngram_layer, f"{decoder.layer(i)}ple.")
        return shapes

    def _prefixes(self, decoder: DecoderConfig) -> list[str]:
        """Of the tensors of each table."""
        layers = () if self.ngrams is None else self.ngrams.layers
        return [f"{decoder.layer(i)}ple.ple_embedding." for i in layers]

    def _tables(self, decoder: DecoderConfig) -> Shapes:
        shapes = Shapes()
        for table, prefix in enumerate(self._prefixes(decoder)):
            assert self.ngrams is not None
            shapes |= self.ngrams.shapes(table, prefix)
        return shapes

    def with_tables(self, decoder: DecoderConfig, plan: TensorPlan) -> TensorPlan:
        c, prefixes, tables = self.ngrams, self._prefixes(decoder), self._tables(decoder).keys()
        if c is None:
            return plan

        def hashes(name: str) -> list[Expected]:
            """What hashes n-grams, of a table."""
            prefix, _, kind = name.rpartition(".")
            return [Expected(np.array(c.hashes(prefixes.index(f"{prefix}."))[kind], np.int64))]

        of_tables = "|".join(map(re.escape, prefixes))
        follows = {rf"({of_tables})(layer_multipliers|ngram_heads_(vocab_sizes|offsets))": hashes}
        return replace(
            plan, matrices=plan.matrices | tables, lookups=plan.lookups | tables, follows={**plan.follows, **follows}
        )

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        found = mixers | streams_workspace(self.streams)
        if self.ngrams is not None and self.ngram_layer is not None:
            found |= ngram_layer_workspace(self.ngram_layer, len(self.ngrams.layers))
        while_a_layer_computes = self.streams.width + 2 * self.streams.hidden_size
        return replace(found, token=found.token + while_a_layer_computes)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, weights, given, c = spec.decoder, layers.weights, Given(), self.streams
        attention, blocks = spec.attention(layers), list(spec.blocks.make(d, layers, experts, profiler))
        ngrams = self._ngram_layers(d, layers, given)
        for i in range(d.num_layers):
            in_front, behind = (GatedResidual(weights, c, d.layer(i) + part) for part in _PARTS)
            attention[i], blocks[i] = StreamedAttention(in_front, attention[i]), streamed(behind, blocks[i])
            if i in ngrams:
                attention[i] = WithNgrams(ngrams[i], attention[i])
        mixer = GatedResidual(weights, c, d.prefix + _MIXER, writes=False)
        states, columns = [each.new_state for each in ngrams.values()], self._columns(d, layers)
        stem = StreamsStem(layers, d, c.count, lambda x: mixer.read(x)[0], columns, given, states)
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def _ngram_layers(self, decoder: DecoderConfig, layers: Layers, given: Given) -> dict[int, NgramLayer]:
        """By decoder layer; their states come behind those of the decoder layers."""
        c, made = self.ngram_layer, dict[int, NgramLayer]()
        for table, i in enumerate(self.ngrams.layers if self.ngrams is not None else ()):
            assert c is not None
            prefix = f"{decoder.layer(i)}ple."
            made[i] = NgramLayer(layers.weights, c, prefix, given, table, decoder.num_layers + table)
        return made

    def _columns(self, decoder: DecoderConfig, layers: Layers) -> Columns:
        c = self.ngrams
        if c is None:
            return NoColumns()
        return NgramColumns(layers, c, self._prefixes(decoder), decoder.num_layers + len(c.layers))


class Family(DecoderFamily):
    name = "qwen4_exp"
    divisible = False
    ahead = (MTP,)
    ignored = (VISION,)
    matrices = ("_proj_qkv.weight", "_proj_z.weight", "input_mix_weight_down.weight", "input_mix_weight_up.weight")

    def __init__(self, config: JsonObject) -> None:
        self.take(_parse(config))
        self.vision, self.no_vision = seeing(lambda: qwen_vision(config, self.decoder, _IDS))
