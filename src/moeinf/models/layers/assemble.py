"""What a family declares becomes a model: its tensors, what it needs of memory, its sizes, and the decoder that runs.

A family says by its `Spec` what each layer of its decoder is made of. A part of a layer knows its own tensors, memory
and computation; here alone they are put together. A family whose decoder is put together otherwise overrides the one
method here that does it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import ClassVar, Protocol

from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes, attention_workspace
from moeinf.models.layers.attention_config import AttentionConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, outer_shapes
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.moe_plan import GatedExperts, block_workspace, gated_experts_plan
from moeinf.models.layers.protocol import Attention, Block, Experts, ExpertsOf, Layers, LayersOf, P, R, of_any_device
from moeinf.models.layers.vision.vision import Vision
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
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes that the cache keeps of one sequence, whatever its length."""
        ...

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        """Names and shapes of its tensors."""
        ...

    def workspace(self, decoder: DecoderConfig) -> Workspace: ...

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int) -> Attention: ...


class Blocks(Protocol):
    """What follows attention in all layers: experts in some, dense MLPs in the others."""

    @property
    def moe(self) -> MoeShape: ...

    @property
    def num_shared_experts(self) -> int: ...

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        """Names and shapes of the dense tensors: routers, dense MLPs, shared experts."""
        ...

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        """dense: every tensor that is not an expert's."""
        ...

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> Sequence[Block]:
        """One for each layer."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """What a config.json declares."""

    decoder: DecoderConfig
    blocks: Blocks
    mixers: Mapping[int, Mixer] = field(default_factory=dict)  # of layers whose mixer is not the decoder's attention


@dataclass(frozen=True, slots=True)
class CommonAttention:
    """Attention with grouped keys and values. A Mixer."""

    config: AttentionConfig
    state_bytes: int = 0

    @property
    def row_numbers(self) -> int:
        return 2 * self.config.num_kv_heads * self.config.head_dim

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        return attention_shapes(self.config, decoder.attention_site(layer).prefix)

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return attention_workspace(self.config)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int) -> Attention:
        return layers.make(AttentionPart(self.config, decoder.attention_site(layer)))


class DecoderFamily(Family):
    """A family of decoders."""

    spec: Spec
    decoder: DecoderConfig
    moe: MoeShape
    num_shared_experts: int = 0
    mixers: Mapping[int, Mixer] = {}  # of layers whose mixer is not the decoder's attention
    divisible: ClassVar[bool] = True  # whether layers in a row may be on a device of their own: all that they share is
    # the hidden state, and the first number in the name of a tensor is its layer's

    # As TensorPlan has them; `matrices` by the ends of their names.
    ahead: ClassVar[tuple[str, ...]] = ()
    ignored: tuple[str, ...] = ()
    renamed: ClassVar[Mapping[str, str]] = {}
    matrices: ClassVar[tuple[str, ...]] = ()  # beside those that end on _proj.weight
    no_matrices: ClassVar[tuple[str, ...]] = ()  # of these

    def __init__(self, config: JsonObject) -> None:
        self.take(self.parse(Fields(config)))

    @staticmethod
    def parse(f: Fields) -> Spec:
        """What a config.json declares, of a family that needs nothing else of it."""
        raise NotImplementedError

    def take(self, spec: Spec) -> None:
        self.spec, self.decoder, self.mixers = spec, spec.decoder, spec.mixers
        self.moe, self.num_shared_experts = spec.blocks.moe, spec.blocks.num_shared_experts

    @property
    def _mixers(self) -> list[Mixer]:
        found = (self.mixers.get(i) for i in range(self.decoder.num_layers))
        return [mixer or CommonAttention(self.decoder.attention_of(i)) for i, mixer in enumerate(found)]

    # ---- the model that runs

    def build(self, layers: LayersOf[A, P, R], experts: ExpertsOf[A, R], profiler: Profiler) -> Decoder:
        """The model that runs, made of the layers of one device."""
        return self.assemble(*of_any_device(layers, experts), profiler)

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        """As `build`, once for all devices."""
        d, attention = self.decoder, self.attention(layers)
        blocks = self.spec.blocks.make(d, layers, experts, profiler)
        return Decoder(d, layers, blocks, experts, profiler, attention)

    def attention(self, layers: Layers) -> list[Attention]:
        """What mixes the tokens, of each layer."""
        return [mixer.make(layers, self.decoder, i) for i, mixer in enumerate(self._mixers)]

    # ---- the tensors of a checkpoint, by what reads them

    def attention_shapes(self) -> Shapes:
        """Names and shapes of the tensors that layers of attention read."""
        return {
            name: shape for i, mixer in enumerate(self._mixers) for name, shape in mixer.shapes(self.decoder, i).items()
        }

    def block_shapes(self) -> Shapes:
        """Names and shapes of the dense tensors that blocks read."""
        return self.spec.blocks.shapes(self.decoder)

    @cached_property
    def dense(self) -> Shapes:
        """Every tensor that is not an expert's."""
        return outer_shapes(self.decoder) | self.attention_shapes() | self.block_shapes()

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = self.plan()
        found = plan.matrices.union(name for name in plan.dense if name.endswith(self.matrices))
        return replace(
            plan,
            matrices=found - {name for name in plan.dense if name.endswith(self.no_matrices)},
            ahead=(*plan.ahead, *self.ahead),
            ignored=(*plan.ignored, *self.ignored),
            renamed={**plan.renamed, **self.renamed},
            vision=self.seen_by,
        )

    def plan(self) -> TensorPlan:
        """The plan, but for what attributes of the class say."""
        return self.spec.blocks.plan(self.decoder, self.dense)

    def gated_experts(self, experts: GatedExperts) -> TensorPlan:
        """The plan of a family whose experts are gated MLPs in the layouts in which transformers writes them."""
        return gated_experts_plan(self.decoder, self.moe, self.dense, experts)

    # ---- what follows from them

    @property
    def attention_workspace(self) -> Workspace:
        return reduce(or_, (mixer.workspace(self.decoder) for mixer in dict.fromkeys(self._mixers)))

    @property
    def workspace(self) -> Workspace:
        return self.attention_workspace | block_workspace(self.block_shapes())

    @property
    def cache_numbers(self) -> int:
        """How many numbers the cache keeps of one token."""
        return sum(mixer.row_numbers for mixer in self._mixers)

    @property
    def state_bytes(self) -> int:
        """Bytes that the cache keeps of one sequence, whatever its length."""
        return sum(mixer.state_bytes for mixer in self._mixers)

    def info(self, dtype: DType) -> ModelInfo:
        plan, d = self.tensors, self.decoder
        expert = sum(math.prod(shape) for shape in plan.parts.values())
        dense = sum(math.prod(shape) for shape in plan.dense.values())
        return ModelInfo(
            architecture=self.name,
            num_params=dense + expert * plan.moe.total_experts,
            active_params=dense + expert * plan.moe.num_layers * plan.moe.top_k,
            num_shared_experts=self.num_shared_experts,
            context_length=d.context_length,
            hidden_size=d.attention.hidden_size,
            num_layers=d.num_layers,
            vocab_size=d.vocab_size,
            kv_bytes_per_token=self.cache_numbers * DTYPE_BYTES[dtype] + self.cache_bytes,
            dtype=dtype,
            state_bytes=self.state_bytes,
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
