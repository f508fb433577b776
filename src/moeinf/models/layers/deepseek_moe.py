"""Blocks of DeepSeek's kind: dense layers first, then experts chosen within groups, beside some that all share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Array, ArrayMath, Hidden
from moeinf.models.layers.attention_config import MLP_NAMES, NormConfig, Shapes, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, head
from moeinf.models.layers.moe_block import DenseBlock, MoeBlock, SharedExpert
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Block, Experts, Layers, Router, Weights
from moeinf.types import MoeShape, Profiler, TensorPlan

MakeRouter = Callable[[Weights, "DeepseekMoe", str, NormConfig], Router]  # the string: prefix of the block's tensors


@dataclass(frozen=True, slots=True)
class BlockNames:
    """What a family calls a layer's block, and the dense tensors in it."""

    block: str = "mlp."
    gate: str = "gate.weight"
    bias: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts."
    experts: tuple[str, str, str] = MLP_NAMES  # gate, up and down of one expert
    in_shared: tuple[str, str, str] = MLP_NAMES  # of the shared experts
    dense: tuple[str, str, str] = MLP_NAMES  # of the MLP of a layer without experts
    behind: str | None = None  # behind the layer's prefix: an RMS norm of what the block adds
    behind_dense: str | None = None  # the same of a dense layer


@dataclass(frozen=True, slots=True)
class DeepseekMoe:
    moe: MoeShape
    moe_layers: tuple[int, ...]  # decoder layers that have experts; the others a dense MLP
    intermediate_size: int  # of the dense MLPs
    moe_intermediate_size: int
    num_shared_experts: int  # one MLP, so many times as wide as an expert
    num_groups: int = 1  # of experts, of which a token uses those of groups_used
    groups_used: int = 1
    scaling: float = 1.0  # of the weights
    normalise: bool = True  # the weights sum to 1 before they are scaled
    corrected: bool = True  # the choice, but not the weights, is by scores + e_score_correction_bias
    num_future_layers: int = 0  # behind the last, which predict further tokens (MTP): kept, not computed
    names: BlockNames = BlockNames()
    shared_limit: float = 0.0  # of what their activation is given, and that of dense MLPs; 0: there is none
    shared_oai: bool = False  # they compute what gpt-oss's experts do
    shared_limits: Mapping[int, float] = field(default_factory=dict)  # by decoder layer: of silu(gate) and up instead
    mlp_bias: bool = False  # of the matrices of shared experts and dense MLPs
    least_sum: float = 0.0  # that a token's weights are divided by, in a family that has such a bound
    shared_size: int = 0  # of the shared experts' MLP, where it is no multiple of an expert's

    @staticmethod
    def parse(
        f: Fields,
        num_layers: int,
        *,
        normalise: bool,
        corrected: bool,
        num_future_layers: int = 0,
        moe_layers: Sequence[int] | None = None,
        shared: str = "n_shared_experts",
    ) -> DeepseekMoe:
        """normalise, num_future_layers: the family's defaults. moe_layers: where first_k_dense_replace does not say.
        shared: the field that counts the shared experts."""
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
        return DeepseekMoe(
            moe,
            moe_layers,
            f.count("intermediate_size", 0 if len(moe_layers) == num_layers else None),
            f.count("moe_intermediate_size"),
            f.count(shared, 0, minimum=0),
            groups,
            used,
            f.number("routed_scaling_factor", 1.0),
            f.flag("norm_topk_prob", normalise),
            corrected,
            future,
        )

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the blocks' dense tensors."""
        hidden, shapes = decoder.attention.hidden_size, Shapes()
        for i in range(decoder.num_layers):
            layer = f"{decoder.prefix}layers.{i}."
            prefix, behind = layer + self.names.block, self._behind(i)
            if behind is not None:
                shapes[f"{layer}{behind}.weight"] = (hidden,)
            if i not in self.moe_layers:
                shapes |= mlp_shapes(hidden, self.intermediate_size, prefix, self.names.dense, biased=self.mlp_bias)
                continue
            experts = self.moe.experts_of(self.moe_layers.index(i))
            shapes[prefix + self.names.gate] = (experts, hidden)
            if self.corrected:
                shapes[prefix + self.names.bias] = (experts,)
            if self.num_shared_experts:
                shared = self.shared_size or self.num_shared_experts * self.moe_intermediate_size
                block = prefix + self.names.shared
                shapes |= mlp_shapes(hidden, shared, block, self.names.in_shared, biased=self.mlp_bias)
        return shapes

    def experts(self, decoder: DecoderConfig) -> GatedExperts:
        blocks = [f"{decoder.prefix}layers.{i}.{self.names.block}" for i in self.moe_layers]
        return GatedExperts(blocks, self.moe_intermediate_size, self.names.experts)

    def with_future_layers(self, plan: TensorPlan, decoder: DecoderConfig) -> TensorPlan:
        """The plan, with the layers behind the last. What they have of embedding and head are mostly copies."""
        prefix = f"{decoder.prefix}layers."
        layers = [f"{prefix}{decoder.num_layers + i}." for i in range(self.num_future_layers)]
        copied = {"embed_tokens.weight": decoder.embedding, "shared_head.head.weight": head(decoder)[0]}
        copies = {layer + name: source for layer in layers for name, source in copied.items()}
        ahead = tuple(rf"{re.escape(layer)}.*" for layer in layers)
        return replace(plan, copies={**plan.copies, **copies}, ahead=ahead)

    def blocks(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, router: MakeRouter
    ) -> list[Block]:
        blocks = list[Block]()
        for i in range(decoder.num_layers):
            layer, norm, weights = f"{decoder.prefix}layers.{i}.", decoder.block_norm(i), layers.weights
            prefix, name = layer + self.names.block, self._behind(i)
            own = replace(norm, name=f"{layer}{name}.weight", eps=decoder.attention.norm_eps)
            behind = None if name is None else weights.norm(own)
            if i not in self.moe_layers:
                blocks.append(self._dense(decoder, layers, prefix, norm, behind))
                continue
            gate = router(weights, self, prefix, norm)
            shared, replaces = self._shared(weights, decoder, prefix, i), decoder.replaces
            moe_layer = self.moe_layers.index(i)
            blocks.append(MoeBlock(moe_layer, gate, experts, profiler, shared=shared, behind=behind, replaces=replaces))
        return blocks

    def _dense(
        self,
        decoder: DecoderConfig,
        layers: Layers,
        block: str,
        norm: NormConfig,
        behind: Callable[[Hidden], Hidden] | None,
    ) -> Block:
        if behind is None and not decoder.replaces and not self.shared_limit and not self.mlp_bias:
            return layers.gated_mlp(block, norm, self.names.dense, decoder.activation)
        weights = layers.weights
        limit, oai, activation = self.shared_limit, self.shared_oai, decoder.activation
        mlp = SharedExpert(
            weights, block, names=self.names.dense, limit=limit, oai=oai, activation=activation, biased=self.mlp_bias
        )
        return DenseBlock(weights.norm(norm), mlp, behind or weights.norm(None), replaces=decoder.replaces)

    def _shared(self, weights: Weights, decoder: DecoderConfig, block: str, layer: int) -> SharedExpert | None:
        if not self.num_shared_experts:
            return None
        prefix, names = block + self.names.shared, self.names.in_shared
        limit, after, oai = self.shared_limit, self.shared_limits.get(layer, 0.0), self.shared_oai
        return SharedExpert(
            weights,
            prefix,
            names=names,
            limit=after or limit,
            clamps_silu=after > 0,
            oai=oai,
            activation=decoder.activation,
            biased=self.mlp_bias,
        )

    def _behind(self, layer: int) -> str | None:
        return self.names.behind if layer in self.moe_layers else self.names.behind_dense


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


class Groups:
    """Keeps, of each token's scores, those of its best groups of experts."""

    def __init__(self, math: ArrayMath, config: DeepseekMoe) -> None:
        self._math, self._count, self._used = math, config.num_groups, config.groups_used
        self._numbers = math.of_host(np.arange(config.num_groups))

    def kept(self, scores: Array, of_group: Callable[[Array], Array], instead: float) -> Array:
        """scores [tokens, experts], but `instead` outside of the chosen groups.

        of_group: [tokens, groups, experts of a group] -> [tokens, groups], what groups are chosen by.
        """
        if self._used == self._count:
            return scores
        grouped = scores.reshape(len(scores), self._count, -1)
        chosen = self._math.top_k(of_group(grouped), self._used)
        is_chosen = (chosen[..., None] == self._numbers).any(1)
        return self._math.where(is_chosen[..., None], grouped, instead).reshape(*scores.shape)


class SigmoidRouter:
    """noaux_tc (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; Gate of the published inference/model.py).

    Each expert has a score sigmoid(w x). Chosen is by score + bias, first the groups with the largest sums of their
    two best, then the best experts in them; weighted is by the scores alone.
    """

    added = 1e-20  # to the sum that weights are divided by
    outside = -np.inf  # what counts as the score of experts outside of the chosen groups

    def __init__(self, weights: Weights, config: DeepseekMoe, block: str, norm: NormConfig) -> None:
        self._config, self._math, self._routing = config, weights.math, weights.routing
        self._norm, self._gate = weights.norm(norm), self._gate_of(weights, block + config.names.gate)
        self._bias = weights.vector(block + config.names.bias) if config.corrected else None
        self._groups = Groups(weights.math, config)

    def _gate_of(self, weights: Weights, name: str) -> Callable[[Hidden], Hidden]:
        return weights.linear(name)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        c, math = self._config, self._math
        hidden = self._norm(x)
        scores = self._scores(self._gate(hidden))
        by = scores if self._bias is None else scores + self._bias
        kept = self._groups.kept(by, self._best_two, self.outside)
        ids = math.top_k(kept, c.moe.top_k)
        weights = math.take(scores, ids)
        if c.normalise:
            weights = weights / self._total(weights)
        routing = self._routing(ids, weights * c.scaling)
        return hidden, routing

    def _scores(self, logits: Array) -> Array:
        return self._math.sigmoid(logits)

    def _total(self, weights: Array) -> Array:
        """What the weights of a token are divided by."""
        return self._math.sum(weights, -1, True) + self.added

    def _best_two(self, grouped: Array) -> Array:
        math = self._math
        return math.sum(math.take(grouped, math.top_k(grouped, 2)), -1, False)
