"""What an adapter of PEFT changes: products of two small matrices that are added to large ones, and whole tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.lora.adapter_files import PREFIX, AdapterFiles
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.store.files import parse_json_object
from moeinf.store.format import STORE_DTYPES, Header, TensorEntry
from moeinf.store.naming.lookup import printable

_WRAPPER = ".base_layer"  # of a module that has more than one adapted parameter, all but the last one's name
_SAVED = ".modules_to_save"  # in names of older versions
_A, _B, _OF_LOOKUP = ".lora_A.weight", ".lora_B.weight", ".lora_embedding_"
_REPEATED, _NESTED, _MOST_REPEATED = re.compile(r"[*+{]"), re.compile(r"\)[*+?{]"), 3  # of a stranger's patterns
_MAGNITUDE = re.compile(r"\.lora_magnitude_vector(\.weight)?$")
# Fields that make an adapter compute something else than W + scale B A, whatever tensors it has.
_REFUSED = (
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "kasa_config", "layer_replication", "lora_bias",
    "monteclora_config", "trainable_token_indices", "use_bdlora", "use_qalora", "velora_config",
)  # fmt: skip
# How A and B begin, where the weights of the model stay what they are.
_BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
# How the columns of B lie where one tensor has all experts: those of PEFT, and those that Unsloth trained before
# 17 September 2026 (unsloth-zoo#1232), since when it writes which.
_LAYOUT: Final = "lora_B_layout"
_BY_RANK, _BY_EXPERT = "rank_major", "grouped_by_expert"


@dataclass(frozen=True, slots=True)
class LowRank:
    """A matrix W of a module becomes W + scale B A; with a magnitude (DoRA) each row of that has this length instead.

    Of a linear layer W is [out, in], A [rank, in] and B [out, rank]. Of E experts in one tensor A is [E rank, in], one
    expert behind the other, and B [out, rank E], in which the experts of a rank are neighbours, or by_expert the ranks
    of an expert. Of an embedding [ids, width] A is [rank, ids] and B [width, rank], and (B A) transposed is added.
    """

    module: str  # "model.layers.0.self_attn.q_proj", as the adapted model calls it
    a: TensorEntry
    b: TensorEntry
    magnitude: TensorEntry | None = None
    of_embedding: bool = False
    by_expert: bool = False


class Adapter:
    """A LoRA adapter, of whose weights no byte is read yet."""

    def __init__(self, files: AdapterFiles) -> None:
        """Raises CheckpointError for what is not sound, UnsupportedModelError for what is not merged exactly."""
        self.files, self.where = files, files.where
        self._config = parse_json_object(files.config, ADAPTER_CONFIG, CheckpointError)
        self._check_kind()
        self._rank, self._alpha = self._positive("r"), self._positive("lora_alpha")
        self._alphas = self._pattern("alpha_pattern")
        self._ranks = self._pattern("rank_pattern")
        # The ends of names of tensors that are adapted though they are no linear layer's, such as fused experts.
        self.parameters = [str(name) for name in self._list("target_parameters")]
        self._by_expert = self._lies_by_expert()
        self.changes, self.replaced = self._read(files.header())

    def scale(self, target: str) -> float:
        """Of a module, or of a parameter that is adapted by itself."""
        alpha = self._alphas.get(_matching(self._alphas, target), self._alpha)
        rank = self.rank(target)
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def rank(self, target: str) -> int:
        return int(self._ranks.get(_matching(self._ranks, target), self._rank))

    def line(self) -> str:
        """What a user is told of a model that it is in."""
        ranks = sorted({self._rank, *self._ranks.values()})
        kind = "DoRA" if self._config.get("use_dora") else "LoRA"
        whole = f", {len(self.replaced)} tensors replaced" if self.replaced else ""
        base = self._config.get("base_model_name_or_path")
        of = f", made for {printable(base)}" if isinstance(base, str) and base else ""
        rank = " or ".join(f"{each:g}" for each in ranks)
        what = f"rank {rank}, {len(self.changes)} modules{whole}{of}"
        return f"merged with the {kind} adapter {printable(self.where)} ({what})"

    def _check_kind(self) -> None:
        kind = self._config.get("peft_type")
        if kind != "LORA":
            raise self._not_merged(f"is an adapter of type {str(kind)[:40]}")
        refused = [name for name in _REFUSED if self._config.get(name)]
        beginning = self._config.get("init_lora_weights", True)
        if not any(beginning is each or (isinstance(each, str) and beginning == each) for each in _BEGINNINGS):
            refused.append(f"init_lora_weights {str(beginning)[:40]}, which changes the weights of the model too")
        if refused:
            raise self._not_merged(f"is made with {', '.join(refused)}")

    def _lies_by_expert(self) -> bool:
        """Whether columns of B of one expert lie together. Raises UnsupportedModelError where that cannot be known."""
        said, made_by = self._config.get(_LAYOUT), self._config.get("auto_mapping")
        if said is None and self.parameters and isinstance(made_by, dict) and made_by.get("unsloth_fixed"):
            raise UnsupportedModelError(
                f"{self.where} is made by Unsloth, which packed lora_B of experts by expert until September 2026, and "
                f'does not say how; write "{_LAYOUT}": "{_BY_EXPERT}" into its {ADAPTER_CONFIG}, or "{_BY_RANK}" if it '
                "was trained or repacked since"
            )
        if said not in (None, _BY_RANK, _BY_EXPERT):
            raise self._not_merged(f"has the {_LAYOUT} {str(said)[:40]!r}")
        return said == _BY_EXPERT

    def _not_merged(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.where} {what}, which moeinf does not merge; merge it with PEFT (merge_and_unload), save the model, "
            "and pull that"
        )

    def _positive(self, name: str) -> float:
        value = self._config.get(name, 8)  # as in PEFT
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise CheckpointError(
                f"{self.where}: {ADAPTER_CONFIG} says {name} {str(value)[:40]}, which is no number above 0"
            )
        return value

    def _pattern(self, name: str) -> dict[str, float]:
        found = self._config.get(name) or {}
        if not isinstance(found, dict) or not all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
            for value in found.values()
        ):
            raise CheckpointError(f"{self.where}: {ADAPTER_CONFIG}: {name} is not a table of numbers above 0")
        for pattern in found:
            try:
                re.compile(pattern)
            except re.error as error:
                raise CheckpointError(f"{self.where}: {ADAPTER_CONFIG}: {name}: {pattern[:100]!r}: {error}") from error
            if len(_REPEATED.findall(pattern)) > _MOST_REPEATED or _NESTED.search(pattern):
                raise UnsupportedModelError(
                    f"{self.where}: {ADAPTER_CONFIG}: {name}: {pattern[:100]!r} could take for ever to match; write it "
                    "without repeated groups"
                )
        return found

    def _list(self, name: str) -> list[object]:
        found = self._config.get(name) or []
        if not isinstance(found, list):
            raise CheckpointError(f"{self.where}: {ADAPTER_CONFIG}: {name} is no list")
        return found

    def _read(self, header: Header) -> tuple[list[LowRank], dict[str, TensorEntry]]:
        """The changes, in the order of their modules; and tensors by the name of what they take the place of."""
        entries = {self._plain_name(name): entry for name, entry in header.items()}
        for name, entry in entries.items():
            if entry.dtype not in STORE_DTYPES:
                raise UnsupportedModelError(
                    f"{self.where}: tensor {name!r} has dtype {entry.dtype}; save it as bf16 or f32"
                )
        lengths = {found.string[: found.start()]: found.string for found in map(_MAGNITUDE.search, entries) if found}
        changes, taken = [], set[str]()
        for name in sorted(entries):
            lookup = name.endswith(f"{_OF_LOOKUP}A")
            if not lookup and not name.endswith(_A):
                continue
            module = name.removesuffix(f"{_OF_LOOKUP}A" if lookup else _A)
            other = module + (f"{_OF_LOOKUP}B" if lookup else _B)
            length = lengths.get(module)
            if other not in entries:
                raise CheckpointError(f"{self.where} lacks tensor {other!r}, without which {name!r} means nothing")
            a, b = entries[name], entries[other]
            if len(a.shape) != 2 or len(b.shape) != 2 or not all((*a.shape, *b.shape)):
                raise UnsupportedModelError(
                    f"{self.where}: tensors {name!r} {list(a.shape)} and {other!r} {list(b.shape)} are no matrices"
                )
            if lookup and length:
                raise self._not_merged(f"has tensor {length!r}")
            magnitude = entries[length] if length else None
            changes.append(LowRank(module, a, b, magnitude, lookup, self._by_expert))
            taken.update({name, other} | ({length} if length else set()))
        rest = {name.replace(_WRAPPER, ""): entry for name, entry in entries.items() if name not in taken}
        for name in rest:
            if "lora_" in name or "token_adapter" in name or not name.endswith((".weight", ".bias")):
                raise self._not_merged(f"has tensor {name!r}")
        if not changes and not rest:
            raise CheckpointError(f"{self.where} has no tensors of a LoRA adapter")
        return changes, rest

    def _plain_name(self, name: str) -> str:
        if not name.startswith(PREFIX):
            raise CheckpointError(f"{self.where}: tensor {name!r} does not begin with {PREFIX!r}: no adapter of PEFT")
        return name.removeprefix(PREFIX).replace(_SAVED, "")


def module_of(change: LowRank) -> str:
    """The module without the wrappers of its other adapted parameters."""
    return change.module.replace(_WRAPPER, "")


def _matching(patterns: Mapping[str, float], target: str) -> str:
    """The pattern that counts for a target: the first that matches all of it, or what is behind one of its dots."""
    return next((each for each in patterns if re.match(rf"(.*\.)?({each})$", target)), target)
