"""What a format costs: perplexity, KL divergence and top-token agreement against bf16, beside llama.cpp's same type.

    python benchmarks/peers/quality.py demo demo-q8 demo-bf16.gguf demo-Q8_0.gguf --text held-out.txt --tokens 16384

Each model is a stored model or a GGUF of the same weights; the first stored one and the first GGUF are the references
of their kind, and the two references are compared with each other too. The text (of a .jsonl, its `prompt` fields) is
cut into chunks of --context tokens by the embedded model's tokenizer; the second half of each chunk is scored, as
llama-perplexity does, with the text itself as the context (teacher forcing).
--kv-cache runs the stored models once more with keys and values in that format; it can be repeated.
--rows feeds moeinf that many tokens at a time: up to 8 take the path of decoding, whose activations are 8-bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.model import Model
from moeinf.store.library import Library

Array = npt.NDArray[np.float64]
Chunks = Sequence[Sequence[int]]


class Scored(NamedTuple):
    """Natural-log probabilities [tokens, vocab] of the scored half of each chunk."""

    size_bytes: int
    chunks: list[npt.NDArray[np.float32]]


class Engine(Protocol):
    size_bytes: int

    def logits(self, ids: Sequence[int]) -> Any: ...  # float32 [ids, vocab] of a text from its beginning

    def close(self) -> None: ...


class Stored:
    """A stored model of moeinf."""

    def __init__(self, name: str, context: int, threads: int, rows: int, kept: str = "auto") -> None:
        stored = Library(store_home()).find(name)
        self.size_bytes = stored.size_bytes
        self._rows = rows
        self._model = Model(stored, RuntimeConfig.of(device="cpu", context=context, threads=threads, kv_cache=kept))

    def logits(self, ids: Sequence[int]) -> Any:
        runner = self._model.runner
        runner.cache.truncate(0)
        return np.concatenate(
            [
                runner.network.forward(ids[at : at + self._rows], runner.cache, last_only=False)
                for at in range(0, len(ids), self._rows)
            ]
        )

    def close(self) -> None:
        self._model.close()


class Gguf:
    """A GGUF run by llama.cpp."""

    def __init__(self, path: Path, context: int, threads: int, *, repack: bool = True) -> None:
        from llamacpp_run import Session  # which comparisons of stored models alone do without

        self.size_bytes = path.stat().st_size
        self._session = Session(str(path), context, threads, repack=repack)

    def logits(self, ids: Sequence[int]) -> Any:
        self._session.forget()
        pointer = self._session.decode_all(list(ids), 0)
        return np.ctypeslib.as_array(pointer, shape=(len(ids), self._session.num_vocab)).copy()

    def close(self) -> None:
        self._session.close()


def score(engine: Engine, chunks: Chunks) -> Scored:
    """Of each chunk, the predictions made from its middle up to its last token but one."""
    scored = []
    for ids in chunks:
        logits = np.asarray(engine.logits(ids), np.float64)[len(ids) // 2 : -1]
        logits -= logits.max(axis=1, keepdims=True)
        scored.append((logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32))
    return Scored(engine.size_bytes, scored)


def perplexity(scored: Scored, chunks: Chunks) -> float:
    losses = [
        -log_p[np.arange(len(log_p)), ids[len(ids) // 2 + 1 :]]
        for log_p, ids in zip(scored.chunks, chunks, strict=True)
    ]
    return float(np.exp(np.concatenate(losses).mean(dtype=np.float64)))


def divergences(reference: Scored, scored: Scored) -> Array:
    """KL(reference || scored) of each prediction, in nats."""
    parts = []
    for p, q in zip(reference.chunks, scored.chunks, strict=True):
        wide = p.astype(np.float64)
        parts.append((np.exp(wide) * (wide - q)).sum(axis=1))
    return np.concatenate(parts)


def agreement(reference: Scored, scored: Scored) -> float:
    """Share of predictions whose most probable token is the reference's."""
    same = [p.argmax(axis=1) == q.argmax(axis=1) for p, q in zip(reference.chunks, scored.chunks, strict=True)]
    return float(np.concatenate(same).mean())


def line(name: str, against: str, reference: Scored, scored: Scored, chunks: Chunks) -> str:
    value, base, kl = perplexity(scored, chunks), perplexity(reference, chunks), divergences(reference, scored)
    cells = [
        name,
        f"{scored.size_bytes / 1e6:.2f}",
        f"{value:.3f}",
        f"{100 * (value / base - 1):+.2f} %",
        against,
        f"{kl.mean():.5f} ± {kl.std() / len(kl) ** 0.5:.5f}",
        f"{np.quantile(kl, 0.99):.4f}",
        f"{100 * agreement(reference, scored):.2f} %",
    ]
    return "| " + " | ".join(cells) + " |"


def read_chunks(files: Sequence[Path], context: int, num_tokens: int) -> Chunks:
    """Whole chunks of each file, spread evenly over it, num_tokens at most."""
    tokenizer = Tokenizer.from_str(resources.files("moeinf").joinpath("data/demo/tokenizer.json").read_text())
    chunks: list[list[int]] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".jsonl":
            text = "\n\n".join(json.loads(entry)["prompt"] for entry in text.splitlines())
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        whole = len(ids) // context
        wanted = min(whole, max(1, num_tokens // context))
        chunks += [ids[context * (n * whole // wanted) :][:context] for n in range(wanted)]
    if not chunks:
        raise SystemExit(f"the text has no {context} tokens")
    return chunks


def rows_of_table(given: argparse.Namespace, chunks: Chunks) -> Iterator[str]:
    references: dict[bool, tuple[str, Scored]] = {}
    for name, kept in [(name, kept) for name in given.models for kept in ("auto", *given.kv_cache)]:
        is_gguf = name.endswith(".gguf")
        if is_gguf and kept != "auto":
            continue
        shown = (
            Path(name).name if is_gguf else f"moeinf {name}" + (f", {kept} keys and values" if kept != "auto" else "")
        )
        with closing(_open(name, is_gguf, kept, given)) as engine:
            scored = score(engine, chunks)
        against, reference = references.setdefault(is_gguf, (shown, scored))
        yield line(shown, "itself" if reference is scored else against, reference, scored, chunks)
    if len(references) == 2:
        (ours, stored), (_, gguf) = references[False], references[True]
        yield line(references[True][0], ours, stored, gguf, chunks)


def _open(name: str, is_gguf: bool, kept: str, given: argparse.Namespace) -> Engine:
    if is_gguf:
        return Gguf(Path(name), given.context, given.threads)
    return Stored(name, given.context, given.threads, given.rows or given.context, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL|FILE.gguf")
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16384, help="at most, of each text")
    parser.add_argument("--rows", type=int, help="tokens a forward pass of moeinf; default: the whole chunk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache", action="append", default=[], metavar="FORMAT")
    given = parser.parse_args()
    chunks = read_chunks(given.text, given.context, given.tokens)
    print(f"{len(chunks)} chunks of {given.context} tokens of {', '.join(path.name for path in given.text)}\n")
    print("| model | MB | perplexity | to its reference | reference | KL, nats | KL p99 | same top token |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows_of_table(given, chunks):
        print(row, flush=True)


if __name__ == "__main__":
    main()
