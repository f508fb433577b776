"""The blocks of Qwen's families: experts in some layers, dense MLPs in the others, an expert that all tokens share.

The shared expert has a gate of its own: one weight a token, sigmoid(w x).
"""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import CheckpointError
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.attention_config import MLP_NAMES, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.moe_block import MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.types import MoeShape, Profiler


@dataclass(frozen=True, slots=True)
class QwenMoe:
    moe: MoeShape
    moe_layers: tuple[int, ...]  # decoder layers that have experts
    intermediate_size: int  # of the dense MLPs
    moe_intermediate_size: int
    shared_intermediate_size: int  # 0: there is none
    norm_topk_prob: bool

    @staticmethod
    def parse(f: Fields, num_layers: int, *, norm_topk_prob: bool, shared: bool = True) -> QwenMoe:
        """norm_topk_prob: the family's default; shared: whether it has a shared expert."""
        step, dense_only = f.count("decoder_sparse_step", 1), f.layers("mlp_only_layers")
        moe_layers = tuple(i for i in range(num_layers) if i not in dense_only and (i + 1) % step == 0)
        if not moe_layers:
            raise CheckpointError("config.json: decoder_sparse_step and mlp_only_layers leave no layer with experts")
        all_sparse = len(moe_layers) == num_layers
        top_k = f.count("num_experts_per_tok")
        moe = routed_shape(f, ("num_experts", "num_local_experts"), top_k, num_layers, moe_layers)
        return QwenMoe(
            moe,
            moe_layers,
            f.count("intermediate_size", 0 if all_sparse else None, minimum=0),
            f.count("moe_intermediate_size"),
            f.count("shared_expert_intermediate_size") if shared else 0,
            f.flag("norm_topk_prob", norm_topk_prob),
        )

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the blocks' dense tensors."""
        hidden, shapes = decoder.attention.hidden_size, Shapes()
        for i in range(decoder.num_layers):
            prefix = f"{decoder.prefix}layers.{i}.mlp."
            if i not in self.moe_layers:
                shapes |= mlp_shapes(hidden, self.intermediate_size, prefix)
                continue
            shapes[f"{prefix}gate.weight"] = (self.moe.experts_of(self.moe_layers.index(i)), hidden)
            if self.shared_intermediate_size:
                shapes |= mlp_shapes(hidden, self.shared_intermediate_size, f"{prefix}shared_expert.")
                shapes[f"{prefix}shared_expert_gate.weight"] = (1, hidden)
        return shapes

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        blocks = [f"{decoder.prefix}layers.{i}.mlp." for i in self.moe_layers]
        return GatedExperts(blocks, self.moe_intermediate_size, MLP_NAMES)

    @property
    def num_shared_experts(self) -> int:
        return 1 if self.shared_intermediate_size else 0

    def blocks(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        blocks = list[Block]()
        for i in range(decoder.num_layers):
            prefix = f"{decoder.prefix}layers.{i}.mlp."
            norm = None if decoder.names.norms.block is None else decoder.block_norm(i)
            if i not in self.moe_layers:
                assert norm is not None and not decoder.replaces, "no such family has dense layers"
                blocks.append(layers.gated_mlp(prefix, norm, activation=decoder.activation))
                continue
            router = layers.softmax_router(f"{prefix}gate.weight", norm, self.moe.top_k, normalise=self.norm_topk_prob)
            shared = (
                SharedExpert(
                    layers.weights,
                    f"{prefix}shared_expert.",
                    f"{prefix}shared_expert_gate.weight",
                    activation=decoder.activation,
                )
                if self.shared_intermediate_size
                else None
            )
            layer, replaces = self.moe_layers.index(i), decoder.replaces
            blocks.append(MoeBlock(layer, router, experts, profiler, shared=shared, replaces=replaces))
        return blocks
