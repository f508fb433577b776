"""Inkling 2 with layers that run several times (Inkling2LoopForCausalLM in transformers).

Each pass over these layers begins with the state in front of them. From the second on a layer is told what the pass
before has left: of the states of its blocks a query of its own chooses a message for queries, keys, values and experts
each, which gates mix into what the layer is given. Every pass has keys, values and states of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.families.inkling import inkling2
from moeinf.models.families.inkling.inkling2 import BlocksStem, Inkling2Attention, query
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import CommonAttention
from moeinf.models.layers.attention.own_heads import HeadsCore, HeadsPart
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside, convolutions_bytes
from moeinf.models.layers.streams.block_residual import BlockResidual, BlockStates, rms_normed
from moeinf.models.layers.streams.hyper import Connection
from moeinf.models.widened import widened
from moeinf.types import Profiler, Workspace

_QUERIES = ("middle_cycle_cross_pass_queries", "middle_cycle_cross_pass_kv_queries")
_GATES = ("attn", "k", "v", "mlp")  # of the messages for queries, keys, values and experts


@dataclass(frozen=True, slots=True)
class Loop:
    first: int  # layer that runs several times, and the one behind the last
    end: int
    passes: int
    rank: int  # of gates

    @staticmethod
    def parse(f: Fields, num_layers: int, layers_of_block: int) -> Loop:
        published = f.within("loop_config")
        first, end, passes, rank = (
            published.count(name, f.count(own, default))
            for name, own, default in (
                ("core_start", "loop_layer_index_start", 6),
                ("core_end", "loop_layer_index_end", 18),
                ("num_passes", "loop_num_passes", 3),
                ("gate_rank", "loop_gate_rank", 64),
            )
        )
        if first % layers_of_block or end % layers_of_block or not first < end <= num_layers:
            raise CheckpointError(
                f"{f.where}: the layers from {first} to {end} of {num_layers} (loop_layer_index_start, "
                f"loop_layer_index_end) are no whole blocks of {layers_of_block} (n_layers_per_attn_res_block)"
            )
        return Loop(first, end, passes, rank)

    def visits(self, num_layers: int) -> list[tuple[int, int]]:
        """Layer and number of the pass, in the order in which they run."""
        looped = [(layer, number) for number in range(self.passes) for layer in range(self.first, self.end)]
        return [
            *((layer, 0) for layer in range(self.first)),
            *looped,
            *((layer, 0) for layer in range(self.end, num_layers)),
        ]


class Passes:
    """What passes over the same layers hand on, for the tokens of this pass over the model."""

    def __init__(self, states: BlockStates[Array]) -> None:
        self._states = states
        self._first: list[Hidden] = []  # the state in front of the loop
        self._left: list[Array] = []  # what blocks had left there
        self._before: tuple[Hidden, list[Array]] | None = None  # behind the last pass: its state, those of blocks
        self.for_experts: Hidden | None = None  # the message of the layer that runs

    def forget(self) -> None:
        self._before = self.for_experts = None

    def begin(self, x: Hidden, number: int) -> None:
        """Said before the first layer of a pass, which changes x."""
        if number == 0:
            self._first, self._left = [x * 1.0], list(self._states.left)
            return
        self._before = x * 1.0, self._states.left[len(self._left) + 1 :]
        x[...] = self._first[0]
        self._states.left[:] = self._left

    def messages(self, queries: Array) -> list[Hidden]:
        """queries [4, hidden] -> the messages that they choose."""
        assert self._before is not None, "a pass comes first"
        return self._states.given(self._before[0], queries, self._before[1])


class MessageGate:
    """(1 - tanh(F r)) x + tanh(G r) message, with r = D [x / rms(x), message / rms(message)]."""

    def __init__(self, weights: Weights, prefix: str, eps: float) -> None:
        self._math, self._eps = weights.math, eps
        self._down, self._forget, self._gain = (
            weights.linear(f"{prefix}{name}_weight") for name in ("down", "forget", "gain")
        )

    def __call__(self, x: Hidden, message: Hidden) -> Hidden:
        math = self._math
        rank = self._down(math.concatenate([rms_normed(math, each, self._eps) for each in (x, message)], 1))
        return x - math.tanh(self._forget(rank)) * x + math.tanh(self._gain(rank)) * message


class LoopAttention(Inkling2Attention):
    """In the first pass Inkling 2's; what `again` makes of it is told messages."""

    def __init__(
        self,
        layers: Layers,
        c: Config,
        site: AttentionSite,
        convolutions: ConvolutionsBeside[Array],
        states: BlockStates[Array],
        passes: Passes,
    ) -> None:
        super().__init__(layers, c, site, convolutions, states, site.layer)
        weights, eps = layers.weights, self._config.norm_eps
        self._passes, self._number, self._starts = passes, 0, site.layer == c.loop.first
        self._gates = [MessageGate(weights, prefix, eps) for prefix in c.gates_of(site.layer)[:3]]
        ours, of_keys_and_values = (query(weights, c, name) for name in _QUERIES)
        at = 2 * (site.layer - c.loop.first)
        parts = [ours[at : at + 1], of_keys_and_values[at : at + 2], ours[at + 1 : at + 2]]
        self._messages = weights.math.concatenate(parts, 0)

    def again(self, core: HeadsCore, convolutions: ConvolutionsBeside[Array], number: int) -> LoopAttention:
        """The same matrices in another pass, with states of their own."""
        found = copy(self)
        found._core, found._convolutions, found._number = core, convolutions, number
        return found

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        if self._starts:
            self._passes.begin(x, self._number)
        super().add_rows(x, spans)

    def _given(self, x: Hidden) -> list[Hidden]:
        given = super()._given(x)
        if self._number == 0:
            return given
        *messages, self._passes.for_experts = self._passes.messages(self._messages)
        given = given * (3 if len(given) == 1 else 1)
        return [gate(each, told) for gate, each, told in zip(self._gates, given, messages, strict=True)]


class ToldResidual:
    """moeinf.models.layers.streams.hyper.Connection, of experts that are told a message."""

    def __init__(self, residual: BlockResidual, passes: Passes, gate: MessageGate) -> None:
        self._residual, self._passes, self._gate = residual, passes, gate

    def read(self, streams: Hidden) -> tuple[Hidden, None]:
        given, told = self._residual.read(streams)[0], self._passes.for_experts
        return (given if told is None else self._gate(given, told)), None  # none: a guess, before the pass begins

    def write(self, streams: Hidden, added: Hidden, known: object) -> None:
        self._residual.write(streams, added, known)


class LoopStem(BlocksStem):
    """moeinf.models.layers.streams.stem.Stem."""

    def __init__(self, passes: Passes, *of_blocks: Any) -> None:
        super().__init__(*of_blocks)
        self._passes = passes

    def begin(self, x: Array) -> Hidden:
        self._passes.forget()
        return super().begin(x)


@dataclass(frozen=True, slots=True)
class Config(inkling2.Config):
    loop: Loop

    @staticmethod
    def parse(f: Fields) -> Config:
        c = inkling2.Config.parse(f)
        return widened(Config, c, loop=Loop.parse(f, c.decoder.num_layers, c.layers_of_block))

    def gates_of(self, layer: int) -> list[str]:
        """What the names of their tensors begin with."""
        return [f"{self.decoder.module(layer, f'controllers.{name}')}." for name in _GATES]

    @property
    def visits(self) -> list[tuple[int, int]]:
        return self.loop.visits(self.decoder.num_layers)

    @property
    def as_run(self) -> DecoderConfig:
        """With a layer for each visit."""
        d, layers = self.decoder, [layer for layer, _ in self.visits]
        special = {visit: d.special[layer] for visit, layer in enumerate(layers) if layer in d.special}
        return replace(d, num_layers=len(layers), special=special)


class Family(inkling2.Family):
    name = "inkling2_loop"
    repeats = True
    config_of = staticmethod(Config.parse)
    _config: Config

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, weights, count = self._config, self.decoder, layers.weights, len(self._config.visits)
        states = BlockStates[Array](weights.math)
        passes, attention, blocks = Passes(states), list[Inkling2Attention](), list[Block]()
        beside, gates = list[ConvolutionsBeside[Array]](), dict[int, MessageGate]()
        for visit, (layer, number) in enumerate(c.visits):
            site, residual = d.attention_site(layer, "attn"), self.residual(weights, layer, states)
            told: Connection = residual
            if number > 0:
                first = attention[layer]
                assert isinstance(first, LoopAttention)
                beside.append(beside[layer].again(count + visit))
                core = layers.make(HeadsPart(d.attention_of(layer), visit, f"{site.prefix}rel_logits_proj.proj"))
                attention.append(first.again(core, beside[-1], number))
                told = ToldResidual(residual, passes, gates[layer])
            else:
                beside.append(self.beside(weights, layer, count + visit))
                own = (layers, c, site, beside[-1], states)
                if c.loop.first <= layer < c.loop.end:
                    attention.append(LoopAttention(*own, passes))
                    gates[layer] = MessageGate(weights, c.gates_of(layer)[3], d.attention.norm_eps)
                else:
                    attention.append(Inkling2Attention(*own, visit))
            blocks.append(self.block(layer, layers, experts, profiler, beside[-1], told))
        norm = weights.norm(NormConfig(f"{d.prefix}embed_norm.weight", d.attention.norm_eps))
        further, last = [each.new_state for each in beside], query(weights, c, "attn_res.output_query")
        stem = LoopStem(passes, layers.embedding(d.embedding), norm, further, states, last)
        return Decoder(c.as_run, layers, blocks, experts, profiler, attention, stem)

    def attention_shapes(self) -> Shapes:
        c, d, shapes = self._config, self.decoder, super().attention_shapes()
        hidden, looped = d.attention.hidden_size, range(c.loop.first, c.loop.end)
        shapes |= {d.prefix + name: (2 * len(looped), hidden) for name in _QUERIES}
        for layer in looped:
            for prefix in c.gates_of(layer):
                shapes |= {f"{prefix}{name}_weight": (hidden, c.loop.rank) for name in ("forget", "gain")}
                shapes[f"{prefix}down_weight"] = (c.loop.rank, 2 * hidden)
        return shapes

    @property
    def attention_workspace(self) -> Workspace:
        """Beside what Inkling 2's layers take: the states of two passes, messages and what gates make of them."""
        hidden, found = self.decoder.attention.hidden_size, super().attention_workspace
        looped = (self._config.loop.end - self._config.loop.first) // self._config.layers_of_block
        return replace(found, token=found.token + (looped + 12) * hidden, inputs=max(found.inputs, 2 * hidden))

    @property
    def cache_numbers(self) -> int:
        run = self._config.as_run
        return sum(CommonAttention(run.attention_of(i)).row_numbers for i in range(run.num_layers))

    @property
    def state_bytes(self) -> int:
        c = self._config.common
        return sum(convolutions_bytes(c.kernel, sum(c.widths_of(layer))) for layer, _ in self._config.visits)
