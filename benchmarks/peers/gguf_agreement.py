"""The same GGUF file in moeinf and in llama.cpp: how far each engine's logits are from those of the exact weights.

    python benchmarks/peers/gguf_agreement.py FILE.gguf ... --text held-out.txt --tokens 2000 --work FOLDER

The exact logits are llama.cpp's of a copy whose blocks the `gguf` package has widened to F32, so that neither engine
rounds activations for it. Distances are root mean squares of logits whose mean was taken away, as a share of their
standard deviation. moeinf computes up to 8 rows at a time with 8-bit activations (decoding), more of them otherwise
(prefill); llama.cpp runs with and without --no-repack, and what is nearer is shown. Prints Markdown. moeinf indexes
the file in MOEINF_HOME, and reads it where it lies.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
from quality import Chunks, Engine, Gguf, Scored, Stored, agreement, divergences, read_chunks, score

from moeinf.config.environment import store_home
from moeinf.store.library import Library

Logits = npt.NDArray[np.float64]
DECODING_ROWS = 8


def indexed(path: Path) -> str:
    """The name under which moeinf has the file."""
    subprocess.run([sys.executable, "-m", "moeinf", "pull", str(path)], check=True, capture_output=True)
    return next(
        model.name for model in Library(store_home()).list() if model.manifest.source.location == str(path.resolve())
    )


def widen(path: Path, out: Path) -> None:
    """Writes the same model with all tensors in F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents(), use_temp_file=True)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Heard(NamedTuple):
    """What an engine has answered."""

    scored: Scored
    centred: Logits  # [tokens, vocab]; the mean of each token's logits is 0


class _Keeping:
    """An engine that keeps the logits which were asked of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.size_bytes, self.kept = engine, engine.size_bytes, list[Logits]()

    def logits(self, ids: Sequence[int]) -> Any:
        found = np.asarray(self._engine.logits(ids), np.float64)
        self.kept.append(found - found.mean(axis=1, keepdims=True))
        return found

    def close(self) -> None:
        self._engine.close()


def hear(engine: Engine, chunks: Chunks) -> Heard:
    with closing(_Keeping(engine)) as keeping:
        scored = score(keeping, chunks)
        return Heard(scored, np.concatenate(keeping.kept))


def apart(exact: Heard, found: Heard) -> float:
    return float(np.sqrt(((found.centred - exact.centred) ** 2).mean()) / exact.centred.std())


def row(path: Path, given: argparse.Namespace, chunks: Chunks) -> str:
    name = indexed(path)
    with TemporaryDirectory(dir=given.work) as folder:
        twin = Path(folder) / "exact.gguf"
        widen(path, twin)
        exact = hear(Gguf(twin, given.context, given.threads, repack=False), chunks)
    ours = [hear(Stored(name, given.context, given.threads, rows), chunks) for rows in (DECODING_ROWS, given.context)]
    peers = [hear(Gguf(path, given.context, given.threads, repack=repack), chunks) for repack in (True, False)]
    heard = [*ours, min(peers, key=lambda each: apart(exact, each))]
    measures: list[tuple[str, Callable[[Heard], float]]] = [
        ("{:.3f} %", lambda each: 100 * apart(exact, each)),
        ("{:.6f}", lambda each: float(divergences(exact.scored, each.scored).mean())),
        ("{:.2f} %", lambda each: 100 * agreement(exact.scored, each.scored)),
    ]
    cells = [form.format(measure(each)) for form, measure in measures for each in heard]
    return "| " + " | ".join([path.name, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--work", type=Path, help="where the F32 copies lie meanwhile; default: the temporary folder")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    chunks = read_chunks(given.text, given.context, given.tokens)
    print(f"{len(chunks)} chunks of {given.context} tokens, the second half of each compared\n")
    engines = ("decoding", "prefill", "llama.cpp")
    measures = ("logits apart", "KL", "same top token")
    print("| file | " + " | ".join(f"{measure}, {engine}" for measure in measures for engine in engines) + " |")
    print("|---" * 10 + "|")
    for path in given.files:
        print(row(path, given, chunks), flush=True)


if __name__ == "__main__":
    main()
