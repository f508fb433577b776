"""Stored models in ollama's words: the details, the digest and the metadata that its clients look for."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from moeinf.config.option import options
from moeinf.engine.stored.facts import config, facts_of, formats_text, json_file, licence_text
from moeinf.engine.stored.modelfile import own_modelfile
from moeinf.engine.stored.parameters import parameter_rows
from moeinf.engine.stored.preset import preset_of
from moeinf.sampling.params import SamplingParams, from_generation_config
from moeinf.store.files import errors_named, read_small
from moeinf.store.library import StoredModel
from moeinf.store.manifest import MANIFEST_FILE
from moeinf.text.quantities import count_text
from moeinf.text.templates.own import is_own
from moeinf.types import JsonObject

_MOST_KEPT = 64  # models whose facts are kept: an id stands for the content, so that they stay true


def entry(model: StoredModel) -> JsonObject:
    """A model as `tags` lists it. Raises StoreError."""
    return {**identity(model), "modified_at": model.modified.isoformat(), "size": model.size_bytes}


def identity(model: StoredModel) -> JsonObject:
    """Name, digest and details. Raises StoreError."""
    digest, details = _identity(model.id, model.path)
    digest = model.own_id if model.preset_text else digest
    return {"name": model.name, "model": model.name, "digest": digest, "details": details}


def _owner_of(template: str) -> str:
    return "moeinf's" if is_own(template) else "the checkpoint's"


def shown(model: StoredModel, context: int, *, verbose: bool) -> JsonObject:
    """A model as `show` tells of it; verbose: with config.json and the tensors of an expert.

    context: tokens that prompt and answer may have here.

    Raises StoreError, TextError.
    """
    preset, facts = preset_of(model), facts_of(model)
    template = facts.template_facts
    parameters = parameter_rows(_recommended(model), preset)
    described = {
        "modelfile": f"# The chat template is {_owner_of(facts.template)} own.\n{own_modelfile(model)}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters),
        "template": facts.template,
        **({"system": preset.system} if preset.system else {}),
        "license": licence_text(model),
        "details": identity(model)["details"],
        "model_info": _model_info(model, context),
        "capabilities": facts.capabilities,
        "modified_at": model.modified.isoformat(),
        "moeinf": {"always_thinks": template is not None and template.thinks and not template.switchable},
    }
    if verbose:
        described["model_info"]["moeinf.config"] = config(model)
        described["tensors"] = [
            {"name": f"expert.{spec.name}", "type": spec.dtype.upper(), "shape": list(spec.shape)}
            for spec in model.manifest.layout.tensors
        ]
    return described


@lru_cache(_MOST_KEPT)
def _identity(identifier: str, path: Path) -> tuple[str, JsonObject]:
    model = StoredModel("", identifier, path)
    info = model.manifest.info
    with errors_named(path):
        digest = hashlib.sha256(read_small(path / MANIFEST_FILE)).hexdigest()
    return digest, {
        "parent_model": "",
        "format": "safetensors" if model.manifest.in_place is None else "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": count_text(info.num_params),
        "quantization_level": formats_text(model),
    }


def _recommended(model: StoredModel) -> dict[str, object]:
    """What the checkpoint recommends, by ollama's names."""
    found = from_generation_config(json_file(model, "generation_config.json"))
    return {each.ollama: found[each.name] for each in options(SamplingParams) if each.name in found}


def _model_info(model: StoredModel, context: int) -> JsonObject:
    """The metadata that a GGUF file would have, which clients look up by these names."""
    info, moe, checkpoint = model.manifest.info, model.manifest.moe, config(model)
    own = {
        "context_length": context,
        "embedding_length": info.hidden_size,
        "block_count": info.num_layers,
        "vocab_size": info.vocab_size,
        "expert_count": moe.num_experts,
        "expert_used_count": moe.top_k,
        "expert_shared_count": info.num_shared_experts,
        "attention.head_count": checkpoint.get("num_attention_heads"),
        "attention.head_count_kv": checkpoint.get("num_key_value_heads"),
    }
    return {
        "general.architecture": info.architecture,
        "general.parameter_count": info.num_params,
        **{f"{info.architecture}.{name}": value for name, value in own.items() if isinstance(value, int)},
        "moeinf.most_context_length": info.context_length,  # that the model allows
        "moeinf.active_parameter_count": info.active_params,
        "moeinf.moe_layer_count": moe.num_layers,
        "moeinf.expert_bytes": model.manifest.layout.stride_bytes,
    }
