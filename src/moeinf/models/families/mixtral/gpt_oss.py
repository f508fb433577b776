"""gpt-oss: attention sinks, every other layer a window, biased experts in MXFP4 (arXiv 2508.10925; openai/gpt-oss)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Scores, Shapes
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder, sliding_layers
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe
from moeinf.models.layers.moe_plan import Layout
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.rope import names_positions
from moeinf.types import ExpertForm, ExpertPiece, TensorPlan

# what a config that names no positions means, in every transformers that has the model
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _parse(f: Fields) -> Spec:
    if not names_positions(f):
        f = f.replaced(rope_parameters=_YARN)
    f.only("swiglu_alpha", 1.702, None)
    f.present("head_dim")
    biased = f.flag("attention_bias", True)
    out_biased = f.flag("attention_out_bias", biased)
    decoder = parse_decoder(
        f,
        norm_eps=1e-5,
        theta=1.5e5,
        quant_methods=("mxfp4",),
        scores=Scores(sinks="sinks"),
        bias=biased,
        output_bias=out_biased,
    )
    num_layers = decoder.num_layers
    slides, window = sliding_layers(f, num_layers, lambda i: i % 2 == 0), f.count("sliding_window", 128)
    top_k = f.count_of("num_experts_per_tok", "experts_per_token")
    blocks = Mxfp4Moe(
        routed_shape(f, ("num_local_experts", "num_experts"), top_k, num_layers),
        tuple(range(num_layers)),
        0,
        f.count("intermediate_size"),
        BiasedRouter,
        names=BlockNames(gate="router.weight", bias="router.bias"),
        expert_form=ExpertForm("swiglu_clamped", biased=True, limit=f.number("swiglu_limit", 7.0)),
    )
    return Spec(decoder.with_windows(slides, window), blocks)


class BiasedRouter:
    """Norm, then the best k of the biased scores, and softmax over these (published code: MLPBlock)."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights, names = layers.weights, moe.names
        self._weights, self._top_k = weights, moe.moe.top_k
        self._gate = weights.linear(site.block + names.gate, site.block + names.bias)
        self._norm = weights.norm(site.norm)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden, math = self._norm(x), self._weights.math
        scores = self._gate(hidden)  # [tokens, experts]
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        return hidden, self._weights.routing(ids, math.softmax(chosen), self._spares(scores, chosen))

    def _spares(self, scores: Array, chosen: Array) -> tuple[Array, Array, bool] | None:
        """The experts behind the chosen ones, where somebody asks for them."""
        math, spares = self._weights.math, self._weights.spares
        if not spares:
            return None
        ids = math.top_k(scores, self._top_k + spares)[:, self._top_k :]
        best = math.max(chosen, -1, True)
        return ids, math.exp(math.take(scores, ids) - best) / math.sum(math.exp(chosen - best), -1, True), True


@dataclass(frozen=True, slots=True)
class Mxfp4Moe(Moe):
    """Biased experts, as they are published and as transformers has them in memory."""

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        plan, moe = Moe.plan(self, decoder, dense), self.moe
        hidden, inter = decoder.attention.hidden_size, self.moe_intermediate_size
        shipped, plain = Layout(), Layout()
        for layer, i in enumerate(self.moe_layers):
            experts, prefix = moe.experts_of(layer), f"{decoder.layer(i)}{self.names.block}experts."
            both, down = f"{prefix}gate_up_proj", f"{prefix}down_proj"
            biases: Layout = {
                f"{both}_bias": ((experts, 2 * inter), _gate_and_up(layer, experts, 2 * inter, 1, (2,), "_bias")),
                f"{down}_bias": ((experts, hidden), _down(layer, experts, hidden, None, "_bias")),
            }
            shipped |= biases | {  # MXFP4, [experts, rows, cols]: rows of gate and up in turn
                f"{both}_blocks": (
                    (experts, 2 * inter, hidden // 32, 16),
                    _gate_and_up(layer, experts, 2 * inter * hidden, hidden, (2 * hidden, 1)),
                ),
                f"{down}_blocks": ((experts, hidden, inter // 32, 16), _down(layer, experts, hidden * inter, None)),
            }
            plain |= biases | {  # [experts, cols, rows]
                both: (
                    (experts, hidden, 2 * inter),
                    _gate_and_up(layer, experts, 2 * inter * hidden, 1, (2, 2 * inter)),
                ),
                down: ((experts, inter, hidden), _down(layer, experts, hidden * inter, (1, hidden))),
            }
        parts = {**plan.parts, "gate_bias": (inter,), "up_bias": (inter,), "down_bias": (hidden,)}
        return replace(plan, parts=parts, experts=(shipped, plain))


def _gate_and_up(
    layer: int, experts: int, size: int, step: int, strides: tuple[int, ...], kind: str = ""
) -> tuple[ExpertPiece, ...]:
    """The pieces of a tensor that has `size` elements an expert; the up projection begins `step` behind the gate."""
    return tuple(
        ExpertPiece(layer, expert, part + kind, expert * size + half * step, strides)
        for expert in range(experts)
        for half, part in enumerate(("gate", "up"))
    )


def _down(
    layer: int, experts: int, size: int, strides: tuple[int, ...] | None, kind: str = ""
) -> tuple[ExpertPiece, ...]:
    return tuple(ExpertPiece(layer, expert, "down" + kind, expert * size, strides) for expert in range(experts))


class Family(DecoderFamily):
    name = "gpt_oss"
    parse = staticmethod(_parse)
