"""Tiny models with a layer that guesses at tokens, which is right at every token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeinf.models.family import family_of
from moeinf.models.mtp import mtp_config
from tests.support.checkpoints import TOKENIZER, Checkpoint, random_tensors, write_checkpoint
from tests.support.gguf_files import architecture_of, converted, tokenizer_fields, write_gguf

_OWN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}


def published_name(name: str, config: Mapping[str, Any]) -> str:
    """What a checkpoint calls a tensor of the plan of such a layer."""
    text = config.get("text_config") or config
    own = re.fullmatch(r"mtp\.(\w+)\.weight", name)
    rest = re.sub(r"^model\.(language_model\.)?(layers\.0\.)?", "", name)
    if config["model_type"].startswith("qwen"):
        if own:
            return f"mtp.{_OWN[own[1]]}.weight"
        return f"mtp.{rest}" if rest == "norm.weight" else f"mtp.layers.0.{rest}"
    layer = f"model.layers.{text['num_hidden_layers']}."
    return layer + (f"{own[1]}.weight" if own else "shared_head.norm.weight" if rest == "norm.weight" else rest)


def layer_tensors(config: Mapping[str, Any], seed: int = 5) -> Checkpoint:
    """Random ones of such a layer, by the names of its plan."""
    return random_tensors(mtp_config(dict(config)), seed)


def agreeing(config: Mapping[str, Any], wrong: float = 0.0) -> tuple[Checkpoint, Checkpoint]:
    """A model that makes the next token of the last one alone, and a layer that does the same, by its plan's names.

    wrong: how far what it adds of its own leads it astray.
    """
    plain = 0.0 if config["model_type"].startswith("qwen") else 1.0
    model = {name: _silent(name, tensor, plain, 0.0) for name, tensor in random_tensors(config, 3).items()}
    layer = {name: _silent(name, tensor, plain, wrong) for name, tensor in layer_tensors(config).items()}
    size = family_of(dict(config)).info("bf16").hidden_size
    layer["mtp.eh_proj.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], 1).bfloat16()
    return model, layer


def _silent(name: str, tensor: Tensor, norm: float, factor: float) -> Tensor:
    """Norms multiply by 1; what adds to the hidden state adds next to nothing."""
    if re.search(r"norm\.weight$", name):
        return torch.full_like(tensor, norm)
    if re.search(r"(o_proj|out_proj|down_proj)(\.weight)?$", name):
        return tensor * factor
    return tensor * 0.2 if tensor.is_floating_point() else tensor


def write_model(folder: Path, config: Mapping[str, Any], wrong: float = 0.0) -> Path:
    """A checkpoint of both."""
    model, layer = agreeing(config, wrong)
    counted = {} if config["model_type"].startswith("qwen") else {"num_nextn_predict_layers": 1}
    tensors = model | {published_name(name, config): tensor for name, tensor in layer.items()}
    write_checkpoint(folder, tensors, {**config, **counted})
    words = {f"w{number}": number for number in range(config["vocab_size"])}
    tokenizer = TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": words, "unk_token": "w0"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def write_file(path: Path, config: Mapping[str, Any], wrong: float = 0.0) -> Path:
    """A GGUF file of both, as llama.cpp's converter writes them."""
    (model, layer), kind = agreeing(config, wrong), config["model_type"]
    layers, of = config["num_hidden_layers"], mtp_config(dict(config))["of"]
    name, begin = architecture_of(kind, config), f"blk.{layers}."
    more = converted(kind, of, {name: tensor for name, tensor in layer.items() if not name.startswith("mtp.")})
    more = {name.replace("blk.0.", begin): values for name, values in more.items()}
    more[f"{begin}nextn.shared_head_norm.weight"] = more.pop("output_norm.weight")
    plus = 1 if kind.startswith("qwen") else 0
    for own in _OWN:
        values = layer[f"mtp.{own}.weight"].float().numpy()
        more[f"{begin}nextn.{own}.weight"] = values + (plus if own != "eh_proj" else 0)
    said = {f"{name}.block_count": layers + 1, f"{name}.nextn_predict_layers": 1}
    return write_gguf(path, config, model, metadata=said | letters(), scales=more)[0]


def letters() -> dict[str, Any]:
    """The metadata of a tokenizer whose tokens are single letters, `!` the first."""
    vocabulary = {chr(number): number - 33 for number in range(33, 127)} | {"Ġ": 94, "Ċ": 95, "~}": 96}
    return tokenizer_fields({"model": {"vocab": vocabulary, "merges": [["~", "}"]]}, "added_tokens": []}, eos=1)
