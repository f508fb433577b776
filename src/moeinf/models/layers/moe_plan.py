"""Tensor plans and sizes of models, whose experts are gated MLPs (gate, up, down) or plain ones (up, down)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moeinf.models.layers.attention_config import Heads, Shapes
from moeinf.models.layers.decoder import DecoderConfig, copies, frequencies, head, linear_names
from moeinf.types import Activation, DType, ExpertForm, ExpertPiece, ModelInfo, MoeShape, TensorPlan, Workspace

PARTS = ("gate", "up", "down")
Layout = dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]  # as TensorPlan.experts has them


@dataclass(frozen=True, slots=True)
class GatedExperts:
    """What a family calls the tensors of its experts, in both layouts in which transformers writes them."""

    blocks: Sequence[str]  # prefix of the block of each MoE layer, such as `model.layers.3.mlp.`
    intermediate_size: int
    names: tuple[str, str, str] | None  # gate, up and down, where each expert has tensors of its own, if it ever has
    fused_names: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")  # of all experts together
    fused_first: bool = False  # which a checkpoint without experts is said to lack
    transposed: bool = False  # these were published as [experts, hidden, 2 intermediate] and [.., intermediate, hidden]
    hidden_size: int = 0  # that they are given and give; 0: the model's own


def gated_experts_plan(config: DecoderConfig, moe: MoeShape, dense: Shapes, experts: GatedExperts) -> TensorPlan:
    hidden, intermediate = experts.hidden_size or config.attention.hidden_size, experts.intermediate_size
    shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    separate: Layout = {
        f"{block}experts.{expert}.{name}.weight": (shapes[part], (ExpertPiece(layer, expert, part, 0),))
        for layer, block in enumerate(experts.blocks)
        for expert in range(moe.experts_of(layer))
        for part, name in zip(PARTS, experts.names or (), strict=experts.names is not None)
    }
    layouts: list[Layout] = [] if experts.names is None else [separate]
    layouts += [_fused(experts, moe, hidden, transposed=True)] if experts.transposed else []
    layouts.append(_fused(experts, moe, hidden, transposed=False))
    return TensorPlan(
        moe,
        shapes,
        dense,
        [*layouts[1:], layouts[0]] if experts.fused_first else layouts,
        matrices=linear_names(dense),
        lookups=frozenset({config.embedding}),
        head=head(config),
        copies=copies(config),
        tied_head=config.head if config.tied_embeddings else None,
        follows=frequencies(config),
        form=ExpertForm(config.activation),
    )


def _fused(experts: GatedExperts, moe: MoeShape, hidden: int, *, transposed: bool) -> Layout:
    """One tensor has gate and up of all experts of a layer, one half behind the other, and one has down."""
    layout, inter = Layout(), experts.intermediate_size
    size, step = inter * hidden, inter if transposed else inter * hidden
    for layer, block in enumerate(experts.blocks):
        count = moe.experts_of(layer)
        layout[block + experts.fused_names[0]] = (
            (count, hidden, 2 * inter) if transposed else (count, 2 * inter, hidden),
            tuple(
                ExpertPiece(layer, e, part, 2 * e * size + half * step, (1, 2 * inter) if transposed else None)
                for e in range(count)
                for half, part in enumerate(("gate", "up"))
            ),
        )
        layout[block + experts.fused_names[1]] = (
            (count, inter, hidden) if transposed else (count, hidden, inter),
            tuple(ExpertPiece(layer, e, "down", e * size, (1, hidden) if transposed else None) for e in range(count)),
        )
    return layout


def interleaved(prefixes: Sequence[str], moe: MoeShape, hidden: int, intermediate: int) -> Layout:
    """One tensor has the rows of gate and up of all experts of a layer in turn, and one has down.

    prefixes: of both, behind which they are called w13_weight and w2_weight."""
    layout, size = Layout(), intermediate * hidden
    for layer, prefix in enumerate(prefixes):
        experts = range(moe.experts_of(layer))
        both = tuple(
            ExpertPiece(layer, e, part, 2 * e * size + half * hidden, (2 * hidden, 1))
            for e in experts
            for half, part in enumerate(("gate", "up"))
        )
        down = tuple(ExpertPiece(layer, e, "down", e * size) for e in experts)
        layout[f"{prefix}w13_weight"] = (len(experts), 2 * intermediate, hidden), both
        layout[f"{prefix}w2_weight"] = (len(experts), hidden, intermediate), down
    return layout


@dataclass(frozen=True, slots=True)
class UngatedExperts:
    """Experts of a decoder without a gate, in the layouts in which transformers and NeMo write them."""

    blocks: Sequence[str]  # prefix of the block of each MoE layer
    hidden_size: int  # that they are given and give
    intermediate_size: int
    activation: Activation
    names: tuple[str, str] = ("up_proj", "down_proj")
    transposed: tuple[str, str] | None = None  # of all experts together, each matrix [in, out], where they ever are


def ungated_experts_plan(config: DecoderConfig, moe: MoeShape, dense: Shapes, experts: UngatedExperts) -> TensorPlan:
    hidden, intermediate = experts.hidden_size, experts.intermediate_size
    parts: Shapes = {"up": (intermediate, hidden), "down": (hidden, intermediate)}
    separate, fused, transposed = Layout(), Layout(), Layout()
    for layer, block in enumerate(experts.blocks):
        numbers = range(moe.experts_of(layer))
        for at, (part, shape) in enumerate(parts.items()):
            name = experts.names[at]
            for e in numbers:
                separate[f"{block}experts.{e}.{name}.weight"] = (shape, (ExpertPiece(layer, e, part, 0),))
            pieces = tuple(ExpertPiece(layer, e, part, e * hidden * intermediate) for e in numbers)
            fused[f"{block}experts.{name}"] = ((len(numbers), *shape), pieces)
            if experts.transposed is not None:
                turned = tuple(replace(piece, strides=(1, shape[0])) for piece in pieces)
                transposed[block + experts.transposed[at]] = ((len(numbers), *reversed(shape)), turned)
    return TensorPlan(
        moe,
        parts,
        dense,
        (separate, fused) + ((transposed,) if transposed else ()),
        matrices=linear_names(dense),
        lookups=frozenset({config.embedding}),
        head=head(config),
        form=ExpertForm(experts.activation, gated=False),
        copies=copies(config),
        tied_head=config.head if config.tied_embeddings else None,
        follows=frequencies(config),
    )


def block_workspace(shapes: Shapes) -> Workspace:
    """What dense blocks hold while they compute: what each matrix makes of a token, and what is made of that.

    shapes: of the tensors that blocks read.
    """
    rows = dict[str, int]()
    for name, shape in shapes.items():
        if len(shape) == 2:
            module = name.rsplit(".", 2)[0]
            rows[module] = rows.get(module, 0) + shape[0]
    widest = max((shape[1] for shape in shapes.values() if len(shape) == 2), default=0)
    return Workspace(token=3 * max(rows.values(), default=0), inputs=widest)


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """Experts without a gate, each with tensors of its own: `<block>experts.expert_<e>.<name>.weight`."""

    blocks: Mapping[str, int]  # of each layer with experts: prefix of its block, and the intermediate size
    names: tuple[str, str]  # what the family calls the matrices up and down
    biased: bool
    activation: Activation

    def parts(self, hidden: int, intermediate: int) -> Shapes:
        """The parts of one expert."""
        parts: Shapes = {"up": (intermediate, hidden), "down": (hidden, intermediate)}
        return parts | ({"up_bias": (intermediate,), "down_bias": (hidden,)} if self.biased else {})


def plain_experts_plan(moe: MoeShape, hidden: int, dense: Shapes, experts: PlainExperts) -> TensorPlan:
    """The plan, but for what its family says of single dense tensors.

    Where the experts of some layers are smaller, they are filled up with zeros, of which activations make zeros again.
    """
    up, down = experts.names
    own = {"up": f"{up}.weight", "down": f"{down}.weight", "up_bias": f"{up}.bias", "down_bias": f"{down}.bias"}
    parts = experts.parts(hidden, max(experts.blocks.values()))
    layout = {
        f"{block}experts.expert_{expert}.{own[part]}": (
            shape,
            (ExpertPiece(layer, expert, part, 0, filled=None if shape == parts[part] else shape),),
        )
        for layer, (block, intermediate) in enumerate(experts.blocks.items())
        for expert in range(moe.num_experts)
        for part, shape in experts.parts(hidden, intermediate).items()
    }
    return TensorPlan(
        moe, parts, dense, (layout,), form=ExpertForm(experts.activation, gated=False, biased=experts.biased)
    )


@dataclass(frozen=True, slots=True)
class Seq2seqSizes:
    """The sizes of an encoder-decoder model that its tensors do not tell."""

    context_length: int  # of a source, and of an answer
    hidden_size: int
    vocab_size: int
    num_layers: int  # of both stacks
    num_decoder_layers: int
    decoder_heads: Heads


def seq2seq_info(name: str, plan: TensorPlan, sizes: Seq2seqSizes, dtype: DType) -> ModelInfo:
    """Sizes of such a model. A token of the context has room in the source and in the answer."""
    experts = sum(math.prod(shape) for shape, _ in plan.experts[0].values())
    dense = sum(math.prod(shape) for shape in plan.dense.values())
    heads = sizes.decoder_heads
    return ModelInfo(
        architecture=name,
        num_params=dense + experts,
        active_params=dense + experts * plan.moe.top_k // plan.moe.num_experts,
        num_shared_experts=0,
        context_length=sizes.context_length,
        hidden_size=sizes.hidden_size,
        num_layers=sizes.num_layers,
        vocab_size=sizes.vocab_size,
        kv_bytes_per_token=2 * 2 * sizes.num_decoder_layers * heads.num_heads * heads.head_dim * 4,  # always float32
        dtype=dtype,
    )
