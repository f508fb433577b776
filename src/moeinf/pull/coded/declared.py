"""What config.json says of quantised weights: what their tensors do not tell, and what would change them unseen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from moeinf.errors import UnsupportedModelError
from moeinf.types import Json, JsonMapping

_LANGUAGE_MODELS = ("text_config", "thinker_config", "llm_config", "language_config")
METHODS = ("fp8", "mxfp8", "mxfp4", "compressed-tensors", "modelopt", "gptq", "awq", "bitsandbytes")
_FORMATS = (  # of compressed-tensors
    "dense",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
_ALGORITHMS = ("FP8", "NVFP4", "MIXED_PRECISION")  # of modelopt
MX_BLOCK = 32  # weights of a row that share a power of two
_MOST = 1 << 31
_ENDLESS = re.compile(r"\)[*+{]|([*+{].*){5}")  # a pattern that may take hours to try


@dataclass(frozen=True, slots=True)
class Args:
    """How compressed-tensors codes the weights of the modules that a group of its config is for."""

    targets: tuple[str, ...]
    bits: int
    symmetric: bool
    group_size: int | None  # -1: a whole row
    tile: tuple[int, int] | None

    def is_for(self, module: str) -> bool:
        return any(
            re.match(target[3:], module) if target.startswith("re:") else module in (target, f"model.{target}")
            for target in self.targets
        )


@dataclass(frozen=True, slots=True)
class Declared:
    """What the config of a checkpoint says of its coded matrices."""

    method: str = ""
    tile: tuple[int, int] | None = None  # of FP8: rows and columns that share a scale
    groups: tuple[Args, ...] = ()
    bits: int = 4  # from here on: of GPTQ and AWQ
    group_size: int = -1
    act_order: bool = False
    symmetric: bool = False
    zeros_less_one: bool = False
    own_bits: bool = field(default=False)  # whether modules may have others than these

    def args_of(self, name: str) -> Args | None:
        """Returns the group for the matrix `name`; that of all linear layers comes behind those that name modules."""
        if len(self.groups) == 1:  # what is in no group is not coded
            return self.groups[0]
        module = name.removesuffix(".weight")
        for args in self.groups:
            if args.is_for(module):
                return args
        return next((args for args in self.groups if any(_names_a_class(target) for target in args.targets)), None)

    def tile_of(self, name: str) -> tuple[int, int] | None:
        args = self.args_of(name)
        return args.tile if args and args.tile else self.tile


NOTHING = Declared()


def declared_by(config: JsonMapping) -> Declared:
    """Reads quantization_config. Raises UnsupportedModelError for what is not read, by its name."""
    value = _said(config)
    mlx = config.get("quantization") if value is None else value
    if isinstance(mlx, dict) and "quant_method" not in mlx and {"bits", "group_size"} <= mlx.keys():
        raise UnsupportedModelError(
            "the checkpoint is quantised by MLX, which moeinf does not read; pull the model that it was made of, or a "
            "GGUF file"
        )
    if value is None:
        return NOTHING
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"config.json: quantization_config is {str(value)[:100]}; must be an object")
    method = value.get("quant_method", "compressed-tensors" if "config_groups" in value else None)
    if not isinstance(method, str) or method not in METHODS:
        raise UnsupportedModelError(
            f"the checkpoint is quantised ({str(method or 'unknown method')[:100]}), which moeinf does not read; "
            "pull the bf16, f16 or f32 original instead"
        )
    if method == "fp8":
        _only(value, "fmt", None, "e4m3", "float8_e4m3fn")
        return Declared(method, tile=_tile(value, "weight_block_size"))
    if method == "mxfp8":
        _only(value, "weight_block_size", None, [1, MX_BLOCK])
        return Declared(method, tile=(1, MX_BLOCK))
    if method == "compressed-tensors":
        return _compressed(value)
    if method == "modelopt":
        _only(value, "quant_algo", None, *_ALGORITHMS)
    elif method == "bitsandbytes":
        _only(value, "load_in_8bit", None, False)
        _only(value, "bnb_4bit_quant_storage", None, "uint8")
    elif method == "gptq":
        return _gptq(value)
    elif method == "awq":
        _only(value, "bits", None, 4)
        for name in ("version", "format"):
            _only(value, name, None, "gemm", "GEMM")
        _only(value, "zero_point", None, True)
        return Declared(method, group_size=_count(value, "group_size", 128, -1))
    return Declared(method)


def _said(config: JsonMapping) -> Json:
    """What is said of the checkpoint, else of its language model: Kimi-K2.5 as published has it there alone."""
    value = config.get("quantization_config") or config.get("compression_config")
    inner = (config.get(name) for name in _LANGUAGE_MODELS) if value is None else ()
    return value or next((said for each in inner if isinstance(each, dict) and (said := _said(each))), value)


def _gptq(value: JsonMapping) -> Declared:
    _only(value, "bits", 4, 8)
    _only(value, "pack_dtype", None, "int32")
    _only(value, "rotation", None, "")
    _only(value, "adapter", None)
    for name in ("checkpoint_format", "format"):
        _only(value, name, None, "gptq", "gptq_v2")
    rules = value.get("dynamic") or {}
    for pattern, rule in rules.items() if isinstance(rules, dict) else ():
        for name in ("sym", "desc_act", "static_groups", "format", "method", "adapter"):
            if isinstance(rule, dict) and rule.get(name, value.get(name)) != value.get(name):
                raise UnsupportedModelError(
                    f"config.json: quantization_config: dynamic gives {str(pattern)[:100]} a {name} of its own, "
                    "which moeinf does not read; pull the unquantised original"
                )
    size = _count(value, "group_size", -1, -1)
    act_order = value.get("desc_act") is True and value.get("static_groups") is not True and size != -1
    v2 = "gptq_v2" in (value.get("checkpoint_format"), value.get("format"))
    symmetric = value.get("sym", True) is not False
    return Declared("gptq", None, (), value["bits"], size, act_order, symmetric, not v2, bool(rules))


def _compressed(value: JsonMapping) -> Declared:
    where = "config.json: quantization_config"
    _only(value, "format", None, *_FORMATS)
    for name in ("sparsity_config", "transform_config"):
        inner = value.get(name) or {}
        if not isinstance(inner, dict) or inner.get("format", "dense") != "dense" or inner.get("config_groups"):
            raise UnsupportedModelError(f"{where}: {name} changes the weights in a way that moeinf does not read")
    groups = value.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise UnsupportedModelError(f"{where}: config_groups is {str(groups)[:100]}; must be an object of objects")
    found = []
    for group in groups.values():
        _only(group, "format", None, *_FORMATS)
        weights, targets = group.get("weights"), group.get("targets")
        if weights is None:
            continue
        if not isinstance(weights, dict) or not isinstance(targets, list) or len(targets) > 100_000:
            raise UnsupportedModelError(f"{where}: config_groups has a group without weights and targets that are read")
        _only(weights, "num_bits", 4, 8)
        _only(weights, "type", None, "int", "float")
        for target in targets:
            _check_target(target, where)
        size = _count(weights, "group_size", None, -1)
        found.append(
            Args(
                tuple(targets),
                weights["num_bits"],
                weights.get("symmetric", True) is not False,
                -1 if weights.get("strategy") == "channel" else size,
                _tile(weights, "block_structure"),
            )
        )
    return Declared("compressed-tensors", groups=tuple(found))


def _check_target(target: object, where: str) -> None:
    try:
        if isinstance(target, str) and len(target) <= 1000 and not _ENDLESS.search(target.replace(r"\d+", "")):
            re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
            return
    except (re.error, RecursionError, OverflowError):
        pass
    raise UnsupportedModelError(f"{where}: {str(target)[:100]!r} in targets is no name and no pattern")


def _names_a_class(target: str) -> bool:
    return target[:1].isupper()


def _only(value: JsonMapping, name: str, *allowed: Json) -> None:
    found = value.get(name)
    if not any(found is each or (type(found) is type(each) and found == each) for each in allowed):
        known = ", ".join(str(each) for each in allowed if each is not None) or "null"
        raise UnsupportedModelError(
            f"config.json: quantization_config: {name} is {str(found)[:100]}; moeinf reads only {known}"
        )


def _count(value: JsonMapping, name: str, default: Json, minimum: int) -> Json:
    found = value.get(name)
    if found is None:
        return default
    if type(found) is not int or found == 0 or not minimum <= found < _MOST:
        raise UnsupportedModelError(
            f"config.json: quantization_config: {name} is {str(found)[:100]}; must be the columns that share a scale"
        )
    return found


def _tile(value: JsonMapping, name: str) -> tuple[int, int] | None:
    tile: Sequence[Json] | None = value.get(name)
    if tile is None:
        return None
    if not isinstance(tile, list) or len(tile) != 2 or not all(type(n) is int and 0 < n < _MOST for n in tile):
        raise UnsupportedModelError(
            f"config.json: quantization_config: {name} is {str(tile)[:100]}; "
            "must be the rows and columns that share a scale"
        )
    return tile[0], tile[1]
