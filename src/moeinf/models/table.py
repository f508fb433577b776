"""The families that moeinf runs: what docs/models.md says of them, and what `architecture` looks up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    model_type: str  # of config.json; the module is named after it
    checkpoints: tuple[str, ...]  # that people run
    special: str  # what a reader of the code should know
    verified: str = "transformers"  # against what
    notes: tuple[str, ...] = ()  # where the reference is wrong, and what is followed instead

    @property
    def module(self) -> str:
        return self.model_type.replace("-", "_")


FAMILIES = (
    Family("mixtral", ("Mixtral-8x7B", "Mixtral-8x22B", "WizardLM-2-8x22B"),
           "8 large experts, 2 a token; sliding window where the config has one"),
    Family("olmoe", ("OLMoE-1B-7B",), "norms over whole queries and keys, clipped projections"),
    Family("qwen3_moe", ("Qwen3-30B-A3B", "Qwen3-235B-A22B"), "norms of each head; dense layers by step or name"),
)
