"""gpt-oss: attention sinks, every other layer a window, biased experts in MXFP4 (arXiv 2508.10925; openai/gpt-oss)."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention_config import NormConfig, Scores, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, copies, frequencies, head, linear_names, parse_decoder
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.models.layers.rope import names_positions
from moeinf.types import ExpertForm, ExpertPiece, JsonObject, MoeShape, Profiler, TensorPlan

Layout = dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]
# what a config that names no positions means, in every transformers that has the model
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int
    limit: float  # of what the experts' activation is given

    @staticmethod
    def parse(config: JsonObject) -> Config:
        f = Fields(config)
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
        kinds = f.kinds("layer_types", decoder.num_layers, "sliding_attention", "full_attention")
        if kinds is None:
            kinds = ("sliding_attention", "full_attention") * decoder.num_layers
        window = f.count("sliding_window", 128)
        windows = [window if kind == "sliding_attention" else None for kind in kinds[: decoder.num_layers]]
        top_k = f.count_of("num_experts_per_tok", "experts_per_token")
        moe = routed_shape(f, ("num_local_experts", "num_experts"), top_k, decoder.num_layers)
        return Config(decoder.with_windows(windows), moe, f.count("intermediate_size"), f.number("swiglu_limit", 7.0))


class BiasedRouter:
    """Norm, then the best k of the biased scores, and softmax over these (published code: MLPBlock)."""

    def __init__(self, weights: Weights, prefix: str, norm: NormConfig, top_k: int) -> None:
        self._weights, self._top_k = weights, top_k
        self._gate, self._norm = weights.linear(f"{prefix}weight", f"{prefix}bias"), weights.norm(norm)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden, math = self._norm(x), self._weights.math
        scores = self._gate(hidden)  # [tokens, experts]
        ids = math.top_k(scores, self._top_k)
        return hidden, self._weights.routing(ids, math.softmax(math.take(scores, ids)))


class Family(DecoderFamily):
    name = "gpt_oss"

    def __init__(self, config: JsonObject) -> None:
        self._config = c = Config.parse(config)
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, blocks = self._config, list[Block]()
        for i, block in enumerate(self._blocks()):
            router = BiasedRouter(layers.weights, f"{block}router.", c.decoder.block_norm(i), c.moe.top_k)
            blocks.append(MoeBlock(i, router, experts, profiler))
        return Decoder(c.decoder, layers, blocks, experts, profiler)

    def _blocks(self) -> list[str]:
        return [f"model.layers.{i}.mlp." for i in range(self.decoder.num_layers)]

    def block_shapes(self) -> Shapes:
        shapes = Shapes()
        for i, block in enumerate(self._blocks()):
            experts = self.moe.experts_of(i)
            shapes |= {
                f"{block}router.weight": (experts, self.decoder.attention.hidden_size),
                f"{block}router.bias": (experts,),
            }
        return shapes

    def plan(self) -> TensorPlan:
        c = self._config
        hidden, inter = c.decoder.attention.hidden_size, c.intermediate_size
        parts = {
            "gate": (inter, hidden),
            "up": (inter, hidden),
            "down": (hidden, inter),
            "gate_bias": (inter,),
            "up_bias": (inter,),
            "down_bias": (hidden,),
        }

        shipped: Layout = {}
        plain: Layout = {}
        scales = dict[str, str]()
        for layer, block in enumerate(self._blocks()):
            experts = c.moe.experts_of(layer)
            both, down = f"{block}experts.gate_up_proj", f"{block}experts.down_proj"
            biases = {
                f"{both}_bias": ((experts, 2 * inter), _gate_and_up(layer, c, 2 * inter, 1, (2,), "_bias")),
                f"{down}_bias": ((experts, hidden), _down(layer, c, hidden, None, "_bias")),
            }
            shipped |= biases | {  # MXFP4, [experts, rows, cols]: rows of gate and up in turn
                f"{both}_blocks": (
                    (experts, 2 * inter, hidden // 32, 16),
                    _gate_and_up(layer, c, 2 * inter * hidden, hidden, (2 * hidden, 1)),
                ),
                f"{down}_blocks": ((experts, hidden, inter // 32, 16), _down(layer, c, hidden * inter, None)),
            }
            plain |= biases | {  # as transformers has them in memory: [experts, cols, rows]
                both: ((experts, hidden, 2 * inter), _gate_and_up(layer, c, 2 * inter * hidden, 1, (2, 2 * inter))),
                down: ((experts, inter, hidden), _down(layer, c, hidden * inter, (1, hidden))),
            }
            scales |= {f"{name}_blocks": f"{name}_scales" for name in (both, down)}
        return TensorPlan(
            c.moe,
            parts,
            self.dense,
            (shipped, plain),
            matrices=linear_names(self.dense),
            lookups=frozenset({c.decoder.embedding}),
            head=head(c.decoder),
            form=ExpertForm("swiglu_clamped", biased=True, limit=c.limit),
            scales=scales,
            copies=copies(c.decoder),
            tied_head=c.decoder.head if c.decoder.tied_embeddings else None,
            follows=frequencies(c.decoder),
        )


def _gate_and_up(
    layer: int, c: Config, size: int, step: int, strides: tuple[int, ...], kind: str = ""
) -> tuple[ExpertPiece, ...]:
    """The pieces of a tensor that has `size` elements an expert; the up projection begins `step` behind the gate."""
    return tuple(
        ExpertPiece(layer, expert, part + kind, expert * size + half * step, strides)
        for expert in range(c.moe.experts_of(layer))
        for half, part in enumerate(("gate", "up"))
    )


def _down(layer: int, c: Config, size: int, strides: tuple[int, ...] | None, kind: str = "") -> tuple[ExpertPiece, ...]:
    return tuple(
        ExpertPiece(layer, expert, "down" + kind, expert * size, strides) for expert in range(c.moe.experts_of(layer))
    )
