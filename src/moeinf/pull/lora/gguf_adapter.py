"""An adapter of llama.cpp: a GGUF file of pairs of matrices, under the names of a GGUF model's tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.header import Gguf, GgufTensor, read_gguf
from moeinf.store.files import errors_named

EMBEDDING = "token_embd.weight"  # of which A is stored transposed
_A, _B = ".lora_a", ".lora_b"


class GgufAdapter:
    """The file, of whose weights no byte is read yet.

    pairs: A [.., rank, columns] and B [.., rows, rank] by the name of the tensor that they are for.
    """

    def __init__(self, gguf: Gguf, where: str, state: Callable[[], str], located: Callable[[Path], Path]) -> None:
        """gguf: its header. state: differs when a byte may differ. located: the file itself, downloaded into a folder
        if need be.

        Raises CheckpointError for what is no adapter, UnsupportedModelError for one that is not merged exactly.
        """
        self.gguf, self.where, self.located, self._state = gguf, where, located, state
        kind = self.text("general.type") or "model"
        if (kind, self.text("adapter.type")) != ("adapter", "lora"):
            raise CheckpointError(f"{where} is no LoRA adapter (general.type {kind!r:.50}); name the adapter's file")
        if "adapter.alora.invocation_tokens" in gguf.metadata:
            raise UnsupportedModelError(f"{where} works behind some tokens alone (aLoRA), which moeinf does not do")
        names = {name.removesuffix(_A).removesuffix(_B) for name in gguf.tensors if name.endswith((_A, _B))}
        other = [name for name in gguf.tensors if not name.endswith((_A, _B))]
        if other or not names:
            what = f"has tensor {other[0]!r:.100} beside its pairs" if other else "has no pairs"
            raise UnsupportedModelError(f"{where} {what}, which moeinf does not merge; take an adapter of pairs alone")
        self.pairs = {name: self._pair(name) for name in sorted(names)}
        alpha = gguf.metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float) or not math.isfinite(alpha):
            raise CheckpointError(f"{where}: adapter.lora.alpha is {alpha!r:.50}, which is no number")
        self._alpha = alpha

    @property
    def fingerprint(self) -> str:
        """A text that differs when a byte of the adapter may differ."""
        return self._state()

    @property
    def base(self) -> str:
        """The model that it says it was made for."""
        return self.text("general.base_model.0.repo_url") or self.text("general.base_model.0.name")

    def rank(self, name: str) -> int:
        """Of a pair."""
        return self.pairs[name][1].shape[-1]

    def scale(self, name: str) -> float:
        """By which llama.cpp multiplies the product of a pair."""
        return self._alpha / self.rank(name) if self._alpha else 1.0

    def text(self, name: str) -> str:
        """Of a field of metadata; "" where there is none."""
        value = self.gguf.metadata.get(name)
        return value if isinstance(value, str) else ""

    def _pair(self, name: str) -> tuple[GgufTensor, GgufTensor]:
        a, b = (self.gguf.tensors.get(f"{name}{end}") for end in (_A, _B))
        if a is None or b is None:
            raise CheckpointError(f"{self.where} lacks one of the two tensors of {name!r:.100}; fetch it again")
        of_a = a.shape[::-1] if name == EMBEDDING else a.shape
        alike = len(a.shape) == len(b.shape) in (2, 3) and a.shape[:-2] == b.shape[:-2]
        if not alike or of_a[-2] != b.shape[-1] or "i32" in (a.format, b.format):
            raise CheckpointError(
                f"{self.where}: A {list(a.shape)} and B {list(b.shape)} of {name!r:.100} have no product: damaged"
            )
        return a, b


def adapter_file(path: Path) -> GgufAdapter:
    """Of a file of this machine. Raises as GgufAdapter."""
    return GgufAdapter(read_gguf(path), str(path), lambda: _state(path), lambda folder: path)


def _state(path: Path) -> str:
    """By size, time and inode."""
    with errors_named(path, CheckpointError):
        info = path.stat()
    return hashlib.sha256(f"{info.st_size} {info.st_mtime_ns} {info.st_ino}".encode()).hexdigest()
