"""Rows of the table: layers of attention and recurrent ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeinf.types import AttentionSizes, DeltaSizes, IndexSizes, LatentSizes, MambaSizes
from tests.support.native.computing import pass_shape
from tests.support.native.table import Arguments, World, call

HEADS, KV_HEADS, DIM, CAPACITY = 4, 2, 32, 40
KEPT_NUMBERS = KV_HEADS * CAPACITY * DIM
BYTES = "formats that are unknown, sizes below 0 or that do not fit together, what is no number of bytes"
KEPT = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}  # bytes a number


def _finite(name: str) -> Any:
    return lambda given, _: bool(np.isfinite(given[name]).all())


def _room(world: World, format: str, numbers: int) -> Any:
    return np.zeros(int(numbers * KEPT[format]), np.uint8)


@call("AttentionTensors")
def _tensors(world: World) -> Arguments:
    queries, keys = HEADS * DIM, KV_HEADS * DIM
    gated = world.kept("gated", lambda: world.rng.random() < 0.2)
    given: Arguments = {
        "query": world.matrix(queries * (2 if gated else 1), world.hidden),
        "key": world.matrix(keys, world.hidden),
        "value": world.matrix(keys, world.hidden),
        "output": world.matrix(world.hidden, queries, "bf16", "q8_0", "f32"),
        "norm": world.floats(world.hidden),
        "query_norm": world.floats(DIM),
        "key_norm": world.floats(DIM),
    }
    others = {
        "norm_bias": world.hidden, "query_bias": queries * (2 if gated else 1), "key_bias": keys, "value_bias": keys,
        "output_bias": world.hidden, "sinks": HEADS, "output_norm": world.hidden, "value_norm": DIM,
    }  # fmt: skip
    given |= {name: world.floats(size) for name, size in others.items() if world.rng.random() < 0.3}
    if not gated and world.rng.random() < 0.3:
        given |= {"gate": world.matrix(world.rng.choice([queries, HEADS]), world.hidden)}
    return given


@call("AttentionShape", "sizes that cannot be, an unknown norm of heads, a scale that is not above 0, NaN for a number")
def _shape(world: World) -> Arguments:
    gated = world.kept("gated", lambda: world.rng.random() < 0.2)
    given: Arguments = {"head_dim": DIM, "norm_eps": 1e-6, "head_norm": world.rng.choice(["head", "turned"])}
    return given | {"gated": gated, "window": world.rng.choice([0, 0, 5]), "chunked": world.rng.random() < 0.2,
                    "sharpness": world.rng.choice([0.0, 0.1]), "sharp_length": 8,
                    "cap": world.rng.choice([0.0, 2.0])}  # fmt: skip


@call("AttentionLayer", "tensors that do not fit together")
def _attention(world: World) -> Arguments:
    return {
        "kernels": world.get("Kernels"),
        "tensors": world.get("AttentionTensors"),
        "shape": world.get("AttentionShape"),
    }


def _turns(world: World, pairs: int) -> Arguments:
    return {"cos": world.floats(world.tokens, pairs), "sin": world.floats(world.tokens, pairs)}


@call(
    "AttentionLayer.run",
    "no tokens, shapes that do not fit, an unknown format, a cache that is too small, ends or choices that lie behind "
    "what a token sees, both of them",
    holds=_finite("x"),
)
def _attend(world: World) -> Arguments:
    format = world.kept("kept", lambda: world.rng.choice(list(KEPT)))
    length = world.rng.choice([0, 3, 20])
    room = [world.kept(name, lambda: _room(world, format, KEPT_NUMBERS)) for name in ("keys", "values")]
    given = {"x": world.floats(world.tokens, world.hidden), "keys": room[0], "values": room[1], "format": format,
             "capacity": CAPACITY, "length": length, **_turns(world, DIM // 2)}  # fmt: skip
    seen = world.rng.randrange(4)
    if seen == 0:
        given["ends"] = np.full(world.tokens, length + world.tokens, np.int64)
    elif seen == 1:
        chosen = np.zeros((1, world.rng.choice([1, KV_HEADS]), 4), np.int64)
        chosen[..., 2:] = -1
        given["chosen"] = chosen
    return given


@call(
    "AttentionLayer.run_beside",
    "no rows or too many, rows that are not those of the sequences, shapes that do not fit, an unknown format, a cache "
    "that is too small",
    holds=_finite("x"),
)
def _attend_beside(world: World) -> Arguments:
    format = world.kept("kept", lambda: world.rng.choice(list(KEPT)))
    rows = [1] * max(1, world.tokens - 1)
    if world.tokens > 1:
        rows[0] += 1
    kept = []
    for number in range(len(rows)):
        room = [
            world.kept(f"{name} {number}", lambda: _room(world, format, KEPT_NUMBERS)) for name in ("keys", "values")
        ]
        kept.append((*room, format, CAPACITY, world.rng.choice([0, 3, 20])))
    return {"x": world.floats(world.tokens, world.hidden), "kept": kept, "rows": rows, **_turns(world, DIM // 2)}


@call("AttentionLayer.workspace_bytes", BYTES)
def _attention_bytes(world: World) -> Arguments:
    sizes = AttentionSizes(world.hidden, HEADS, KV_HEADS, DIM, world.rng.choice([0, 5]), False)
    return {"sizes": sizes, "shape": pass_shape(world)}


@call("HeadsLayer", "sizes that do not fit together, a scale that is not above 0")
def _heads(world: World) -> Arguments:
    profiles = world.kept("profiles", lambda: world.rng.choice([None, world.floats(3, 8)]))
    return {"kernels": world.get("Kernels"), "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM,
            "window": world.rng.choice([0, 5]), "rotary_dim": DIM, "interleaved": world.rng.random() < 0.5,
            "scale": 0.2, "profiles": profiles}  # fmt: skip


@call(
    "HeadsLayer.run",
    "no tokens, shapes that do not fit, an unknown format, a cache that is too small, states without profiles",
    holds=_finite("out"),
)
def _run_heads(world: World) -> Arguments:
    format, tokens = world.rng.choice(list(KEPT)), world.tokens
    given = {"queries": world.floats(tokens, HEADS * DIM), "keys": world.floats(tokens, KV_HEADS * DIM),
             "values": world.floats(tokens, KV_HEADS * DIM), "kept_keys": _room(world, format, KEPT_NUMBERS),
             "kept_values": _room(world, format, KEPT_NUMBERS), "format": format, "capacity": CAPACITY,
             "length": world.rng.choice([0, 20]), **_turns(world, DIM // 2),
             "out": world.floats(tokens, HEADS * DIM)}  # fmt: skip
    if world.kept("profiles", lambda: world.rng.choice([None, world.floats(3, 8)])) is not None:
        given["relative"] = world.floats(tokens, HEADS * 3)
    if world.rng.random() < 0.3:
        given["sinks"] = world.floats(tokens, HEADS)
    return given


@call(
    "attend_shared_rows",
    "sizes that do not fit together, a scale that is not above 0, rows that are not there",
    holds=_finite("out"),
)
def _shared_rows(world: World) -> Arguments:
    tokens, picked = world.tokens, [world.rng.randrange(9) for _ in range(world.rng.choice([0, 5]))]
    seen = [[t, 3, -1 if t % 2 else 0, len(picked)] for t in range(tokens)]
    return {"kernels": world.get("Kernels"), "queries": world.floats(tokens, HEADS * DIM),
            "window": world.floats(tokens + 3, DIM), "others": world.floats(9, DIM),
            "seen": np.array(seen, np.int64).reshape(tokens, 4), "picked": np.array(picked, np.int64), "scale": 0.2,
            "sinks": world.floats(HEADS), "out": world.floats(tokens, HEADS * DIM)}  # fmt: skip


@call("turn_heads", "sizes that do not fit together", holds=_finite("out"))
def _turned(world: World) -> Arguments:
    tokens, pairs = world.tokens, world.rng.choice([1, DIM // 4, DIM // 2])
    return {"kernels": world.get("Kernels"), "x": world.floats(tokens, HEADS * DIM), "cos": world.floats(tokens, pairs),
            "sin": world.floats(tokens, pairs), "head_dim": DIM, "first": world.rng.choice([0, DIM - 2 * pairs]),
            "interleaved": world.rng.random() < 0.5, "out": world.floats(tokens, HEADS * DIM)}  # fmt: skip


STREAMS = 4


@call("weigh_streams", "sizes that do not fit together, no streams or more than 64", holds=_finite("out"))
def _weighed(world: World) -> Arguments:
    tokens = world.tokens
    return {"kernels": world.get("Kernels"), "x": world.floats(tokens, STREAMS * DIM),
            "shares": world.floats(tokens, STREAMS), "out": world.floats(tokens, DIM)}  # fmt: skip


@call("mix_streams", "sizes that do not fit together, no streams or more than 64", holds=_finite("x"))
def _mixed(world: World) -> Arguments:
    tokens = world.tokens
    mixing = world.floats(tokens, STREAMS * STREAMS) if world.rng.random() < 0.5 else None
    return {"kernels": world.get("Kernels"), "x": world.floats(tokens, STREAMS * DIM),
            "added": world.floats(tokens, DIM), "after": world.floats(tokens, STREAMS), "mixing": mixing}  # fmt: skip


@call("add_scaled", "sizes that do not fit together", holds=_finite("x"))
def _scaled_sum(world: World) -> Arguments:
    tokens = world.tokens
    return {"kernels": world.get("Kernels"), "x": world.floats(tokens, DIM), "added": world.floats(tokens, DIM),
            "by": world.floats(DIM), "keep": world.floats(DIM), "shift": world.floats(DIM)}  # fmt: skip


@call("window_heads", "sizes that do not fit together, convolutions that see no token", holds=_finite("out"))
def _windows(world: World) -> Arguments:
    tokens, by_channel, by_head = world.tokens, world.rng.choice([1, 3]), world.rng.choice([1, 2])
    return {"kernels": world.get("Kernels"), "seen": world.floats(tokens + by_channel + by_head - 2, HEADS * DIM),
            "taps": world.floats(by_channel, HEADS * DIM), "bias": world.floats(HEADS * DIM), "head_dim": DIM,
            "by_head": by_head, "out": world.floats(HEADS * tokens, DIM * by_head)}  # fmt: skip


@call("level_heads", "sizes that do not fit together", holds=_finite("out_queries"))
def _levelled(world: World) -> Arguments:
    tokens, heads = world.tokens, 2 * HEADS
    return {"kernels": world.get("Kernels"), "products": world.floats(heads * tokens, DIM),
            "bias": world.floats(heads * DIM), "queries": world.floats(tokens, HEADS * DIM),
            "keys": world.floats(tokens, HEADS * DIM), "lengths": world.floats(heads),
            "out_queries": world.floats(tokens, HEADS * DIM),
            "out_keys": world.floats(tokens, HEADS * DIM)}  # fmt: skip


RANK, NOPE, VALUE, TURNED = 64, 32, 16, 32


@call("LatentLayer", "a quantised matrix, sizes that do not fit together, a scale that is not above 0")
def _latent(world: World) -> Arguments:
    matrix = world.matrix(HEADS * (NOPE + VALUE), RANK, "f32", "f16", "bf16")
    sinks = world.rng.choice([None, world.floats(HEADS)])
    return {"kernels": world.get("Kernels"), "keys_values": matrix, "num_heads": HEADS, "qk_nope_head_dim": NOPE,
            "value_dim": VALUE, "rotary_dim": TURNED, "interleaved": True, "scale": 0.2, "sinks": sinks,
            "window": world.rng.choice([0, 5])}  # fmt: skip


def _kept_rows(world: World) -> Arguments:
    format = world.kept("latent format", lambda: world.rng.choice(list(KEPT)))
    cache = world.kept("latents", lambda: _room(world, format, CAPACITY * (RANK + TURNED)))
    turns = _turns(world, TURNED // 2)
    return {"cache": cache, "format": format, "length": world.rng.choice([0, 3, 20]), **turns}


@call("LatentLayer.store", "shapes that do not fit, an unknown format, a cache that is too small")
def _store(world: World) -> Arguments:
    return {"rows": world.floats(world.tokens, RANK + TURNED), **_kept_rows(world)}


@call(
    "LatentLayer.attend", "shapes that do not fit, an unknown format, a cache that is too small", holds=_finite("out")
)
def _attend_latents(world: World) -> Arguments:
    queries = world.floats(world.tokens, HEADS * (NOPE + TURNED))
    return {"queries": queries, **_kept_rows(world), "out": world.floats(world.tokens, HEADS * VALUE)}


@call(
    "LatentLayer.attend_chosen", "shapes that do not fit, an unknown format, rows that are not there",
    holds=_finite("out"),
)  # fmt: skip
def _attend_chosen_latents(world: World) -> Arguments:
    given = {name: value for name, value in _kept_rows(world).items() if name != "length"}
    queries = world.floats(world.tokens, HEADS * (NOPE + TURNED))
    chosen = np.array([[0, 3, 7 if t % 2 else -1] for t in range(world.tokens)], np.int64).reshape(world.tokens, 3)
    return {"queries": queries, **given, "chosen": chosen, "out": world.floats(world.tokens, HEADS * VALUE)}


@call("LatentLayer.workspace_bytes", BYTES)
def _latent_bytes(world: World) -> Arguments:
    most = world.rng.choice([0, 5, 5000])
    return {"sizes": LatentSizes(HEADS, RANK, NOPE, VALUE, TURNED, most), "shape": pass_shape(world)}


def _index(world: World) -> Arguments:
    tokens, weighs = world.tokens, world.rng.random() < 0.7
    return {"kernels": world.get("Kernels"), "heads": world.floats(tokens, HEADS * DIM),
            "weights": world.floats(tokens, HEADS) if weighs else None, "keys": world.floats(9, DIM),
            "seen": np.array([t % 10 for t in range(tokens)], np.int64)}  # fmt: skip


@call("score_keys", "sizes that do not fit together, keys that are not there", holds=_finite("scores"))
def _scored(world: World) -> Arguments:
    return _index(world) | {"scores": world.floats(world.tokens, 9)}


@call("choose_keys", "sizes that do not fit together, keys that are not there")
def _chosen_keys(world: World) -> Arguments:
    return _index(world) | {"chosen": np.zeros((world.tokens, 4), np.int64)}


@call("score_blocks", "sizes that do not fit together, keys that are not there, no keys in a block")
def _scored_blocks(world: World) -> Arguments:
    given = {name: value for name, value in _index(world).items() if name != "weights"}
    return given | {"block": 4, "worth": world.floats(world.tokens * HEADS, 3)}


@call("choose_best", "sizes that do not fit together, scores that are not there")
def _chosen_best(world: World) -> Arguments:
    return {"kernels": world.get("Kernels"), "scores": world.floats(world.tokens, 7),
            "seen": np.array([t % 8 for t in range(world.tokens)], np.int64),
            "chosen": np.zeros((world.tokens, 3), np.int64)}  # fmt: skip


@call("index_workspace_bytes", BYTES)
def _index_bytes(world: World) -> Arguments:
    return {"sizes": IndexSizes(HEADS, DIM), "shape": pass_shape(world)}


KEYS, SHARED, KEY_DIM, VALUE_DIM, TAPS = 2, 2, 16, 8, 4
CHANNELS, VALUES = 2 * KEYS * KEY_DIM + KEYS * SHARED * VALUE_DIM, KEYS * SHARED * VALUE_DIM


@call("DeltaLayer", "other than 2 or 4 projections, shapes that do not fit together")
def _delta(world: World) -> Arguments:
    rows = world.rng.choice([(CHANNELS + VALUES, 2 * KEYS * SHARED), (CHANNELS, VALUES, KEYS * SHARED, KEYS * SHARED)])
    return {"kernels": world.get("Kernels"), "projections": [world.matrix(each, world.hidden) for each in rows],
            "output": world.matrix(world.hidden, VALUES, "bf16", "f32", "q8_0"), "norm": world.floats(world.hidden),
            "taps": world.floats(TAPS, CHANNELS), "decay": -np.abs(world.floats(KEYS * SHARED)),
            "bias": world.floats(KEYS * SHARED), "q_norm": world.floats(KEY_DIM), "k_norm": world.floats(KEY_DIM),
            "head_norm": world.floats(VALUE_DIM), "num_key_heads": KEYS, "norm_eps": 1e-6,
            "unit_eps": 1e-6}  # fmt: skip


def _states(world: World, taps: int, channels: int, *heads: int) -> Arguments:
    rows = [1] * max(1, world.tokens - 1)
    if world.tokens > 1:
        rows[0] += 1
    states = []
    for _ in rows:
        conv, state = world.floats(taps - 1, channels), world.floats(*heads)
        states.append((conv, state, np.empty_like(conv), np.empty_like(state)))
    return {"x": world.floats(world.tokens, world.hidden), "states": states, "rows": rows}


@call(
    "DeltaLayer.run", "no tokens, rows that are not those of the sequences, shapes that do not fit", holds=_finite("x")
)
def _run_delta(world: World) -> Arguments:
    return _states(world, TAPS, CHANNELS, KEYS * SHARED, KEY_DIM, VALUE_DIM)


@call("DeltaLayer.workspace_bytes", BYTES)
def _delta_bytes(world: World) -> Arguments:
    return {"sizes": DeltaSizes(world.hidden, KEYS, KEYS * SHARED, KEY_DIM, VALUE_DIM), "shape": pass_shape(world)}


@call("channel_delta", "no tokens or heads, shapes that do not fit")
def _channel_delta(world: World) -> Arguments:
    by_token, state = (world.tokens, 2, 8), world.floats(2, 8, 8)
    given = {name: world.floats(*by_token) for name in ("queries", "keys", "values", "decays")}
    return given | {"kernels": world.get("Kernels"), "rates": world.floats(world.tokens, 2), "state": state,
                    "new_state": np.empty_like(state), "out": world.floats(2, world.tokens, 8)}  # fmt: skip


GROUPS, STATE, INNER = 2, 16, 32
MAMBA_CHANNELS = INNER + 2 * GROUPS * STATE


@call("MambaLayer", "shapes that do not fit together")
def _mamba(world: World) -> Arguments:
    return {"kernels": world.get("Kernels"), "input": world.matrix(INNER + MAMBA_CHANNELS + HEADS, world.hidden),
            "output": world.matrix(world.hidden, INNER, "bf16", "f32", "q8_0"), "norm": world.floats(world.hidden),
            "taps": world.floats(TAPS, MAMBA_CHANNELS), "conv_bias": world.floats(MAMBA_CHANNELS),
            "decay": -np.abs(world.floats(HEADS)), "bias": world.floats(HEADS), "skip": world.floats(HEADS),
            "gate_norm": world.floats(INNER), "in_bias": world.floats(INNER + MAMBA_CHANNELS + HEADS),
            "out_bias": world.floats(world.hidden), "num_groups": GROUPS, "norm_eps": 1e-6,
            "residual": 1.0}  # fmt: skip


@call(
    "MambaLayer.run", "no tokens, rows that are not those of the sequences, shapes that do not fit", holds=_finite("x")
)
def _run_mamba(world: World) -> Arguments:
    return _states(world, TAPS, MAMBA_CHANNELS, HEADS, STATE, INNER // HEADS)


@call("MambaLayer.workspace_bytes", BYTES)
def _mamba_bytes(world: World) -> Arguments:
    return {"sizes": MambaSizes(world.hidden, HEADS, INNER // HEADS, GROUPS, STATE), "shape": pass_shape(world)}


@call("scan", "no tokens or heads, shapes that do not fit")
def _scan(world: World) -> Arguments:
    state = world.floats(2, 8, 8)
    return {"kernels": world.get("Kernels"), "queries": world.floats(world.tokens, 2, 8),
            "keys": world.floats(world.tokens, 2, 8), "values": world.floats(2, world.tokens, 8),
            "decays": world.floats(2, world.tokens), "state": state, "new_state": np.empty_like(state),
            "out": world.floats(2, world.tokens, 8)}  # fmt: skip


@call("channel_scan", "no tokens, channels or states, shapes that do not fit")
def _channel_scan(world: World) -> Arguments:
    state = world.floats(STATE, 8)
    return {"kernels": world.get("Kernels"), "steps": world.floats(world.tokens, 8),
            "values": world.floats(world.tokens, 8), "keys": world.floats(world.tokens, STATE),
            "queries": world.floats(world.tokens, STATE), "projected": world.floats(world.tokens, 16),
            "rates": -abs(world.floats(STATE, 8)), "skip": world.floats(8), "state": state,
            "new_state": np.empty_like(state), "out": world.floats(world.tokens, 8)}  # fmt: skip
