"""DeepSeek-V4.1: DeepSeek-V4 with entries that layers share, mixtures of streams that are one behind, and Engram.

A tower sees pictures, for whose tokens experts are chosen by a bias of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.families.deepseek.deepseek_v4 import (
    AHEAD,
    RENAMED,
    STREAMS,
    HashedMoe,
    LearnedRouter,
    parse_v4,
    rotated,
    v4_blocks,
    v4_index,
    v4_ranks,
    v4_streams,
)
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.latent.compressed import Candidates, CompressedHeads
from moeinf.models.layers.latent.shared_entries import SharedConfig
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.streams.engram import TOKEN_MAP, EngramConfig, EngramConnections
from moeinf.models.layers.streams.ngram_layer import Given
from moeinf.models.layers.streams.picture_column import PictureTokens
from moeinf.models.layers.vision.of_families.deepseek_vision import deepseek_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import text_part
from moeinf.models.widened import widened
from moeinf.types import JsonObject

_PICTURE_BIAS = "gate.bias_vl"  # of a block


def _parse(f: Fields) -> Spec:
    f.fixed(gate_temp=1.0)
    decoder, (main, compressed) = parse_v4(f, norm_eps=1e-20)
    mixers, num_layers = _attention(f, decoder, main, compressed), decoder.num_layers
    tables = EngramConfig.of(f, decoder.vocab_size, num_layers)
    connections = EngramConnections(v4_streams(f, decoder), replace(STREAMS, head=None), tables)
    decoder = rotated(decoder, mixers, compressed)
    return Spec(
        decoder, v4_blocks(f, num_layers), mixers, connections, amended=partial(connections.with_tables, decoder)
    )


def _attention(f: Fields, decoder: DecoderConfig, main: Rope, compressed: Rope) -> dict[int, SharedConfig]:
    """Of each layer."""
    a, rates = decoder.attention, _rates(f, decoder.num_layers)
    sources, choosing, leaving = _sources(f, rates)
    index, ranks, window = (
        v4_index(f, 32, compressed.rotary_dim),
        v4_ranks(f, a.num_heads),
        f.count("sliding_window", 128),
    )
    blocks = f.count("candidate_topk_blocks", 2048), f.count("candidate_block_size", 8)
    found = {}
    for i, rate in enumerate(rates):
        chooses = i in choosing
        heads = CompressedHeads(
            a.num_heads,
            a.head_dim,
            compressed if rate else main,
            window,
            rate,
            index=index if chooses else None,
            makes=i in sources,
            keys_of_entries=True,
            rounded=True,
            candidates=Candidates(*blocks, leaves=i == leaving) if chooses and 0 <= leaving <= i else None,
        )
        found[i] = SharedConfig(a.hidden_size, heads, *ranks, a.norm_eps)
    return found


def _rates(f: Fields, num_layers: int) -> list[int]:
    """The tokens that an entry stands for, of each layer; compress_ratios may count MTP layers, too."""
    ratios = f.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < num_layers:
        raise CheckpointError(f"{f.said('compress_ratios')} must have a number for each of {num_layers} layers")
    return f.replaced(compress_ratios=ratios[:num_layers]).counts("compress_ratios", num_layers)


def _sources(f: Fields, rates: list[int]) -> tuple[frozenset[int], frozenset[int], int]:
    """The layers that make entries, those that choose them, and the one that leaves candidates, or -1."""
    f.present("kv_source_layer_ids", "index_source_layer_ids", "candidate_source_layer_id")
    made, chosen = f.layers("kv_source_layer_ids"), f.layers("index_source_layer_ids")
    leaving = f.get("candidate_source_layer_id")
    leaving = -1 if type(leaving) is int and leaving < 0 else f.count("candidate_source_layer_id", minimum=0)
    in_front = [max((source for source in made if source <= i), default=i) for i in range(len(rates))]
    alike = all(not rate or (at in made and rates[at] == rate) for rate, at in zip(rates, in_front, strict=True))
    if not alike or not made <= chosen or any(not 0 <= i < len(rates) or not rates[i] for i in chosen):
        raise CheckpointError(
            f"{f.where}: kv_source_layer_ids {sorted(made)} and index_source_layer_ids {sorted(chosen)} do not go with "
            f"compress_ratios {rates}: a layer needs one in front, or itself, with the same ratio"
        )
    if leaving >= 0 and (leaving not in chosen or leaving < max(made)):
        raise UnsupportedModelError(
            f"{f.said('candidate_source_layer_id')} = {leaving} is not supported (only one of index_source_layer_ids "
            "from the last of kv_source_layer_ids on)"
        )
    return made, chosen, leaving


class PictureRouter(LearnedRouter):
    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, given: Given) -> None:
        """given: shared with the stem; its last column tells the tokens of pictures."""
        super().__init__(layers, moe, site)
        self._given, self._of_pictures = given, layers.weights.vector(site.block + _PICTURE_BIAS)

    def _chosen_by(self, scores: Array) -> Array:
        assert self._bias is not None
        told = self._given.rows[0][:, -1:] > 0.5
        return scores + self._math.where(told, self._of_pictures, self._bias)


@dataclass(frozen=True, slots=True)
class BiasedMoe(HashedMoe):
    sees: bool = False  # pictures, for whose tokens there is another bias

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        found = HashedMoe.shapes(self, decoder)
        if self.sees:
            names = (f"{decoder.layer(i)}{self.names.block}{_PICTURE_BIAS}" for i in self.moe_layers)
            found |= {name: (self.moe.experts_of(i),) for i, name in enumerate(names)}
        return found


class Family(DecoderFamily):
    name = "deepseek_v41"
    divisible = False
    ahead = AHEAD
    ignored = (r"vision\..*", r"aligner\..*", r"image_(start|end|newline)", r".*\.gate\.bias_vl")
    renamed = RENAMED

    def __init__(self, config: JsonObject) -> None:
        spec = _parse(text_part(config).fields)
        self.vision, self.no_vision = seeing(lambda: deepseek_vision(Fields(config), spec.decoder))
        assert isinstance(spec.blocks, Moe) and isinstance(spec.connections, EngramConnections)
        if self.vision is not None:
            assert isinstance(self.vision.token, int)
            connections = replace(spec.connections, pictures=PictureTokens(self.vision.token, PictureRouter))
            spec = replace(spec, connections=connections)
        spec = replace(spec, blocks=widened(BiasedMoe, spec.blocks, sees=self.vision is not None))
        self.take(spec)
        assert isinstance(spec.connections, EngramConnections)
        tables = spec.connections.tables
        self.of_tokenizer = TOKEN_MAP if tables is not None and not tables.token_map else None
