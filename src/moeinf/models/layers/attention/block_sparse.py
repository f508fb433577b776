"""Attention to blocks of tokens that an indexer chooses (Qwen4ExpTextQSAIndexer in transformers).

A token has an index key; a whole block of `block` tokens has the mean of its tokens' keys, normed, and rotated at the
first of its positions. To a token with index queries q_h, a block with key k is worth

    sum_h relu(q_h . k)

and the token attends to the best `num_blocks` of the blocks up to its own position, and to what lies behind the last
whole block: where there are no more blocks, to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A
from moeinf.models.layers.assemble import CommonAttention
from moeinf.models.layers.attention.token_rows import K, KVState, MemoryOf
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.protocol import Attention, AttentionOf, Layers, P, Part, R
from moeinf.types import IndexSizes, Workspace

_SCORES = 1 << 22  # numbers of scores that exist at once on a GPU


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """The heads of an indexer that chooses blocks of tokens."""

    num_heads: int
    head_dim: int
    block: int  # tokens
    num_blocks: int  # that a token attends to
    norm_eps: float

    @property
    def most(self) -> int:
        """Positions that a token attends to: those of its blocks, and those behind the last whole block."""
        return (self.num_blocks + 1) * self.block - 1

    def seeing_all(self, start: int, tokens: int) -> int:
        """How many of the tokens from position `start` have no more blocks than they may choose; they come first."""
        return min(max((self.num_blocks + 1) * self.block - 1 - start, 0), tokens)


@dataclass(frozen=True, slots=True)
class BlockSparsePart(Part[A, P, R, AttentionOf[A, P]]):
    """Attention as of an AttentionPart, to the blocks that are chosen."""

    config: AttentionConfig
    site: AttentionSite
    index: BlockIndex


class IndexedKVState(KVState[K], Generic[K, A]):
    """Beside keys and values, the index keys of tokens, float32 [capacity, head_dim]."""

    def __init__(self, memory: MemoryOf[K, A], config: AttentionConfig, index: BlockIndex, capacity: int) -> None:
        keys = memory.floats(capacity, index.head_dim)
        super().__init__(memory, config.num_kv_heads, config.head_dim, capacity, keys)
        self.index_keys = keys.data


def parse_index(f: Fields, attention: AttentionConfig) -> BlockIndex:
    f.only("indexer_kv_heads", 1)
    size, budget, block = (f.count(f"indexer_{name}") for name in ("head_dim", "budget", "compress_ratio"))
    if budget % block:
        raise CheckpointError(f"{f.where}: indexer_budget {budget} is no multiple of indexer_compress_ratio {block}")
    if attention.rope is not None and attention.rope.rotary_dim > size:
        raise CheckpointError(
            f"{f.where}: {attention.rope.rotary_dim} rotary dimensions in index heads of {size} (indexer_head_dim)"
        )
    return BlockIndex(f.count("indexer_n_heads"), size, block, budget // block, attention.norm_eps)


def index_names(site: AttentionSite) -> tuple[str, str, str]:
    """The matrix of queries and then keys, and the norms of both."""
    prefix = f"{site.prefix}indexer."
    return f"{prefix}index_qk_proj.weight", f"{prefix}q_layernorm.weight", f"{prefix}k_layernorm.weight"


def index_norms(site: AttentionSite, index: BlockIndex) -> list[NormConfig]:
    return [NormConfig(name, index.norm_eps, "rms+1") for name in index_names(site)[1:]]


def block_index_workspace(index: BlockIndex, choices: int = 1) -> Workspace:
    """Queries and keys of a pass, what each token chooses, as often as it does, and the scores of a long context."""
    token = 4 * (index.num_heads + 1) * index.head_dim + 3 * choices * index.most
    layers = frozenset([IndexSizes(index.num_heads, index.head_dim)])
    return Workspace(token=token, parts=1 << 20, fixed=3 * _SCORES, layers=layers)


def index_token_bytes(index: BlockIndex) -> int:
    """What the index keys of a token take in one layer, and its part of its block's; float32 in every type of cache."""
    return 4 * index.head_dim + -(-4 * index.head_dim // index.block)


@dataclass(frozen=True, slots=True)
class BlockSparse(CommonAttention):
    """Attention to the blocks that a token chooses for all its heads."""

    index: BlockIndex

    @property
    def token_bytes(self) -> int:
        return index_token_bytes(self.index)

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        index, (matrix, *norms) = self.index, index_names(decoder.attention_site(layer))
        shapes = CommonAttention.shapes(self, decoder, layer)
        shapes[matrix] = ((index.num_heads + 1) * index.head_dim, self.config.hidden_size)
        return shapes | {name: (index.head_dim,) for name in norms}

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return CommonAttention.workspace(self, decoder) | block_index_workspace(self.index)

    def of_site(self, layers: Layers, site: AttentionSite) -> Attention:
        return layers.make(BlockSparsePart(self.config, site, self.index))
