"""What the architectures of GGUF files say in the same way: layers, heads and positions."""

from __future__ import annotations

from collections.abc import Callable

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.metadata import Metadata, numbers_of, shortest
from moeinf.types import JsonObject

SIGMOID, SQRT_SOFTPLUS = 2, 4  # of expert_gating_func, which is softmax (1) elsewhere


def num_layers_of(m: Metadata) -> int:
    """Without those that guess tokens ahead, which lie behind the others."""
    layers, ahead = m.count("block_count"), m.count("nextn_predict_layers", 0)
    if m.architecture in ("deepseek4", "deepseek41") and m.tensor(f"blk.{layers - ahead}.nextn.eh_proj.weight") is None:
        ahead = 0  # llama.cpp counts them only where they are in the file
    if not ahead < layers <= len(m.gguf.tensors):
        raise CheckpointError(
            f"{m.where}: {m.architecture}.block_count is {layers}; the file is damaged or was made so; take another one"
        )
    return layers - ahead


def has_experts(m: Metadata) -> bool:
    return bool(m.values("expert_count") or m.count("expert_count", 0))


def experts_of(m: Metadata) -> int | list[int]:
    """The experts of a layer; of each, and 0 for one without, where routers show that layers were pruned differently.

    A file may say so by a list. A single number is then that of the model before, which no layer exceeds.
    """
    routers = [m.tensor(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(num_layers_of(m))]
    rows = [router.shape[0] if router else 0 for router in routers]
    differ = len({count for count in rows if count}) > 1
    said = m.values("expert_count")
    if said is None:
        count = m.count("expert_count")
        return rows if differ and max(rows) <= count else count
    if len(said) < len(rows):
        raise CheckpointError(
            f"{m.where}: {m.architecture}.expert_count has {len(said)} numbers for {len(rows)} layers; "
            "the file is damaged or was made so; take another one"
        )
    for layer, (count, found) in enumerate(zip(said, rows, strict=False)):
        if found and found != count:
            raise CheckpointError(
                f"{m.where}: {m.architecture}.expert_count is {count!r:.50} in layer {layer}, whose router has {found} "
                "experts; the file is damaged or was made so; take another one"
            )
    return rows if differ else max(rows)


def dense_layers_of(m: Metadata) -> list[int]:
    """The layers that have a plain block instead of experts."""
    return [i for i in range(num_layers_of(m)) if m.tensor(f"blk.{i}.ffn_gate_inp.weight") is None]


def counts_of(m: Metadata, name: str) -> list[int]:
    """Of each layer, from a list or from one number for all."""
    said, layers = m.values(name), num_layers_of(m)
    if said is None:
        return [m.count(name)] * layers
    if len(said) < layers or not all(type(each) is int and each >= 0 for each in said):
        raise CheckpointError(
            f"{m.where}: {m.architecture}.{name} is {said!r:.60}, not a whole number for each of {layers} layers; the "
            "file is damaged or was made so; take another one"
        )
    return said[:layers]


def slides_of(m: Metadata, whole: Callable[[int], bool]) -> list[bool]:
    """Of each layer, whether it has a window; whole: where the file has no pattern, the layers that see all tokens."""
    pattern, layers = m.values("attention.sliding_window_pattern"), num_layers_of(m)
    if pattern is None:
        return [not whole(i) for i in range(layers)]
    if len(pattern) < layers:
        raise CheckpointError(
            f"{m.where}: {m.architecture}.attention.sliding_window_pattern tells of {len(pattern)} of {layers} layers; "
            "the file is damaged or was made so; take another one"
        )
    return [bool(each) for each in pattern[:layers]]


def mlps_of(m: Metadata) -> list[str]:
    """Of each layer."""
    dense = dense_layers_of(m)
    return ["dense" if i in dense else "sparse" for i in range(num_layers_of(m))]


def head_dim_of(m: Metadata) -> int:
    default = 0
    if "attention.key_length" not in m or "attention.value_length" not in m:
        default = m.count("embedding_length") // max(1, m.count("attention.head_count"))
    key, value = (m.count(f"attention.{name}_length", default) for name in ("key", "value"))
    if key != value:
        raise UnsupportedModelError(f"{m.where}: keys of {key} and values of {value} numbers are not supported")
    return key


def plain_heads(m: Metadata) -> JsonObject:
    """head_dim, and how much of a head is rotated."""
    head_dim = head_dim_of(m)
    rotated = m.count("rope.dimension_count", head_dim)
    return {"head_dim": head_dim} | (
        {} if rotated == head_dim else {"partial_rotary_factor": rotated / max(1, head_dim)}
    )


def expert_width(m: Metadata) -> int:
    """Files have it under either name; the tensors are right."""
    m.count("expert_feed_forward_length", 0)
    if m.values("feed_forward_length") is None:  # a list says 0 of layers without
        m.count("feed_forward_length", 0)
    for name in ("ffn_up_exps", "ffn_gate_up_exps"):
        for tensor in m.gguf.tensors.values():
            if tensor.name.endswith(f".{name}.weight") and len(tensor.shape) == 3:
                return tensor.shape[1] // (2 if "gate" in name else 1)
    for tensor in m.gguf.tensors.values():
        if tensor.name.endswith(".ffn_up.0.weight") and len(tensor.shape) == 2:  # of before April 2024
            return tensor.shape[0]
    raise UnsupportedModelError(
        f"{m.where} has no tensor 'blk.<layer>.ffn_up_exps.weight'; take a file of a newer llama.cpp, or pull the "
        "checkpoint that it was made from"
    )


def shared_width(m: Metadata) -> int:
    return next(
        (t.shape[0] for t in m.gguf.tensors.values() if t.name.endswith(".ffn_up_shexp.weight")),
        m.count("expert_shared_feed_forward_length", 0),
    )


def routing_is_corrected(m: Metadata) -> bool:
    """By biases of the choice alone, which converters have called by either name."""
    return m.has_in_a_layer("exp_probs_b.bias") or m.has_in_a_layer("exp_probs_b")


def refuse_unless(m: Metadata, sound: bool, name: str) -> None:
    if not sound:
        value = m.values(name) or m.get(name)
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.{name} = {value!r:.50} is not supported")


def limits_of(m: Metadata, name: str, num_layers: int) -> list[float]:
    """Of each layer; 0 is none."""
    values = m.values(name) or [m.number(name, 0.0)] * num_layers
    refuse_unless(m, len(values) >= num_layers and all(type(each) in (int, float) for each in values), name)
    return [shortest(float(each)) for each in values[:num_layers]]


def refuse_unless_sigmoid(m: Metadata) -> None:
    refuse_unless(m, m.count("expert_gating_func", SIGMOID) in (0, SIGMOID), "expert_gating_func")


def grouped_routing(m: Metadata) -> JsonObject:
    """The routing of DeepSeek's blocks, which others have too."""
    m.count("expert_shared_feed_forward_length", 0), m.count("leading_dense_block_count", 0)
    dense = dense_layers_of(m)
    width = expert_width(m)
    return {
        "n_routed_experts": experts_of(m),
        "n_shared_experts": m.count("expert_shared_count", 0),
        "n_group": m.count("expert_group_count", 1) or 1,
        "topk_group": m.count("expert_group_used_count", 1) or 1,
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": m.flag("expert_weights_norm", False),
        "first_k_dense_replace": next(i for i in range(len(dense) + 1) if i not in dense),
        "moe_intermediate_size": width,
        "intermediate_size": m.count("feed_forward_length", width),
        "num_nextn_predict_layers": m.count("nextn_predict_layers", 0),
    }


def granite_multipliers(m: Metadata) -> JsonObject:
    return {
        "embedding_multiplier": m.number("embedding_scale", 1.0),
        "residual_multiplier": m.number("residual_scale", 1.0),
        "attention_multiplier": m.number("attention.scale", head_dim_of(m) ** -0.5),
        "logits_scaling": m.number("logit_scale", 1.0),
    }


def kv_heads_of(m: Metadata) -> int:
    """A list has one for each layer, and 0 for those without attention."""
    said = m.values("attention.head_count_kv")
    if said is None:
        return m.count("attention.head_count_kv" if "attention.head_count_kv" in m else "attention.head_count")
    found = {count for count in said if count}
    if len(found) != 1 or type(count := found.pop()) is not int:
        raise UnsupportedModelError(
            f"{m.where}: {m.architecture}.attention.head_count_kv differs from layer to layer, which is not supported"
        )
    return count


def positions_of(m: Metadata) -> JsonObject:
    """rope_theta, and rope_scaling where the positions are others than plain ones."""
    scaling = _scaling(m)
    return {"rope_theta": m.number("rope.freq_base", 1e4), **({"rope_scaling": scaling} if scaling else {})}


def _scaling(m: Metadata) -> JsonObject:
    factor = m.number("rope.scaling.factor", m.number("rope.scale_linear", 1.0))
    kind = m.text("rope.scaling.type", "none" if factor in (0.0, 1.0) else "linear")
    trained = m.count("rope.scaling.original_context_length", 0)
    attention = m.number("rope.scaling.attn_factor", 0.0) or m.number("rope.scaling.yarn_attn_factor", 0.0)
    names = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier")
    fast, slow, log_multiplier = (m.number(name, 0.0) for name in names)
    if m.number("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.rope.scaling.yarn_ext_factor is not supported")
    context = m.count("context_length")
    if m.tensor("rope_factors_long.weight") is not None or kind == "longrope":
        return _longrope(m, trained or context, attention)
    own = m.tensor("rope_freqs.weight")
    factors = numbers_of(m.gguf, own) if own is not None else []
    if any(each != 1.0 for each in factors):  # Llama 3.1's positions, of which the file has the factors of each pair
        if kind != "none":
            raise UnsupportedModelError(
                f"{m.where}: positions of type {kind!r:.50} (rope.scaling) with factors of their own "
                "('rope_freqs.weight') are not supported"
            )
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind == "none":
        return {}
    if kind == "linear":
        return {} if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.rope.scaling.type {kind!r:.50} is not supported")
    found: JsonObject = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained or context}
    if attention:
        found["attention_factor"] = attention
    found |= {name: value for name, value in (("beta_fast", fast), ("beta_slow", slow)) if value}
    if log_multiplier:  # of DeepSeek, which publishes the same for mscale; the file has but one
        weight = round(log_multiplier * 10, 6)
        found |= {"mscale": weight, "mscale_all_dim": weight}
    return found


def _longrope(m: Metadata, trained: int, attention: float) -> JsonObject:
    found: JsonObject = {"rope_type": "longrope", "original_max_position_embeddings": trained}
    for name in ("short", "long"):
        tensor = m.tensor(f"rope_factors_{name}.weight")
        if tensor is None:
            raise UnsupportedModelError(
                f"{m.where} has no tensor 'rope_factors_{name}.weight', which its positions need"
            )
        found[f"{name}_factor"] = numbers_of(m.gguf, tensor)
    return found | ({"attention_factor": attention} if attention else {})


def whole_numbers(m: Metadata, name: str) -> list[int]:
    """A list that is none of layers; [] where there is none."""
    found = m.values(name) or []
    if not all(type(number) is int for number in found):
        raise CheckpointError(f"{m.where}: {m.architecture}.{name} must be whole numbers; the file is damaged")
    return found
