"""Inkling 2 with layers that run several times (Inkling2LoopForCausalLM in transformers).

Each pass over these layers begins with the state in front of them. From the second on a layer is told what the pass
before has left: of the states of its blocks a query of its own chooses a message for queries, keys, values and experts
each, which gates mix into what the layer is given. Every pass has keys, values and states of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError
from moeinf.models.families.inkling import inkling2
from moeinf.models.families.inkling.inkling2 import (
    BlockConnections,
    ChoosingAttention,
    ChoosingMoe,
    Inkling2Attention,
    OfStem,
    query,
)
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import CommonAttention, Spec
from moeinf.models.layers.attention.own_heads import HeadsCore, HeadsPart
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside, convolutions_bytes
from moeinf.models.layers.streams.block_residual import BlockResidual, BlocksStem, BlockStates, rms_normed
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
        decoder: DecoderConfig,
        c: LoopedAttention,
        layer: int,
        convolutions: ConvolutionsBeside[Array],
        states: BlockStates[Array],
        passes: Passes,
    ) -> None:
        super().__init__(layers, decoder, c, layer, convolutions, states, layer)
        weights, eps, first = layers.weights, self._config.norm_eps, c.loop.first
        self._passes, self._number, self._starts = passes, 0, layer == first
        self._gates = [MessageGate(weights, prefix, eps) for prefix in gates_of(decoder, layer)[:3]]
        ours, of_keys_and_values = (query(weights, decoder, name) for name in _QUERIES)
        at = 2 * (layer - first)
        parts = [ours[at : at + 1], of_keys_and_values[at : at + 2], ours[at + 1 : at + 2]]
        self._messages = weights.math.concatenate(parts, 0)

    def again(self, core: HeadsCore, convolutions: ConvolutionsBeside[Array], number: int) -> LoopAttention:
        """The same matrices in another pass, with states of their own."""
        found = copy(self)
        found._core, found.convolutions, found._number = core, convolutions, number
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

    def look(self, streams: Hidden) -> Hidden:
        return self.read(streams)[0]

    def write(self, streams: Hidden, added: Hidden, known: object) -> None:
        self._residual.write(streams, added, known)


class LoopStem(BlocksStem):
    """moeinf.models.layers.streams.stem.Stem."""

    def __init__(self, passes: Passes, of_blocks: OfStem) -> None:
        super().__init__(*of_blocks)
        self._passes = passes

    def begin(self, x: Array) -> Hidden:
        self._passes.forget()
        return super().begin(x)


def gates_of(decoder: DecoderConfig, layer: int) -> list[str]:
    """What the names of their tensors begin with."""
    return [f"{decoder.module(layer, f'controllers.{name}')}." for name in _GATES]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedAttention(ChoosingAttention):
    """Of a layer that runs several times."""

    loop: Loop

    @property
    def row_numbers(self) -> int:
        return self.loop.passes * CommonAttention(self.config).row_numbers

    @property
    def state_bytes(self) -> int:
        return self.loop.passes * convolutions_bytes(self.kernel, sum(self.widths))

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        shapes, hidden = ChoosingAttention.shapes(self, decoder, layer), self.config.hidden_size
        for prefix in gates_of(decoder, layer):
            shapes |= {f"{prefix}{name}_weight": (hidden, self.loop.rank) for name in ("forget", "gain")}
            shapes[f"{prefix}down_weight"] = (self.loop.rank, 2 * hidden)
        return shapes


@dataclass(frozen=True, slots=True)
class LoopConnections(BlockConnections):
    loop: Loop

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        looped, hidden = self.loop.end - self.loop.first, decoder.attention.hidden_size
        queries = {decoder.prefix + name: (2 * looped, hidden) for name in _QUERIES}
        return BlockConnections.shapes(self, decoder) | queries

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        """Beside what Inkling 2's layers take: the states of two passes, messages and what gates make of them."""
        hidden, found = decoder.attention.hidden_size, BlockConnections.workspace(self, decoder, mixers)
        looped = (self.loop.end - self.loop.first) // self.layers_of_block
        return replace(found, token=found.token + (looped + 12) * hidden, inputs=max(found.inputs, 2 * hidden))

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, weights, visits = spec.decoder, layers.weights, self.loop.visits(spec.decoder.num_layers)
        states = BlockStates[Array](weights.math)
        passes, attention, gates = Passes(states), list[Inkling2Attention](), dict[int, MessageGate]()
        beside, connections = list[ConvolutionsBeside[Array]](), list[Connection]()
        for visit, (layer, number) in enumerate(visits):
            residual, mixer = self.residual(weights, d, layer, states), spec.mixers[layer]
            assert isinstance(mixer, ChoosingAttention)
            if number > 0:
                first = attention[layer]
                assert isinstance(first, LoopAttention)
                beside.append(beside[layer].again(len(visits) + visit))
                core = layers.make(
                    HeadsPart(mixer.config, visit, f"{d.attention_site(layer).prefix}rel_logits_proj.proj")
                )
                attention.append(first.again(core, beside[-1], number))
                connections.append(ToldResidual(residual, passes, gates[layer]))
                continue
            beside.append(mixer.beside(weights, d, layer, len(visits) + visit))
            connections.append(residual)
            if isinstance(mixer, LoopedAttention):
                attention.append(LoopAttention(layers, d, mixer, layer, beside[-1], states, passes))
                gates[layer] = MessageGate(weights, gates_of(d, layer)[3], d.attention.norm_eps)
            else:
                attention.append(Inkling2Attention(layers, d, mixer, layer, beside[-1], states, visit))
        assert isinstance(spec.blocks, ChoosingMoe)
        blocks = [
            spec.blocks.between(d, layers, experts, profiler, layer, beside[visit], connections[visit])
            for visit, (layer, _) in enumerate(visits)
        ]
        stem = LoopStem(passes, self.stem(layers, d, beside, states))
        return Decoder(self.as_run(d), layers, blocks, experts, profiler, attention, stem)

    def as_run(self, decoder: DecoderConfig) -> DecoderConfig:
        """With a layer for each visit."""
        layers = [layer for layer, _ in self.loop.visits(decoder.num_layers)]
        special = {visit: decoder.special[layer] for visit, layer in enumerate(layers) if layer in decoder.special}
        return replace(decoder, num_layers=len(layers), special=special)


def _parse(f: Fields) -> Spec:
    spec = inkling2.parse(f)
    assert isinstance(spec.connections, BlockConnections)
    layers_of_block = spec.connections.layers_of_block
    loop = Loop.parse(f, spec.decoder.num_layers, layers_of_block)
    looped = {i: widened(LoopedAttention, spec.mixers[i], loop=loop) for i in range(loop.first, loop.end)}
    connections = LoopConnections(layers_of_block, loop)
    return replace(spec, mixers={**spec.mixers, **looped}, connections=connections, repeats=True)


class Family(inkling2.Family):
    name = "inkling2_loop"
    parse = staticmethod(_parse)
