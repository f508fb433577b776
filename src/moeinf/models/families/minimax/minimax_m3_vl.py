"""MiniMax-M3: sigmoid routing, gpt-oss's experts, blocks of tokens chosen by an indexer (MiniMaxM3VL in transformers).

A tower sees pictures.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention.group_sparse import GroupSparse, parse_groups
from moeinf.models.layers.attention_config import HeadNorms, Sight
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, MlpForm, Moe, Scoring, Shared, sparse_layers
from moeinf.models.layers.rope import partial_rotary
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.models.layers.vision.of_families.minimax_vision import minimax_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import text_part
from moeinf.types import ExpertForm, JsonObject

_NAMES = BlockNames(
    block="",
    gate="block_sparse_moe.gate.weight",
    bias="block_sparse_moe.e_score_correction_bias",
    shared="block_sparse_moe.shared_experts.",
    experts=("w1", "w3", "w2"),
    dense=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    routed="block_sparse_moe.",
)
_IMAGES = r"(vision_tower|multi_modal_projector|patch_merge_mlp)\..*"
_FREQ = "sparse_attention_freq"


def _parse(f: Fields) -> Spec:
    f.only("hidden_act", "silu", "swigluoai", None)  # both mean the latter
    f.fixed(
        attention_bias=False,
        scoring_func="sigmoid",
        use_routing_bias=True,
        use_qk_norm=True,
        use_gemma_norm=True,
        norm_topk_prob=True,
        n_shared_experts=1,
        swiglu_alpha=1.702,
    )
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
        expert_form=ExpertForm("swiglu_clamped", limit=limit),
    )
    mixer = GroupSparse(replace(decoder.attention, sight=Sight(most_chosen=index.most)), index)
    layers_that_choose = [i for i in range(num_layers) if choosing[i]]
    decoder = replace(decoder, special=dict.fromkeys(layers_that_choose, mixer.config))
    return Spec(decoder, blocks, dict.fromkeys(layers_that_choose, mixer))


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
    ignored = (_IMAGES,)

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config, prefix="language_model.model.")
        spec, head_prefix = _parse(text.fields), text.prefix.removesuffix("model.")
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix, head_prefix=head_prefix)))
        hidden_size = self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: minimax_vision(config, hidden_size))
