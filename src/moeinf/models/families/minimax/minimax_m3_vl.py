"""MiniMax-M3, the language model of it: sigmoid routing, gpt-oss's experts, blocks of tokens chosen by an indexer.

Checkpoints hold a model of images beside it, which is left out (MiniMaxM3VL in transformers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention.block_sparse import block_index_workspace, index_token_bytes
from moeinf.models.layers.attention.group_sparse import GroupIndex, GroupSparsePart, group_index_shapes, parse_groups
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import HeadNorms, Shapes, Sight
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, MlpForm, Moe, Scoring, Shared, sparse_layers
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.models.layers.rope import partial_rotary
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.models.text_part import text_part
from moeinf.types import ExpertForm, JsonObject, TensorPlan, Workspace

_NAMES = BlockNames(
    block="",
    gate="block_sparse_moe.gate.weight",
    bias="block_sparse_moe.e_score_correction_bias",
    shared="block_sparse_moe.shared_experts.",
    dense=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
_IMAGES = r"(vision_tower|multi_modal_projector|patch_merge_mlp)\..*"
_FREQ = "sparse_attention_freq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Spec):
    index: GroupIndex
    choosing: tuple[bool, ...]  # layers with an indexer
    limit: float  # of what the activation of experts and MLPs is given


def _parse(f: Fields) -> Config:
    for name, *allowed in (
        ("hidden_act", "silu", "swigluoai"),  # both mean the latter
        ("attention_bias", False),
        ("scoring_func", "sigmoid"),
        ("use_routing_bias", True),
        ("use_qk_norm", True),
        ("use_gemma_norm", True),
        ("norm_topk_prob", True),
        ("n_shared_experts", 1),
        ("swiglu_alpha", 1.702),
    ):
        f.only(name, *allowed, None)
    f.present("head_dim", "swiglu_limit", "routed_scaling_factor")
    head_dim = f.count("head_dim", minimum=2)
    rotated = partial_rotary(f, head_dim)
    if f.count("rotary_dim", rotated) != rotated:
        raise CheckpointError(
            f"{f.where}: rotary_dim is {f.get('rotary_dim')}, but partial_rotary_factor of rope_parameters or "
            f"rope_scaling rotates {rotated} of heads of {head_dim} (head_dim)"
        )
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    decoder = parse_decoder(
        f.replaced(hidden_act=None), norm_eps=1e-6, theta=5e6, partial=1.0, head_norms=HeadNorms(), norm="rms+1"
    )
    index, choosing = parse_groups(f, decoder.attention), _choosing(f, num_layers)
    special = replace(decoder.attention, sight=Sight(most_chosen=index.most))
    layers = _sparse(f, num_layers)
    limit = f.number("swiglu_limit")
    blocks = Moe(
        routed_shape(f, ("num_local_experts", "num_experts"), f.count("num_experts_per_tok"), num_layers, layers),
        layers,
        f.count("dense_intermediate_size", 0 if len(layers) == num_layers else None),
        f.count("intermediate_size"),
        SigmoidRouter,
        scoring=Scoring(scaling=f.number("routed_scaling_factor")),
        shared=Shared(1, f.count("shared_intermediate_size")),
        form=MlpForm(limit=limit, oai=True),
        names=_NAMES,
    )
    decoder = replace(decoder, special={i: special for i in range(num_layers) if choosing[i]})
    return Config(decoder, blocks, index=index, choosing=choosing, limit=limit)


def _choosing(f: Fields, num_layers: int) -> tuple[bool, ...]:
    kinds = f.kinds("layer_types", num_layers, "full_attention", "minimax_m3_sparse")
    if kinds is not None:
        return tuple(kind == "minimax_m3_sparse" for kind in kinds)
    published = f.within("sparse_attention_config")
    if _FREQ in published:
        return tuple(count > 0 for count in published.counts(_FREQ, num_layers))
    return (False,) * num_layers


def _sparse(f: Fields, num_layers: int) -> tuple[int, ...]:
    if f.get("mlp_layer_types") is None and f.get("moe_layer_freq") is not None:
        kinds = ["sparse" if count else "dense" for count in f.counts("moe_layer_freq", num_layers)]
        f = f.replaced(mlp_layer_types=kinds)
    return sparse_layers(f, num_layers, first_dense=0)


class Family(DecoderFamily):
    name = "minimax_m3_vl"
    spec: Config
    ignored = (_IMAGES,)

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config, prefix="language_model.model.")
        spec, head_prefix = _parse(text.fields), text.prefix.removesuffix("model.")
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix, head_prefix=head_prefix)))

    def attention(self, layers: Layers) -> list[Attention]:
        d = self.decoder
        return [
            layers.make(GroupSparsePart(d.attention_of(i), d.attention_site(i), self.spec.index))
            if chooses
            else layers.make(AttentionPart(d.attention_of(i), d.attention_site(i)))
            for i, chooses in enumerate(self.spec.choosing)
        ]

    def attention_shapes(self) -> Shapes:
        c, d, shapes = self.spec, self.decoder, super().attention_shapes()
        for i in range(d.num_layers):
            if c.choosing[i]:
                shapes |= group_index_shapes(d.attention_site(i), d.attention, c.index)
        return shapes

    def plan(self) -> TensorPlan:
        c, d = self.spec, self.decoder
        assert isinstance(c.blocks, Moe)
        blocks = [f"{d.module(i, 'block_sparse_moe')}." for i in c.blocks.moe_layers]
        plan = self.gated_experts(GatedExperts(blocks, c.blocks.moe_intermediate_size, ("w1", "w3", "w2")))
        return replace(plan, form=ExpertForm("swiglu_clamped", limit=c.limit))

    @property
    def attention_workspace(self) -> Workspace:
        found = super().attention_workspace
        return found | block_index_workspace(self.spec.index) if any(self.spec.choosing) else found

    @property
    def cache_bytes(self) -> int:
        return sum(self.spec.choosing) * index_token_bytes(self.spec.index)
