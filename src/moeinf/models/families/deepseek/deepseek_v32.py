"""DeepSeek-V3.2: DeepSeek-V3, whose tokens attend to the positions that an indexer chooses (arXiv 2512.02556)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from moeinf.models.families.deepseek import deepseek_v2, deepseek_v3
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.deepseek_moe import DeepseekMoe, sparse_layers
from moeinf.models.layers.latent.indexed import (
    IndexConfig,
    IndexedLatentAttention,
    Selection,
    index_matrices,
    index_shapes,
    index_workspace,
)
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.protocol import Experts, Layers
from moeinf.types import Profiler, TensorPlan, Workspace


@dataclass(frozen=True, slots=True)
class Config(deepseek_v2.Config):
    index: IndexConfig


def parse_indexed(
    f: Fields, choosing: tuple[bool, ...], *, norm_eps: float, interleaved: bool, first_dense: int = 3
) -> Config:
    """choosing: layers with an indexer; interleaved: how its rotary pairs lie. norm_eps, first_dense: the family's
    defaults."""
    for name, *allowed in (
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("mlp_bias", False),
        ("moe_layer_freq", 1),
        ("rope_interleave", True),
        ("head_dim", f.get("qk_rope_head_dim"), f.get("qk_nope_head_dim")),  # of no effect: GLM-5 and GLM-5.2 differ
    ):
        f.only(name, *allowed, None)
    f.present("n_group", "topk_group", "routed_scaling_factor", "n_shared_experts")
    decoder, latent = parse_latent(f, interleaved=True, norm_eps=norm_eps)
    f.kinds("layer_types", decoder.num_layers, "indexed_attention")
    layers = sparse_layers(f, decoder.num_layers, first_dense=f.count("first_k_dense_replace", first_dense, minimum=0))
    blocks = DeepseekMoe.parse(
        f, decoder.num_layers, normalise=True, corrected=True, num_future_layers=1, moe_layers=layers
    )
    return Config(decoder, latent, blocks, IndexConfig.parse(f, latent, choosing, interleaved=interleaved))


def _parse(f: Fields) -> Config:
    return parse_indexed(
        f, (True,) * f.count("num_hidden_layers", maximum=MOST_LAYERS), norm_eps=1e-6, interleaved=False
    )


class Family(deepseek_v3.Family):
    name = "deepseek_v32"
    parse = staticmethod(_parse)
    _config: Config

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, selection = self._config, Selection()
        blocks = c.blocks.blocks(c.decoder, layers, experts, profiler, self.router)
        attention = [self.layer(layers, i, selection) for i in range(c.decoder.num_layers)]
        return Decoder(c.decoder, layers, blocks, experts, profiler, attention)

    def layer(self, layers: Layers, i: int, selection: Selection) -> IndexedLatentAttention:
        """The attention of decoder layer i."""
        c = self._config
        return IndexedLatentAttention(layers, c.decoder, self.latent_of(i), c.index, i, selection)

    def attention_shapes(self) -> Shapes:
        return super().attention_shapes() | index_shapes(self.decoder, self._config.latent, self._config.index)

    @cached_property
    def tensors(self) -> TensorPlan:
        return index_matrices(super().tensors)

    @property
    def attention_workspace(self) -> Workspace:
        return super().attention_workspace | index_workspace(self._config.index)

    @property
    def cache_bytes(self) -> int:
        return self._config.index.token_bytes
