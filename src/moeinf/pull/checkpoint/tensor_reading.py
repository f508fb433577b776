"""What a checkpoint is, once config.json, the names of its tensors and what may be copies have been looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from moeinf.models.family import family_of
from moeinf.models.pruned import pruned_config
from moeinf.pull.checkpoint.conversion_plan import Conversion, plan_conversion, router_rows
from moeinf.pull.checkpoint.journal import Journal
from moeinf.pull.checkpoint.tensor_copies import Copies
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.declared import declared_by
from moeinf.pull.source import Source, read_config
from moeinf.store.format import Header
from moeinf.store.quantisation import Quantisation
from moeinf.types import JsonObject, ModelInfo


class Reading:
    """config.json as the tensors mend it, and the plan of the family as the tensors decide it."""

    def __init__(self, source: Source, journal: Journal) -> None:
        self._source, self._journal = source, journal
        self.config = read_config(source)
        self.family = family_of(self.config)
        self.own_files: dict[str, bytes] = {}  # small files that the source has otherwise
        self.compared = True  # whether it is known which copies differ from what they would be copies of
        self.together: list[str] = []  # shards that have to be fetched together to find that out
        self._plan = self.family.tensors  # with those that differ
        self._told: list[str] = []  # of them

    def heed(self, headers: Mapping[str, Header]) -> None:
        self._heed_pruning(headers)
        self.heed_copies(headers)

    def _heed_pruning(self, headers: Mapping[str, Header]) -> None:
        """Layers may have fewer experts than config.json says: then the one that is stored says how many."""
        plan = self.family.tensors
        rows = router_rows(plan, self._source.shards, headers, declared_by(self.config))
        config = pruned_config(self.config, plan.moe, rows)
        if config is not None:
            self._mend(config)

    def heed_tokenizer(self, kinds: Callable[[], list[int]]) -> None:
        """Some families have a field that is made of the tokenizer. kinds: as text.vocabulary.token_kinds has them."""
        field = self.family.of_tokenizer
        if field is not None:
            inside = self.config.get("text_config")
            said = {field: kinds()}
            self._mend({**self.config, **(said if inside is None else {"text_config": {**inside, **said}})})

    def _mend(self, config: JsonObject) -> None:
        self.config, self.family = config, family_of(config)
        self.own_files["config.json"] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()

    def heed_copies(self, headers: Mapping[str, Header], downloads: Path | None = None) -> None:
        """What config.json takes for a copy of the embedding may be none, which the numbers tell.

        Without `downloads`, where missing shards go, copies in them are taken for tensors of their own until then.
        """
        plan = self.family.tensors
        copies = Copies(plan, Tensors(self._source.shards, headers, plan, declared_by(self.config)))
        own = self._journal.own_tensors()
        self.compared, self.together = True, []
        if own is None:
            folder = downloads or self._journal.download_folder
            missing = [shard for shard in copies.shards if self._source.fetch_bytes(shard, folder)]
            self.compared, self.together = not missing or downloads is not None, missing
            own = frozenset(copies.stored)
            if self.compared:
                own = copies.own({shard: self._source.open_shard(shard, folder) for shard in copies.shards})
                self._journal.own = own
        self._plan, self._told = plan.owning(own), copies.lines(own) if self.compared else []

    def conversion(
        self, headers: Mapping[str, Header], quantisation: Quantisation, told: tuple[str, ...] = ()
    ) -> Conversion:
        """told: further lines for the user."""
        declared = declared_by(self.config)
        return plan_conversion(self._plan, self._source.shards, headers, quantisation, declared, (*self._told, *told))

    def info(self, conversion: Conversion) -> ModelInfo:
        info, usual = self.family.info(conversion.dtype), self.family.tensors.dense
        more = sum(math.prod(shape) for name, shape in self._plan.dense.items() if name not in usual)
        return replace(info, num_params=info.num_params + more, active_params=info.active_params + more)
