"""A model family as an object: a config.json is parsed once, and everything that follows from it is asked of that."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, reduce
from importlib import import_module
from operator import or_
from typing import Any, ClassVar

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import Shapes, attention_workspace
from moeinf.models.layers.decoder import Decoder, DecoderConfig, attention_of_all_layers, outer_shapes
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.models.layers.moe_plan import GatedExperts, block_workspace, gated_experts_plan, plan_info
from moeinf.models.layers.protocol import Experts, ExpertsOf, Layers, LayersOf, P, R, of_any_device
from moeinf.models.layers.recurrent.mixed import MixedLayers
from moeinf.models.layers.vision.vision import Vision
from moeinf.models.refused import REFUSED
from moeinf.models.registry import MODULES, SUPPORTED
from moeinf.types import DTYPE_BYTES, DType, EncoderInput, ModelInfo, MoeShape, Profiler, TensorPlan, Workspace

# num_experts, num_local_experts, n_routed_experts, moe_num_experts, num_moe_experts, moe_expert_num, ...; not those
# that all tokens share, nor how many a token uses.
_EXPERT_COUNT = re.compile(r"(\w+_)?(num|n)_((?!shared_|selected_|activated_)\w+_)?experts?|(\w+_)?experts?_num")


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
    def __init__(self, config: dict[str, Any]) -> None: ...

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


class DecoderFamily(Family):
    """A family of decoders, with what holds for those that have the common attention."""

    decoder: DecoderConfig
    moe: MoeShape
    num_shared_experts: int = 0
    divisible: ClassVar[bool] = True  # whether layers in a row may be on a device of their own: all that they share is
    # the hidden state, and the first number in the name of a tensor is its layer's

    def build(self, layers: LayersOf[A, P, R], experts: ExpertsOf[A, R], profiler: Profiler) -> Decoder:
        """The model that runs, made of the layers of one device."""
        return self.assemble(*of_any_device(layers, experts), profiler)

    @abstractmethod
    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        """As `build`, spelled out once for all devices."""

    # ---- the tensors of a checkpoint, by what reads them

    def attention_shapes(self) -> Shapes:
        """Names and shapes of the tensors that layers of attention read."""
        return attention_of_all_layers(self.decoder)

    @abstractmethod
    def block_shapes(self) -> Shapes:
        """Names and shapes of the dense tensors that blocks read: routers, dense MLPs, shared experts."""

    @cached_property
    def dense(self) -> Shapes:
        """Every tensor that is not an expert's."""
        return outer_shapes(self.decoder) | self.attention_shapes() | self.block_shapes()

    def gated_experts(self, experts: GatedExperts) -> TensorPlan:
        """The plan of a family whose experts are gated MLPs in the layouts in which transformers writes them."""
        return gated_experts_plan(self.decoder, self.moe, self.dense, experts)

    # ---- what follows from them

    @property
    def attention_workspace(self) -> Workspace:
        kinds = {self.decoder.attention_of(i): None for i in range(self.decoder.num_layers)}
        return reduce(or_, map(attention_workspace, kinds))

    @property
    def workspace(self) -> Workspace:
        return self.attention_workspace | block_workspace(self.block_shapes())

    @property
    def cache_numbers(self) -> int:
        """How many numbers the cache keeps of one token."""
        return self.decoder.row_numbers

    @property
    def state_bytes(self) -> int:
        """Bytes that the recurrent layers keep of one sequence, whatever its length."""
        return 0

    def info(self, dtype: DType) -> ModelInfo:
        return replace(
            plan_info(self.name, self.decoder, self.tensors, dtype),
            num_shared_experts=self.num_shared_experts,
            kv_bytes_per_token=self.cache_numbers * DTYPE_BYTES[dtype] + self.cache_bytes,
            state_bytes=self.state_bytes,
        )


class MixedDecoderFamily(DecoderFamily):
    """A family of decoders in which some layers are recurrent, and the others have the common attention."""

    mixed: MixedLayers

    def attention_shapes(self) -> Shapes:
        return self.mixed.shapes()

    @property
    def attention_workspace(self) -> Workspace:
        return self.mixed.workspace

    @property
    def cache_numbers(self) -> int:
        return self.mixed.cache_numbers

    @property
    def state_bytes(self) -> int:
        return self.mixed.state_bytes


class EncoderDecoderFamily(Family):
    """A family whose model encodes a text, its source, and decodes an answer to it."""

    encoder_input: EncoderInput

    def build(self, layers: LayersOf[A, P, R], experts: ExpertsOf[A, R], profiler: Profiler) -> EncoderDecoder:
        """The model that runs, made of the layers of one device."""
        return self.assemble(*of_any_device(layers, experts), profiler)

    @abstractmethod
    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> EncoderDecoder:
        """As `build`, spelled out once for all devices."""


AnyFamily = DecoderFamily | EncoderDecoderFamily


def family_of(config: dict[str, Any]) -> AnyFamily:
    """The family of a parsed config.json, and what that says.

    Raises CheckpointError where model_type is missing or a field is wrong, UnsupportedModelError for a type that is not
    in SUPPORTED and for a value that moeinf does not compute.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError("config.json has no model_type: not a Hugging Face checkpoint")
    if model_type in MODULES:
        family: AnyFamily = import_module(f"moeinf.models.families.{MODULES[model_type]}").Family(config)
        return family
    fault = "is not a Mixture-of-Experts model (config.json names no experts)"
    if _names_experts(config):
        fault = "is a Mixture-of-Experts family that this version does not run"
        if model_type in REFUSED:
            fault += f": it needs {REFUSED[model_type]}"
    raise UnsupportedModelError(f"{model_type!r:.100} {fault}; {_what_is_run(model_type)}")


def _what_is_run(model_type: str) -> str:
    """The types with the most similar names; there are too many for a line."""
    near = get_close_matches(model_type[:100], SUPPORTED, n=3, cutoff=0.5)
    like = f" {' or '.join(repr(name) for name in near)}, and what else is in" if near else " what is in"
    return f"moeinf runs{like} docs/models.md"


def counts_experts(field: str) -> bool:
    """Whether a field of a config.json, of any family, has by its name a number of experts."""
    return _EXPERT_COUNT.fullmatch(field[:100]) is not None


def _names_experts(config: dict[str, Any]) -> bool:
    """Whether a config of any family, at any depth, counts experts that tokens are routed to."""
    values: list[Any] = [config]
    while values:
        value = values.pop()
        for name, inner in value.items() if isinstance(value, dict) else ():
            counts = inner if isinstance(inner, list) else [inner]  # one for all layers or kinds, or one for each
            if counts_experts(name) and any(type(count) is int and count > 1 for count in counts):
                return True
            values.append(inner)
        values += value if isinstance(value, list) else ()
    return False
