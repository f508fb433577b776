"""The layer of a GGUF file that guesses at tokens (MTP), seen as a file of one layer."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from moeinf.gguf.configs.common import num_layers_of
from moeinf.gguf.header import Gguf, Value
from moeinf.gguf.metadata import Metadata

LENT: Final = ("token_embd.weight", "output.weight")  # tensors that the whole model lends it
_LAST_NORM: Final = "output_norm.weight"


def mtp_view(gguf: Gguf) -> Gguf | None:
    """None where the file has no such layer. It has the embedding and the head of the model as well (`without_lent`).

    The file counts such layers, behind the others; this is the first of them. Its metadata say that there is no other
    layer. Raises CheckpointError for damaged metadata.
    """
    m = Metadata(gguf)
    behind = num_layers_of(m)
    if f"blk.{behind}.nextn.eh_proj.weight" not in gguf.tensors:
        return None
    found = {name: gguf.tensors[name] for name in (*LENT, _LAST_NORM) if name in gguf.tensors}
    for name, tensor in gguf.tensors.items():
        match = re.fullmatch(rf"blk\.{behind}\.(nextn\.)?(.*)", name)
        if match is not None:
            seen = _name(match[2]) if match[1] else f"blk.0.{match[2]}"
            if seen:
                found[seen] = replace(tensor, name=seen)
    return replace(gguf, metadata=_metadata(m, behind), tensors=found, mmproj=None)


def without_lent(view: Gguf) -> Gguf:
    return replace(view, tensors={name: tensor for name, tensor in view.tensors.items() if name not in LENT})


def _name(rest: str) -> str:
    """Of what is behind `nextn.`; "" for copies of the embedding and the head."""
    if rest.startswith("shared_head_norm."):
        return _LAST_NORM
    return f"nextn.{rest}" if rest in ("eh_proj.weight", "enorm.weight", "hnorm.weight") else ""


def _metadata(m: Metadata, behind: int) -> Mapping[str, Value]:
    """With what is said of each layer said of this one alone."""
    said = m.gguf.metadata
    begin, found = f"{m.architecture}.", dict(said)
    for name, value in said.items():
        if name.startswith(begin) and isinstance(value, list | array) and len(value) > behind:
            found[name] = value[behind : behind + 1]
    found[f"{begin}block_count"] = 1
    found.pop(f"{begin}attention.recurrent_layers", None)  # it attends to all tokens
    for name in ("nextn_predict_layers", "leading_dense_block_count"):
        if f"{begin}{name}" in said:
            found[f"{begin}{name}"] = 0
    if f"{begin}full_attention_interval" in said:
        found[f"{begin}full_attention_interval"] = 1
    return found
