"""What is asked of a pull, and which options each kind of pull takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moeinf.config.pull_options import PullOptions
from moeinf.errors import UsageError
from moeinf.pull.checkpoint.convert import PORTIONS, Portions
from moeinf.pull.events import PullProgress
from moeinf.pull.lora.adapter_origin import OpenAdapter, open_adapter
from moeinf.pull.origins import Origin
from moeinf.store.library import Library
from moeinf.store.naming.names import written
from moeinf.store.quantisation import Quantisation

# What is said of an option to a pull that does not take it. All others are for every pull.
_REFUSALS: Final[Mapping[str, str]] = {
    "quant": "--quant: a GGUF file is used as it is; leave it out, choose a file of another quantisation, or pull the "
    "original checkpoint",
    "repack": "--repack is for GGUF files; {source!r} is a checkpoint, which is converted in any case",
    "mmproj": "--mmproj is for GGUF files; {source!r} is a checkpoint, which has its vision tower itself",
}


@dataclass(frozen=True, slots=True)
class PullTask:
    """One model that is to be pulled."""

    origin: Origin
    name: str  # "mixtral:latest"
    wanted: Quantisation | None  # that was asked for
    options: PullOptions
    library: Library
    progress: PullProgress
    portions: Portions = PORTIONS
    checked: bool = True  # with the checksums of all weights, for which a GGUF file of this machine is read whole

    @property
    def quantisation(self) -> Quantisation:
        return self.wanted or self.origin.quantisation

    @property
    def repacked(self) -> bool:
        """Whether GGUF files are copied into files of the store's own."""
        return self.options.repack or self.origin.repacked

    def opened_adapter(self) -> OpenAdapter | None:
        """The adapter that was asked for, or that the model had before. Raises as `open_adapter`."""
        adapter = self.origin.adapter
        return None if adapter is None else open_adapter(adapter, self.options.token, self.progress)

    def require(self, *taken: str) -> None:
        """Raises UsageError for an option that was given, and is not among those that a pull takes."""
        options = self.options
        given = {"quant": self.wanted is not None, "repack": options.repack, "mmproj": options.mmproj is not None}
        for option, words in _REFUSALS.items():
            if given[option] and option not in taken:
                raise UsageError(words.format(source=written(self.origin.source)[:100]))
