"""What a family declares becomes a model: its tensors, what it needs of memory, its sizes, and the decoder that runs.

A family says by its `Spec` what each layer of its decoder is made of, and how layers are connected. Each part knows its
own tensors, memory and computation; here alone they are put together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import ClassVar, Protocol

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes, attention_workspace
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, outer_shapes
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.moe_block import Looked, SideBySide
from moeinf.models.layers.moe_plan import block_workspace
from moeinf.models.layers.protocol import Attention, Block, Experts, ExpertsOf, Layers, LayersOf, P, R, of_any_device
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.text_part import TextIn, text_part
from moeinf.types import (
    DTYPE_BYTES,
    DType,
    EncoderInput,
    JsonObject,
    ModelInfo,
    MoeShape,
    Profiler,
    TensorPlan,
    Workspace,
)


class Family(ABC):
    """One model of a family; docs/contributing/adding-a-model.md walks through a file that has one.

    Its constructor takes a parsed config.json, and raises CheckpointError for a field that is missing or ill-typed,
    UnsupportedModelError for one whose value moeinf does not compute.
    """

    name: ClassVar[str]  # the model_type under which the family is known
    encoder_input: EncoderInput | None = None  # how an encoder-decoder model is given a text; None for a decoder
    repeats: bool = False  # whether a token comes to the experts of a layer several times
    vision: Vision | None = None  # how it sees pictures
    no_vision: str = "moeinf runs the text of this family alone"  # why it does not

    of_tokenizer: str | None = None  # the field of config.json that lacks, and is made of, the kinds of tokens

    @abstractmethod
    def __init__(self, config: JsonObject) -> None: ...

    @property
    @abstractmethod
    def tensors(self) -> TensorPlan:
        """The tensors that a checkpoint with this config.json has."""

    @property
    @abstractmethod
    def workspace(self) -> Workspace:
        """What the layers hold while they compute, from which memory is divided."""

    @property
    def seen_by(self) -> Shapes:
        """Names and shapes of the tensors that pictures need."""
        return {} if self.vision is None else self.vision.tower.shapes

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache keeps of one token besides, whatever type it has."""
        return 0

    @abstractmethod
    def info(self, dtype: DType) -> ModelInfo:
        """The model's sizes. dtype: of the dense weights, the activations and the KV cache."""


class Mixer(Protocol):
    """What mixes the tokens of a sequence in a layer: attention, or a recurrent layer in its place."""

    @property
    def row_numbers(self) -> int:
        """How many numbers the cache keeps of one token."""
        return 0

    @property
    def token_bytes(self) -> int:
        """Bytes that the cache keeps of one token besides, whatever type it has."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Bytes that the cache keeps of one sequence, whatever its length."""
        return 0

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        """Names and shapes of its tensors."""
        ...

    def workspace(self, decoder: DecoderConfig) -> Workspace: ...

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        """before: what mixes the tokens in the layers in front, some of which share more than the hidden state."""
        ...


class Blocks(Protocol):
    """What follows attention in all layers: experts in some, dense MLPs in the others."""

    @property
    def moe(self) -> MoeShape: ...

    @property
    def num_shared_experts(self) -> int:
        return 0

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the dense tensors: routers, dense MLPs, shared experts."""
        ...

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return block_workspace(self.shapes(decoder))

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        """dense: every tensor that is not an expert's."""
        ...

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> Sequence[Block]:
        """One for each layer."""
        ...


@dataclass(frozen=True, slots=True)
class Connections:
    """How layers are connected: with the embedding, with each other, with the head.

    Here the first is given the embedding, each adds to the hidden state, and the head takes what the last one leaves.
    """

    @property
    def state_bytes(self) -> int:
        """Bytes that the cache keeps of one sequence beside those of the mixers."""
        return 0

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the tensors that belong to no layer's mixer or block."""
        return {}

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        """What mixers hold while they compute, and what is there beside them."""
        return mixers

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        attention, blocks = spec.attention(layers), spec.blocks.make(spec.decoder, layers, experts, profiler)
        for i, block in enumerate(blocks):
            if isinstance(block, SideBySide):
                attention[i] = Looked(block, attention[i])
        return Decoder(spec.decoder, layers, blocks, experts, profiler, attention)


def _unchanged(plan: TensorPlan) -> TensorPlan:
    return plan


@dataclass(frozen=True, slots=True)
class Spec:
    """What a config.json declares."""

    decoder: DecoderConfig
    blocks: Blocks
    mixers: Mapping[int, Mixer] = field(default_factory=dict)  # of layers whose mixer is not the decoder's attention
    connections: Connections = Connections()
    repeats: bool = False  # whether a token comes to the experts of a layer several times
    filling: int = 0  # numbers that tensors are filled up with, which are no parameters
    amended: Callable[[TensorPlan], TensorPlan] = _unchanged  # by what this model alone has to say of single tensors

    @property
    def all_mixers(self) -> list[Mixer]:
        """Of each layer."""
        found = (self.mixers.get(i) for i in range(self.decoder.num_layers))
        return [mixer or CommonAttention(self.decoder.attention_of(i)) for i, mixer in enumerate(found)]

    def attention(self, layers: Layers) -> list[Attention]:
        """What mixes the tokens, of each layer."""
        made = list[Attention]()
        for i, mixer in enumerate(self.all_mixers):
            made.append(mixer.make(layers, self.decoder, i, made))
        return made


@dataclass(frozen=True, slots=True)
class CommonAttention(Mixer):
    """Attention with grouped keys and values."""

    config: AttentionConfig

    @property
    def row_numbers(self) -> int:
        return 2 * self.config.num_kv_heads * self.config.head_dim

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return attention_shapes(self.config, decoder.attention_site(layer).prefix)

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return attention_workspace(self.config)

    def of_site(self, layers: Layers, site: AttentionSite) -> Attention:
        return layers.make(AttentionPart(self.config, site))

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        return self.of_site(layers, decoder.attention_site(layer))


class DecoderFamily(Family):
    """A family of decoders."""

    spec: Spec
    decoder: DecoderConfig
    divisible: ClassVar[bool] = True  # whether layers in a row may be on a device of their own: all that they share is
    # the hidden state, and the first number in the name of a tensor is its layer's

    text: ClassVar[TextIn | None] = None  # None: checkpoints hold the language model alone

    # As TensorPlan has them; `matrices` by the ends of their names.
    ahead: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()
    matrices: ClassVar[tuple[str, ...]] = ()  # beside those that end on _proj.weight
    no_matrices: ClassVar[tuple[str, ...]] = ()  # of these

    def __init__(self, config: JsonObject) -> None:
        if self.text is None:
            self.take(self.parse(Fields(config)))
            return
        part = text_part(({"tie_word_embeddings": True} if self.text.tied else {}) | config, self.text.prefix)
        spec = self.parse(part.fields)
        of_whole = part.prefix == self.text.prefix  # else the language model was saved alone
        decoder = spec.decoder.named(prefix=part.prefix, head_prefix=self.text.head_prefix if of_whole else "")
        self.take(replace(spec, decoder=decoder))

    @staticmethod
    def parse(f: Fields) -> Spec:
        """What a config.json declares, of a family that needs nothing else of it."""
        raise NotImplementedError

    def take(self, spec: Spec) -> None:
        self.spec, self.decoder, self.repeats = spec, spec.decoder, spec.repeats

    def build(self, layers: LayersOf[A, P, R], experts: ExpertsOf[A, R], profiler: Profiler) -> Decoder:
        """The model that runs, made of the layers of one device."""
        return self.spec.connections.connect(self.spec, *of_any_device(layers, experts), profiler)

    @cached_property
    def tensors(self) -> TensorPlan:
        spec, d = self.spec, self.decoder
        dense = outer_shapes(d)
        for i, mixer in enumerate(spec.all_mixers):
            dense |= mixer.shapes(d, i)
        dense |= spec.connections.shapes(d) | spec.blocks.shapes(d)
        plan = spec.amended(spec.blocks.plan(d, dense))
        found = plan.matrices.union(name for name in plan.dense if name.endswith(self.matrices))
        return replace(
            plan,
            matrices=found - {name for name in plan.dense if name.endswith(self.no_matrices)},
            ahead=(*plan.ahead, *self.ahead),
            ignored=(*plan.ignored, *self.ignored),
            renamed={**plan.renamed, **dict(self.renamed)},
            vision=self.seen_by,
        )

    @property
    def workspace(self) -> Workspace:
        spec, d = self.spec, self.decoder
        mixers = reduce(or_, (mixer.workspace(d) for mixer in dict.fromkeys(spec.all_mixers)))
        return spec.connections.workspace(d, mixers) | spec.blocks.workspace(d)

    @property
    def cache_bytes(self) -> int:
        return sum(mixer.token_bytes for mixer in self.spec.all_mixers)

    def info(self, dtype: DType) -> ModelInfo:
        plan, d, mixers = self.tensors, self.decoder, self.spec.all_mixers
        expert = sum(math.prod(shape) for shape in plan.parts.values())
        dense = sum(math.prod(shape) for shape in plan.dense.values()) - self.spec.filling
        tables = sum(math.prod(plan.dense[name]) for name in plan.lookups - {d.embedding} if name in plan.dense)
        return ModelInfo(
            architecture=self.name,
            num_params=dense + expert * plan.moe.total_experts,
            active_params=dense - tables + expert * plan.moe.num_layers * plan.moe.top_k,
            num_shared_experts=self.spec.blocks.num_shared_experts,
            context_length=d.context_length,
            hidden_size=d.attention.hidden_size,
            num_layers=d.num_layers,
            vocab_size=d.vocab_size,
            kv_bytes_per_token=sum(mixer.row_numbers for mixer in mixers) * DTYPE_BYTES[dtype] + self.cache_bytes,
            dtype=dtype,
            state_bytes=sum(mixer.state_bytes for mixer in mixers) + self.spec.connections.state_bytes,
        )


class EncoderDecoderFamily(Family):
    """A family whose model encodes a text, its source, and decodes an answer to it."""

    encoder_input: EncoderInput

    def build(self, layers: LayersOf[A, P, R], experts: ExpertsOf[A, R], profiler: Profiler) -> EncoderDecoder:
        """The model that runs, made of the layers of one device."""
        return self.assemble(*of_any_device(layers, experts), profiler)

    @abstractmethod
    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> EncoderDecoder:
        """As `build`, spelled out once for all devices."""
