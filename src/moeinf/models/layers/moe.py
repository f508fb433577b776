"""Blocks with experts in some layers, beside some that all tokens share, and dense MLPs in the other layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import MLP_NAMES, NormConfig, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, head
from moeinf.models.layers.moe_block import DenseBlock, GatedMLP, MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts, block_workspace, gated_experts_plan
from moeinf.models.layers.protocol import Block, Experts, Layers, Router, Weights
from moeinf.models.widened import widened
from moeinf.types import ExpertForm, MoeShape, Profiler, TensorPlan, Workspace


@dataclass(frozen=True, slots=True)
class BlockSite:
    """Where in a model a block stands."""

    layer: int  # of the decoder
    moe_layer: int  # -1: the block has no experts
    block: str  # prefix of its tensors
    norm: NormConfig | None  # in front; None: it takes its input as it is


Latent = tuple[Callable[[Hidden], Hidden], Callable[[Hidden], Hidden]]
MakeRouter = Callable[[Layers, "Moe", BlockSite], Router]


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a family calls a layer's block, and the tensors in it."""

    block: str = "mlp."
    gate: str = "gate.weight"
    bias: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts."
    shared_gate: str | None = None  # w [1, hidden]: sigmoid(w x) multiplies what shared experts give
    experts: tuple[str, str, str] | None = MLP_NAMES  # gate, up and down of one expert; None: they are always fused
    fused: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")  # of all experts together
    in_shared: tuple[str, str, str] = MLP_NAMES  # of the shared experts
    dense: tuple[str, str, str] = MLP_NAMES  # of the MLP of a layer without experts
    routed: str | None = None  # behind the layer's prefix: where experts lie; None: in the block
    behind: str | None = None  # behind the layer's prefix: an RMS norm of what the block adds
    behind_dense: str | None = None  # the same of a dense layer


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a router chooses and weights experts."""

    normalise: bool = True  # the weights sum to 1 before they are scaled
    corrected: bool = True  # the choice, but not the weights, is by scores + a bias of each expert
    scaling: float = 1.0  # of the weights
    num_groups: int = 1  # of experts, of which a token uses those of groups_used
    groups_used: int = 1
    least_sum: float = 0.0  # that a token's weights are divided by, in a family that has such a bound


@dataclass(frozen=True, slots=True)
class Shared:
    """Experts that every token uses: one MLP."""

    count: int = 0
    size: int = 0  # 0: so many times as wide as an expert
    limits: Mapping[int, float] = field(default_factory=dict)  # by decoder layer: of silu(gate) and up


@dataclass(frozen=True, slots=True)
class MlpForm:
    """What shared experts and dense MLPs compute beside down(f(gate(x)) * up(x))."""

    biased: bool = False  # each matrix has a bias
    limit: float = 0.0  # of gate and up, before f; 0: there is none
    oai: bool = False  # as gpt-oss's experts
    caps: tuple[float, float] | None = None  # of gate and up, as experts of the form "softcapped" have them


@dataclass(frozen=True, slots=True)
class Moe:
    """Experts in some layers, dense MLPs in the others: the Blocks (moeinf.models.layers.assemble) of most families."""

    fused_first: ClassVar[bool] = False  # published so; experts that have tensors of their own were quantised

    moe: MoeShape
    moe_layers: tuple[int, ...]  # decoder layers that have experts
    intermediate_size: int  # of the dense MLPs
    moe_intermediate_size: int  # of an expert
    router: MakeRouter
    scoring: Scoring = Scoring()
    shared: Shared = Shared()
    form: MlpForm = MlpForm()
    names: BlockNames = BlockNames()
    transposed: bool = False  # as GatedExperts has it
    expert_form: ExpertForm | None = None  # of routed experts; None: gated MLPs of the decoder's activation
    num_future_layers: int = 0  # behind the last, which predict further tokens (MTP): kept; models/mtp.py computes one

    @property
    def num_shared_experts(self) -> int:
        return self.shared.count

    @staticmethod
    def parse(
        f: Fields,
        num_layers: int,
        *,
        router: MakeRouter,
        normalise: bool,
        corrected: bool,
        num_future_layers: int = 0,
        moe_layers: Sequence[int] | None = None,
        shared: str = "n_shared_experts",
    ) -> Moe:
        """router: what chooses; normalise, num_future_layers: the family's defaults. moe_layers: where
        first_k_dense_replace does not say. shared: the field that counts the shared experts."""
        f.present(shared)
        moe_layers = leading_dense(f, num_layers) if moe_layers is None else tuple(moe_layers)
        top_k = f.count("num_experts_per_tok")
        names = ("n_routed_experts", "num_experts", "num_local_experts")
        moe = routed_shape(f, names, top_k, num_layers, moe_layers)
        groups = f.count("n_group", 1)
        if groups > 1 and f.get("topk_group") is None:
            raise CheckpointError(f"config.json: n_group is {groups}, but topk_group is missing")
        used = f.count("topk_group", 1)
        for experts in moe.counts or (moe.num_experts,):
            if experts % groups or used > groups or top_k > experts // groups * used:
                raise CheckpointError(
                    f"config.json: a token cannot use {top_k} of {experts} experts in {used} of {groups} "
                    "groups (num_experts_per_tok, n_routed_experts, topk_group, n_group)"
                )
        future = f.count("num_mtp_layers", num_future_layers, 0, MOST_LAYERS)
        future = f.count("num_nextn_predict_layers", future, 0, MOST_LAYERS)
        return Moe(
            moe,
            moe_layers,
            f.count("intermediate_size", 0 if len(moe_layers) == num_layers else None),
            f.count("moe_intermediate_size"),
            router,
            shared=Shared(f.count(shared, 0, minimum=0)),
            scoring=Scoring(
                scaling=f.number("routed_scaling_factor", 1.0),
                normalise=f.flag("norm_topk_prob", normalise),
                corrected=corrected,
                num_groups=groups,
                groups_used=used,
            ),
            num_future_layers=future,
        )

    def without_groups(self) -> Moe:
        """The same where a token may use experts of all groups."""
        return replace(self, scoring=replace(self.scoring, num_groups=1, groups_used=1))

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the blocks' dense tensors."""
        hidden, shapes, names, biased = decoder.attention.hidden_size, Shapes(), self.names, self.form.biased
        for i in range(decoder.num_layers):
            layer = decoder.layer(i)
            prefix, behind = layer + names.block, self._behind(i)
            if behind is not None:
                shapes[f"{layer}{behind}.weight"] = (hidden,)
            if i not in self.moe_layers:
                shapes |= mlp_shapes(hidden, self.intermediate_size, prefix, names.dense, biased=biased)
                continue
            experts = self.moe.experts_of(self.moe_layers.index(i))
            shapes[prefix + names.gate] = (experts, hidden)
            if self.scoring.corrected:
                shapes[prefix + names.bias] = (experts,)
            if self.shared.count:
                size = self.shared.size or self.shared.count * self.moe_intermediate_size
                shapes |= mlp_shapes(hidden, size, prefix + names.shared, names.in_shared, biased=biased)
                shapes |= {} if names.shared_gate is None else {prefix + names.shared_gate: (1, hidden)}
        return shapes

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        names = self.names
        blocks = [decoder.layer(i) + (names.block if names.routed is None else names.routed) for i in self.moe_layers]
        return GatedExperts(
            blocks,
            self.moe_intermediate_size,
            names.experts,
            names.fused,
            fused_first=self.fused_first,
            transposed=self.transposed,
        )

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return block_workspace(self.shapes(decoder))

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan = gated_experts_plan(decoder, self.moe, dense, self.experts(decoder))
        return self.with_future_layers(replace(plan, form=self.expert_form or plan.form), decoder)

    def with_future_layers(self, plan: TensorPlan, decoder: DecoderConfig) -> TensorPlan:
        """The plan, with the layers behind the last. What they have of embedding and head are mostly copies."""
        layers = [decoder.layer(decoder.num_layers + i) for i in range(self.num_future_layers)]
        copied = {"embed_tokens.weight": decoder.embedding, "shared_head.head.weight": head(decoder)[0]}
        copies = {layer + name: source for layer in layers for name, source in copied.items()}
        ahead = tuple(rf"{re.escape(layer)}.*" for layer in layers)
        return replace(plan, copies={**plan.copies, **copies}, ahead=(*plan.ahead, *ahead))

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        blocks = list[Block]()
        for i in range(decoder.num_layers):
            norm = None if decoder.names.norms.block is None else decoder.block_norm(i)
            sparse = i in self.moe_layers
            site = BlockSite(i, self.moe_layers.index(i) if sparse else -1, decoder.layer(i) + self.names.block, norm)
            made = (
                self.routed(decoder, layers, experts, profiler, site) if sparse else self.dense(decoder, layers, site)
            )
            blocks.append(made)
        return blocks

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        """The block of a layer with experts."""
        weights = layers.weights
        return MoeBlock(
            site.moe_layer,
            self.router(layers, self, site),
            experts,
            profiler,
            shared=self.shared_mlp(weights, decoder, site.block, site.layer),
            residual=decoder.residual,
            latent=self.latent(weights, decoder, site),
            behind=self._norm_behind(decoder, weights, site.layer),
            replaces=decoder.replaces,
        )

    def latent(self, weights: Weights, decoder: DecoderConfig, site: BlockSite) -> Latent | None:
        """Into the space that routed experts compute in, and back, where that is not the model's own."""
        return None

    def dense(self, decoder: DecoderConfig, layers: Layers, site: BlockSite) -> Block:
        """The block of a layer without experts."""
        weights, form, behind = layers.weights, self.form, self._norm_behind(decoder, layers.weights, site.layer)
        plain = site.norm is not None and site.norm.groups == 1 and form == MlpForm()
        if site.norm is not None and plain and behind is None and not decoder.replaces:
            return GatedMLP(layers.weights, site.block, site.norm, self.names.dense, decoder.activation)
        mlp = SharedExpert(
            weights,
            site.block,
            names=self.names.dense,
            limit=form.limit,
            oai=form.oai,
            caps=form.caps,
            activation=decoder.activation,
            biased=form.biased,
        )
        return DenseBlock(weights.norm(site.norm), mlp, behind or weights.norm(None), replaces=decoder.replaces)

    def shared_mlp(
        self, weights: Weights, decoder: DecoderConfig, block: str, layer: int
    ) -> Callable[[Hidden], Hidden] | None:
        """What a layer with experts gives every token besides, of norm(x)."""
        if not self.shared.count:
            return None
        names, after = self.names, self.shared.limits.get(layer, 0.0)
        return SharedExpert(
            weights,
            block + names.shared,
            None if names.shared_gate is None else block + names.shared_gate,
            names=names.in_shared,
            limit=after or self.form.limit,
            clamps_silu=after > 0,
            oai=self.form.oai,
            caps=self.form.caps,
            activation=decoder.activation,
            biased=self.form.biased,
        )

    def _behind(self, layer: int) -> str | None:
        return self.names.behind if layer in self.moe_layers else self.names.behind_dense

    def _norm_behind(self, decoder: DecoderConfig, weights: Weights, layer: int) -> Callable[[Hidden], Hidden] | None:
        name, a = self._behind(layer), decoder.attention
        if name is None:
            return None
        return weights.norm(NormConfig(f"{decoder.layer(layer)}{name}.weight", a.norm_eps, a.norm))


@dataclass(frozen=True, slots=True)
class ClampingMoe(Moe):
    """Routed experts u * min(silu(gate), limit), u = clip(up, -limit, limit), in some layers."""

    limits: Mapping[int, float] = field(default_factory=dict)  # by the decoder layer

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        limits = {layer: self.limits[i] for layer, i in enumerate(self.moe_layers) if i in self.limits}
        forms = {layer: ExpertForm("clamped_silu", limit=limit) for layer, limit in limits.items()}
        return replace(Moe.plan(self, decoder, dense), layer_forms=forms)


def clamping(blocks: Moe, f: Fields, num_layers: int, routed: str, shared: str) -> ClampingMoe:
    """With the limits of routed experts and of shared ones that these fields list."""
    limits = layer_limits(f, shared, num_layers)
    if limits.keys() - set(blocks.moe_layers):
        raise CheckpointError(f"{f.where}: {shared} of a layer without experts is not supported")
    blocks = replace(blocks, shared=replace(blocks.shared, limits=limits))
    return widened(ClampingMoe, blocks, limits=layer_limits(f, routed, num_layers))


def layer_limits(f: Fields, name: str, num_layers: int) -> dict[int, float]:
    """Of the layers that have one: null and 0 are none. No list is none of any layer."""
    values = f.get(name)
    if not values:
        return {}
    if not isinstance(values, list) or len(values) != num_layers:
        raise CheckpointError(f"{f.where}: {name} must be a list with a number for each of {num_layers} layers")
    return {i: Fields({name: value}, f.where).number(name) for i, value in enumerate(values) if value}


def all_routed(
    moe: MoeShape,
    intermediate_size: int,
    router: MakeRouter,
    names: BlockNames = BlockNames(),
    *,
    normalise: bool = True,
) -> Moe:
    """Experts in every layer, that are chosen without a correction bias, and none that all tokens share."""
    layers = tuple(range(moe.num_layers))
    scoring = Scoring(normalise=normalise, corrected=False)
    return Moe(moe, layers, 0, intermediate_size, router, scoring=scoring, names=names)


def leading_dense(f: Fields, num_layers: int) -> tuple[int, ...]:
    """The layers with experts, where first_k_dense_replace, and in some moe_layer_freq, say which have none."""
    f.present("first_k_dense_replace")
    first, step = f.count("first_k_dense_replace", 0, minimum=0), f.count("moe_layer_freq", 1)
    layers = tuple(i for i in range(first, num_layers) if i % step == 0)
    if not layers:
        raise CheckpointError("config.json: first_k_dense_replace and moe_layer_freq leave no layer with experts")
    return layers


def sparse_layers(
    f: Fields, num_layers: int, *, first_dense: int, counted: str = "first_k_dense_replace"
) -> tuple[int, ...]:
    """The layers with experts, where mlp_layer_types lists them; where it is missing, all but the first ones.

    counted: the field that says how many these are.
    """
    kinds = f.kinds("mlp_layer_types", num_layers, "dense", "sparse")
    if kinds is None:
        kinds = ("dense",) * first_dense + ("sparse",) * (num_layers - first_dense)
    layers = tuple(i for i, kind in enumerate(kinds) if kind == "sparse")
    if not layers:
        named = next((name for name in ("mlp_layer_types", counted) if f.get(name) is not None), None)
        fault = f"without mlp_layer_types and {counted} there is" if named is None else f"{named} leaves"
        raise CheckpointError(f"{f.where}: {fault} no layer with experts")
    return layers
