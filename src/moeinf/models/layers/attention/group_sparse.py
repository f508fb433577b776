"""Attention to blocks of tokens that an indexer chooses for each key/value head (MiniMaxM3VLIndexer in transformers).

A token has an index key and, for each key/value head, an index query; both are normed and rotated. To a head, a block
is worth the largest of the products of the query with the keys of its tokens, as far as the token sees them. It attends
to the best `num_blocks` of the blocks up to its own one, which always is among them, as are the `local` - 1 before.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A
from moeinf.models.layers.assemble import CommonAttention
from moeinf.models.layers.attention.block_sparse import BlockIndex, block_index_workspace, index_token_bytes
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.protocol import Attention, AttentionOf, Layers, P, Part, R
from moeinf.types import Workspace


@dataclass(frozen=True, slots=True)
class GroupIndex(BlockIndex):
    """As BlockIndex, where each key/value head has a choice of its own."""

    local: int = 1  # of the blocks that a token attends to: its own one, and those in front of it

    @property
    def most(self) -> int:
        return self.num_blocks * self.block

    def seeing_all(self, start: int, tokens: int) -> int:
        return min(max(self.most - start, 0), tokens)


@dataclass(frozen=True, slots=True)
class GroupSparsePart(Part[A, P, R, AttentionOf[A, P]]):
    """Attention as of an AttentionPart, to the blocks that are chosen."""

    config: AttentionConfig
    site: AttentionSite
    index: GroupIndex


_PUBLISHED = {  # in sparse_attention_config
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}


def parse_groups(f: Fields, attention: AttentionConfig) -> GroupIndex:
    published = f.within("sparse_attention_config")
    f = f.replaced(**{name: published.get(other) for name, other in _PUBLISHED.items() if other in published})
    heads = f.count("index_n_heads")
    if heads != attention.num_kv_heads:
        raise UnsupportedModelError(
            f"{f.where}: index_n_heads {heads} is not supported beside num_key_value_heads {attention.num_kv_heads}: "
            "each key/value head has an index head of its own"
        )
    size, block = f.count("index_head_dim"), f.count("index_block_size")
    if attention.rope is not None and attention.rope.rotary_dim > size:
        raise CheckpointError(
            f"{f.where}: {attention.rope.rotary_dim} rotary dimensions in index heads of {size} (index_head_dim)"
        )
    blocks = f.count("index_topk_blocks")
    local = f.count("index_local_blocks", 1, maximum=blocks)  # without one heads would see different numbers of tokens
    return GroupIndex(heads, size, block, blocks, attention.norm_eps, local)


def group_index_matrices(site: AttentionSite) -> tuple[str, str]:
    """Of queries, and of keys."""
    return f"{site.prefix}index_q_proj.weight", f"{site.prefix}index_k_proj.weight"


def group_index_norms(site: AttentionSite, attention: AttentionConfig) -> list[NormConfig]:
    """Of the layer's input, of queries, and of keys."""
    names = (site.front, f"{site.prefix}index_q_norm.weight", f"{site.prefix}index_k_norm.weight")
    return [NormConfig(name, attention.norm_eps, attention.norm) for name in names]


@dataclass(frozen=True, slots=True)
class GroupSparse(CommonAttention):
    """Attention to the blocks that each key/value head chooses."""

    index: GroupIndex

    @property
    def token_bytes(self) -> int:
        return index_token_bytes(self.index)

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        site, c, index = decoder.attention_site(layer), self.config, self.index
        queries, keys = group_index_matrices(site)
        shapes = CommonAttention.shapes(self, decoder, layer)
        shapes[queries] = (index.num_heads * index.head_dim, c.hidden_size)
        shapes[keys] = (index.head_dim, c.hidden_size)
        return shapes | {norm.name: (index.head_dim,) for norm in group_index_norms(site, c)[1:]}

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return CommonAttention.workspace(self, decoder) | block_index_workspace(self.index, self.index.num_heads)

    def of_site(self, layers: Layers, site: AttentionSite) -> Attention:
        return layers.make(GroupSparsePart(self.config, site, self.index))
