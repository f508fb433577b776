"""Tensors of a file that nothing of its model is made of: refused by name, but for those that change no answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.common import num_layers_of
from moeinf.gguf.header import Gguf
from moeinf.gguf.metadata import Metadata, numbers_of
from moeinf.types import JsonMapping, JsonObject

# Tensors whose numbers a config is made of, or not at all: `refuse_unread_positions` has compared them.
POSITIONS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_PROPORTIONAL = ("gemma4", "rope_freqs.weight")  # whose config has the share of pairs that turn instead
# Architectures whose heads have no positions.
_UNTURNED = {"glm5-next", "jamba", "kimi-k3", "kimi-linear", "nemotron_h_moe"}
_TOWERS = ("v.", "mm.", "a.")  # what models of pictures and sounds begin with, which some programs put in the same file
_OF_PICTURES = (("deepseek4", "deepseek41"), ".exp_probs_b_vl.bias")  # the choice of experts for tokens of pictures
_OF_ACTIVATIONS = ".input_scale"  # for kernels that round what is multiplied, too


def refuse_leftovers(gguf: Gguf, used: Collection[str]) -> None:
    """Refuses a tensor that is not among those used: it would change what is computed, or the file is another model's.

    Layers that guess tokens ahead are left out, towers are files of their own, and scales of activations are for
    kernels that round them. Raises UnsupportedModelError, CheckpointError.
    """
    m = Metadata(gguf)
    ahead = tuple(f"blk.{layer}." for layer in range(num_layers_of(m), m.count("block_count")))
    left = [
        name
        for name in gguf.tensors
        if name not in used
        and name not in POSITIONS
        and not name.startswith((*ahead, *_TOWERS))
        and not (m.architecture in _OF_PICTURES[0] and name.endswith(_OF_PICTURES[1]))
        and not (name.endswith(_OF_ACTIVATIONS) and name.replace(_OF_ACTIVATIONS, ".weight") in used)
    ]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UnsupportedModelError(
            f"{gguf.where}: tensor {left[0]!r:.100}{more} does not belong to this architecture ({m.architecture}), so "
            "answers without it would be another model's; take another file, or pull the checkpoint that it was made of"
        )


def refuse_unread_positions(m: Metadata, config: JsonObject) -> None:
    """Refuses factors of positions that stand nowhere in the config, unless they are 1, which is to have none.

    Reads the file.
    """
    turns = m.architecture not in _UNTURNED and config.get("position_embedding_type") != "nope"
    for name in POSITIONS:
        tensor = m.tensor(name)
        if tensor is None or (m.architecture, name) == _PROPORTIONAL:
            continue
        numbers = numbers_of(m.gguf, tensor)
        if any(each != 1.0 for each in numbers) and not (turns and _stands(numbers, config)):
            raise UnsupportedModelError(
                f"{m.where}: tensor {name!r} has factors of positions that {m.architecture!r} is computed without; "
                "take another file, or pull the checkpoint that it was made of"
            )


def left_out(gguf: Gguf) -> list[str]:
    """A line for the user, where the file has a tower that is not read from it."""
    names = [name for name in gguf.tensors if name.startswith(_TOWERS)]
    if not names:
        return []
    return [
        f"{gguf.where}: {len(names)} tensors of a model of pictures or sounds ({names[0]}, ...) are left out; pictures "
        "need an mmproj file"
    ]


def _stands(numbers: list[float], config: JsonMapping) -> bool:
    """Whether a config has these factors; that of a family which turns a part of a head has the first of them."""
    for name, value in config.items():
        if isinstance(value, Mapping) and _stands(numbers, value):
            return True
        if name.endswith("_factor") and isinstance(value, list) and value and numbers[: len(value)] == value:
            return True
    return False
