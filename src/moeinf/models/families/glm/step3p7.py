"""Step 3.5 and 3.7: sigmoid routing with a correction bias, gates of heads, clamped experts in the last layers.

Layers with a window have more heads, and positions of their own. 3.7 has a tower that sees a picture and windows of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.activations import SILU
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Gate, HeadNorms, Scores, Shapes
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import BlockNames, ClampingMoe, MlpForm, Moe, Scoring, Shared, clamping
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.rope import of_kind, partial_rotary, rope_of
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.models.layers.vision.of_families.step_vision import step_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import TextIn
from moeinf.models.widened import widened
from moeinf.types import ExpertPiece, JsonObject, TensorPlan

_KINDS = ("full_attention", "sliding_attention")
_LIMITS = "swiglu_limits", "swiglu_limits_shared"
_NAMES = BlockNames(
    block="",
    gate="moe.gate.weight",
    bias="moe.router_bias",
    shared="share_expert.",
    dense=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
_PUBLISHED = {  # what published checkpoints call fields that others have too
    "num_key_value_heads": "num_attention_groups",
    "n_routed_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_top_k",
    "max_position_embeddings": "max_seq_len",
}
_LAYER = r"^model\.(?:language_model\.)?layers\.(\d+)\."
_RENAMED = {
    rf"{_LAYER}mlp\.gate\.e_score_correction_bias": r"model.layers.\1.moe.router_bias",
    rf"{_LAYER}mlp\.gate\.weight": r"model.layers.\1.moe.gate.weight",
    rf"{_LAYER}mlp\.shared_experts\.": r"model.layers.\1.share_expert.",
    rf"{_LAYER}mlp\.experts\.": r"model.layers.\1.moe.experts.",
    r"^model\.language_model\.": "model.",
    r"\.attn\.in_proj_(weight|bias)$": r".attn.in_proj.\1",
}
_OTHER_MODELS = (r"(model\.)?(vision_model|multi_modal_projector|vit_large_projector)\..*",)


@dataclass(frozen=True, slots=True)
class StackedMoe(ClampingMoe):
    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan = ClampingMoe.plan(self, decoder, dense)
        return replace(plan, experts=(self._stacked(decoder, plan.parts), *plan.experts))

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        return GatedExperts([f"{decoder.layer(i)}moe." for i in self.moe_layers], self.moe_intermediate_size, None)

    def _stacked(
        self, decoder: DecoderConfig, parts: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]:
        """As published: a tensor of each part for all experts of a layer."""
        found: dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]] = {}
        for layer, i in enumerate(self.moe_layers):
            count = self.moe.experts_of(layer)
            for part, (rows, cols) in ((part, shape) for part, shape in parts.items() if len(shape) == 2):
                pieces = tuple(ExpertPiece(layer, e, part, e * rows * cols) for e in range(count))
                found[f"{decoder.layer(i)}moe.{part}_proj.weight"] = ((count, rows, cols), pieces)
        return found


def _parse(f: Fields) -> Spec:
    f = _in_common_names(f)
    for name, *allowed in (
        ("hidden_act", *SILU),
        ("moe_router_activation", "sigmoid"),
        ("norm_expert_weight", True),
        ("use_moe_router_bias", True),
        ("use_head_wise_attn_gate", True),
        ("zero_centered", True),
        ("use_moe", True),
        ("use_bidirectional_attention", False),
        ("gating", True, "per-head"),
        ("sink", False),
    ):
        f.only(name, *allowed, None if name != "gating" or "gating" not in f else True)
    f.present("head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "share_expert_dim")
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    future = f.count("num_nextn_predict_layers", 0, 0, MOST_LAYERS)
    kinds = _trimmed(f, "layer_types", num_layers, future).kinds("layer_types", num_layers, *_KINDS)
    kinds = kinds or ("full_attention",) * num_layers
    f = _with_ropes(f, kinds, num_layers, future)
    heads = _sliding_heads(f, kinds)
    scale = f.number("query_pre_attn_scalar", f.count("head_dim")) ** -0.5
    whole = of_kind(f.replaced(per_layer_config=None), _KINDS[0] if _KINDS[0] in kinds else _KINDS[1])
    decoder = parse_decoder(
        whole,
        norm_eps=1e-5,
        theta=1e4,
        partial=1.0,
        output_bias=f.flag("attention_out_bias", f.flag("attention_bias", False)),
        head_norms=HeadNorms(),
        gate=Gate("g_proj", per_head=True),
        scores=Scores(scale),
        norm="rms+1",
    )
    a = decoder.attention
    if "sliding_attention" in kinds:
        own = of_kind(f, "sliding_attention")
        rope = rope_of(own, partial_rotary(own, a.head_dim), 1e4, f.count("max_position_embeddings"))
        sliding = replace(a, num_heads=heads, rope=rope).seeing(f.count("sliding_window"))
        decoder = replace(decoder, special={i: sliding for i in range(num_layers) if kinds[i] == "sliding_attention"})
    sparse = _sparse(f, num_layers, future)
    blocks = Moe(
        routed_shape(f, ("n_routed_experts",), f.count("num_experts_per_tok"), num_layers, sparse),
        sparse,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        SigmoidRouter,
        scoring=Scoring(scaling=f.number("moe_router_scaling_factor", 1.0)),
        shared=Shared(1, f.count("share_expert_dim")),
        form=MlpForm(f.flag("mlp_bias", False)),
        names=_NAMES,
        num_future_layers=future,
    )
    for name in _LIMITS:
        f = _trimmed(f, name, num_layers, future)
    return Spec(decoder, widened(StackedMoe, clamping(blocks, f, num_layers, *_LIMITS)))


def _in_common_names(f: Fields) -> Fields:
    found = {}
    for common, own in _PUBLISHED.items():
        value, other = f.get(own), f.get(common)
        if None not in (value, other) and value != other:
            raise CheckpointError(f"{f.where}: {common} is {other!r:.50} and {own} {value!r:.50}; they mean the same")
        if value is not None and other is None:
            found[common] = value
    return f.replaced(**found)


def _trimmed(f: Fields, name: str, num_layers: int, future: int) -> Fields:
    """Without what a list says of layers that predict further tokens."""
    value = f.get(name)
    if isinstance(value, list) and len(value) == num_layers + future:
        return f.replaced(**{name: value[:num_layers]})
    return f


def _with_ropes(f: Fields, kinds: tuple[str, ...], num_layers: int, future: int) -> Fields:
    """With rope_parameters of each kind of layer, where a checkpoint lists bases and shares of layers."""
    if all(isinstance(f.within("rope_parameters").get(kind), dict) for kind in kinds):
        f.within("rope_parameters").refuse_others(*_KINDS)
        return f
    if f.get("rope_parameters") is not None:
        raise CheckpointError(f"{f.where}: rope_parameters has no object for each kind of layer")
    f = _trimmed(_trimmed(f, "rope_theta", num_layers, future), "partial_rotary_factors", num_layers, future)
    theta, shares = f.get("rope_theta"), f.get("partial_rotary_factors")
    thetas = (
        f.numbers("rope_theta", num_layers) if isinstance(theta, list) else [f.number("rope_theta", 1e4)] * num_layers
    )
    parts = [1.0] * num_layers if shares is None else f.numbers("partial_rotary_factors", num_layers)
    ropes: dict[str, Any] = {}
    for kind in dict.fromkeys(kinds):
        found = {(thetas[i], parts[i]) for i in range(num_layers) if kinds[i] == kind}
        if len(found) != 1:
            raise CheckpointError(f"{f.where}: rope_theta and partial_rotary_factors differ within {kind}")
        base, share = found.pop()
        ropes[kind] = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
    scaling = f.get("rope_scaling")
    if scaling and "full_attention" in ropes:
        f.only("yarn_only_types", ["full_attention"], None)
        ropes["full_attention"] |= dict(scaling)
    return f.replaced(rope_parameters=ropes, rope_theta=None, rope_scaling=None, partial_rotary_factor=None)


def _sliding_heads(f: Fields, kinds: tuple[str, ...]) -> int:
    """How many heads layers with a window have. Their other sizes are those of all."""
    heads = f.count("num_sliding_attention_heads", f.count("num_attention_heads"))
    other = f.within("attention_other_setting")
    if f.get("num_sliding_attention_heads") is None and f.get("attention_other_setting") is not None:
        other.refuse_others(
            "attention_type", "num_attention_heads", "num_attention_groups", "head_dim", "true_head_dim"
        )
        other.only("attention_type", "sliding_attention", None)
        other.only("num_attention_groups", f.get("num_key_value_heads"), None)
        other.only("head_dim", f.get("head_dim"), None)
        other.only("true_head_dim", f.get("head_dim"), None)
        heads = other.count("num_attention_heads", heads)
    said = f.within("per_layer_config").plain
    meant = {str(i): {"num_attention_heads": heads} for i, kind in enumerate(kinds) if kind == "sliding_attention"}
    if said and {str(i): each for i, each in said.items()} != meant:
        f.only("per_layer_config", meant, None)
    return heads


def _sparse(f: Fields, num_layers: int, future: int) -> tuple[int, ...]:
    kinds = _trimmed(f, "mlp_layer_types", num_layers, future).kinds("mlp_layer_types", num_layers, "dense", "sparse")
    listed = f.get("moe_layers_enum")
    if kinds is not None:
        layers = tuple(i for i, kind in enumerate(kinds) if kind == "sparse")
    elif listed is not None:
        numbers = listed.split(",") if isinstance(listed, str) else listed
        if not isinstance(numbers, list) or not all(str(each).strip().isdecimal() for each in numbers):
            raise CheckpointError(f"{f.where}: moe_layers_enum is {listed!r:.100}; must list numbers of layers")
        layers = tuple(sorted({int(each) for each in numbers} & set(range(num_layers))))
    else:
        layers = tuple(range(3, num_layers))
    if not layers:
        raise CheckpointError(f"{f.where}: mlp_layer_types or moe_layers_enum leave no layer with experts")
    return layers


class Family(DecoderFamily):
    name = "step3p7"
    parse = staticmethod(_parse)
    text = TextIn("model.")
    ignored = _OTHER_MODELS
    renamed = tuple(_RENAMED.items())
    no_matrices = (".g_proj.weight",)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        hidden_size = self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: step_vision(config, hidden_size))
