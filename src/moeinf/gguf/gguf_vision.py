"""The vision tower of a GGUF model, which is a file of its own (mmproj): its config, and where its tensors lie.

docs/contributing/gguf.md says what llama.cpp's converter does to a tower, which is undone here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf, GgufTensor
from moeinf.gguf.metadata import Metadata, texts_of
from moeinf.gguf.placement import DenseSource
from moeinf.gguf.sights.banded_sight import BANDED
from moeinf.gguf.sights.halving_sight import HALVING
from moeinf.gguf.sights.merging_sight import MERGING, deep_blocks
from moeinf.gguf.sights.minimax_sight import MINIMAX
from moeinf.gguf.sights.moonvit_sight import MOONVIT
from moeinf.gguf.sights.pooling_sight import POOLING
from moeinf.gguf.sights.projecting_sights import PROJECTING
from moeinf.gguf.sights.sight import Sight
from moeinf.gguf.undo import Kind, Widen, outcome
from moeinf.types import JsonObject

_OUTSIDE = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")  # said of the whole model
_READ_ELSEWHERE = ("has_audio_encoder", "vision.image_size", "vision.projector_type")  # or nowhere
_LOOKED_UP = re.compile(r"pos(ition)?_emb")  # in the names of tables
_OF_SOUND = ("a.", "mm.a.")  # what tensors of a model of sound begin with, which the same file may hold


_SIGHTS: Mapping[str, Sight] = {**BANDED, **HALVING, **MERGING, **MINIMAX, **MOONVIT, **POOLING, **PROJECTING}


def may_see(gguf: Gguf) -> bool:
    """Whether an mmproj file is of use to a model."""
    return gguf.metadata.get("general.architecture") in _SIGHTS


def family_may_see(name: str) -> bool:
    return any(name in (sight.family, sight.of_text) for sight in _SIGHTS.values())


def seeing_config(gguf: Gguf, text: JsonObject) -> JsonObject:
    """config.json of a model with its tower; text: that of the model's own file.

    Raises UnsupportedModelError for a file that is no tower of this model, CheckpointError for one that is damaged.
    """
    sight, m = _sight(gguf), _metadata(gguf)
    projector = m.text("projector_type", "") or m.text("vision.projector_type", "")
    if projector != sight.projector:
        raise UnsupportedModelError(
            f"{m.where} has the projector {projector!r:.50}, a model of {_architecture(gguf)!r} takes "
            f"{sight.projector!r}: it is the mmproj file of another model"
        )
    width = m.count("vision.projection_dim")
    if width != text["hidden_size"]:
        raise UnsupportedModelError(
            f"{m.where} gives the model rows of {width} numbers, which takes {text['hidden_size']}: it is the mmproj "
            "file of another model"
        )
    if text["model_type"] not in (sight.family, sight.of_text):
        raise UnsupportedModelError(
            f"{gguf.where}: moeinf runs the text of this model alone; leave its mmproj file out"
        )
    vision, whole = sight.config(m), sight.whole(m)
    sight.processor(m)
    for name in _READ_ELSEWHERE:
        m.values(name)
    m.refuse_others("audio.")
    of_text = {name: value for name, value in text.items() if name != "model_type"} | sight.text(gguf, text)
    outside = {name: text[name] for name in _OUTSIDE if name in text} | {"text_config": of_text}
    return {
        "model_type": sight.family,
        **(outside if sight.nested else of_text),
        **_token_ids(gguf, sight),
        **whole,
        "vision_config": vision,
    }


def processor_file(gguf: Gguf) -> dict[str, bytes]:
    """preprocessor_config.json of a model with its tower, by its name."""
    settings = _sight(gguf).processor(_metadata(gguf))
    return {"preprocessor_config.json": (json.dumps(settings, indent=2) + "\n").encode()}


def tower_places(gguf: Gguf, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, DenseSource]:
    """Where the tensors of a tower lie, by the names in `shapes`; their file is the one behind the model's own.

    Raises CheckpointError for a tensor that is missing or of another shape, UnsupportedModelError for one too many.
    """
    sight, m = _sight(gguf), _metadata(gguf)
    mmproj, deep = m.gguf, deep_blocks(m)
    number, used, found = len(gguf.files), set[str](), dict[str, DenseSource]()
    for name, shape in shapes.items():
        sources = _sources(mmproj, _file_names(sight, name, deep, mmproj))
        undo = sight.undo(name, shape, sources, m)
        used |= {tensor.name for tensor in sources}
        kind = outcome([Kind(tensor.format, tensor.shape) for tensor in sources], undo)
        if kind is None or kind.shape != shape:
            said = " and ".join(f"{tensor.name!r} {list(tensor.shape)}" for tensor in sources)
            raise CheckpointError(
                f"{mmproj.where}: tensor {said} cannot be {name} {list(shape)}, which the metadata mean; "
                "the file is damaged"
            )
        if not kind.plain and (len(shape) != 2 or _LOOKED_UP.search(name)):  # what products are not made with
            undo = (*undo, Widen())
        found[name] = DenseSource(tuple(replace(tensor, file=number) for tensor in sources), shape, undo)
    for name in mmproj.tensors:
        if name not in used and name not in sight.unused and not name.startswith(_OF_SOUND):
            raise UnsupportedModelError(f"{mmproj.where}: its tensor {name!r} is none of a tower that moeinf computes")
    return found


def _sight(gguf: Gguf) -> Sight:
    sight = _SIGHTS.get(_architecture(gguf))
    if sight is None:
        raise UnsupportedModelError(
            f"{gguf.where}: moeinf runs the text of {_architecture(gguf)!r:.50} alone; leave its mmproj file out"
        )
    return sight


def _architecture(gguf: Gguf) -> str:
    return str(gguf.metadata.get("general.architecture"))


def _metadata(gguf: Gguf) -> Metadata:
    """Of the tower's file."""
    assert gguf.mmproj is not None
    m = Metadata(gguf.mmproj)
    if m.architecture != "clip":
        raise UnsupportedModelError(
            f"{m.where} is no mmproj file but a model of {m.architecture!r:.50}; name the file of the vision tower"
        )
    if not m.flag("has_vision_encoder", False):
        raise UnsupportedModelError(f"{m.where} has no vision tower (clip.has_vision_encoder)")
    return m


def _token_ids(gguf: Gguf, sight: Sight) -> JsonObject:
    tokens = texts_of(gguf.metadata, "tokenizer.ggml.tokens", gguf.where)
    missing = [text for text in sight.tokens.values() if text not in tokens]
    if missing:
        raise UnsupportedModelError(f"{gguf.where} has no token {missing[0]!r}, which a picture needs in a prompt")
    return {field: tokens.index(text) for field, text in sight.tokens.items()}


def _file_names(sight: Sight, name: str, deep: list[int], mmproj: Gguf) -> list[str]:
    """Those that the file has, of several; else the first.

    deep: the blocks behind which there are rows for layers, whose numbers files have in place of the layers'.
    """
    known = list[list[str]]()
    for pattern, template in sight.names:
        found = re.fullmatch(pattern, name)
        if found is not None:
            names = [found.expand(each) for each in template.split()]
            known.append([re.sub(r"(?<=^v\.deepstack\.)\d+", lambda at: str(deep[int(at[0])]), each) for each in names])
    assert known, f"no mmproj file has a tensor for {name}"
    return next((names for names in known if mmproj.tensors.keys() >= {*names}), known[0])


def _sources(mmproj: Gguf, names: list[str]) -> list[GgufTensor]:
    """The tensors that one of a checkpoint was made into."""
    missing = [name for name in names if name not in mmproj.tensors]
    if missing:
        raise CheckpointError(f"{mmproj.where} has no tensor {missing[0]!r}; take one of a newer llama.cpp")
    return [mmproj.tensors[name] for name in names]
