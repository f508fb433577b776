"""moeinf beside llama.cpp: same weights, same bits, same token ids, same threads, same memory, alternating.

    python benchmarks/peers/compare_llamacpp.py MODEL=FILE.gguf ... --rounds 3 --passages 3
    python benchmarks/peers/compare_llamacpp.py MODEL=FILE.gguf ... --limit 33.3% --rounds 5 --passages 2

MODEL is a stored model made from the checkpoint of make_checkpoint.py, FILE.gguf what to_gguf.py and quantise_gguf.py
made of the same. A round runs each pair once, both sides one after the other; each process serves `--passages`
requests, of which the first is reported apart. Without a limit the GGUF is in the page cache, and llama.cpp runs as it
is by default and with --no-repack, as each may be the faster. --limit puts each process into a memory control group
(version 1, needs root), bytes or a share of the smaller file, and drops the page cache before it; llama.cpp runs with
--no-repack where it is killed otherwise. Prints Markdown: medians (smallest-largest, n), ratios, the share of the
measured memory bandwidth that decoding reached, and what moeinf says of its last decode. A process that fails is named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from processes import Failed, output_of, passages
from side_by_side import OURS, PEER, PEER_UNPACKED, Request, Side, markdown

from moeinf.config.environment import store_home
from moeinf.config.size import parse_size
from moeinf.store.library import Library, StoredModel

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pair:
    """One format: a stored model and a GGUF of the same weights."""

    stored: StoredModel
    gguf: Path
    limit_bytes: int | None

    @staticmethod
    def parse(text: str, limit: str | None) -> Pair:
        name, _, gguf = text.partition("=")
        stored, path = Library(store_home()).find(name), Path(gguf)
        whole = min(stored.size_bytes, path.stat().st_size)
        size = parse_size("--limit", limit) if limit else None
        return Pair(stored, path, size.of(whole) if size else None)


class Comparison:
    """Runs processes of both sides by turns and collects what they say."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._context = given.prompt + given.decode + 64
        self.sides: dict[tuple[str, str], Side] = defaultdict(Side)  # (model, engine)

    def round(self, pair: Pair) -> None:
        name = pair.stored.name
        self._run(self.sides[name, OURS], self._moeinf, pair)
        if not pair.limit_bytes:
            _into_page_cache(pair.gguf)
        default = self.sides[name, PEER]
        if pair.limit_bytes is None or not default.failures:
            self._run(default, self._llamacpp, pair, True)
        if _repacked(pair.gguf) and (pair.limit_bytes is None or default.failures):
            self._run(self.sides[name, PEER_UNPACKED], self._llamacpp, pair, False)

    def _run(self, side: Side, runner: Any, *arguments: Any) -> None:
        try:
            runner(side, *arguments)
        except Failed as failure:
            side.failures.append(str(failure))

    def _moeinf(self, side: Side, pair: Pair) -> None:
        given = self._given
        command = [
            sys.executable,
            "-m",
            "moeinf",
            "bench",
            pair.stored.name,
            "-q",
            "-o",
            "json",
            "-p",
            str(given.prompt),
            "-n",
            str(given.decode),
            "-r",
            str(given.passages - 1),
            "-t",
            str(given.threads),
            "-c",
            str(self._context),
            *given.bench_option,
        ]
        if pair.limit_bytes is None:
            command += ["--expert-cache", "100%"]
        rows = json.loads(output_of(command, pair.limit_bytes))
        for cold in (True, False):
            group = [row["samples_ts"] for row in rows if row["cold"] is cold]  # prefill, decode
            side.requests += [Request(cold, prefill, decode) for prefill, decode in zip(*group, strict=True)]
        side.row = next((row for row in reversed(rows) if row["test"].startswith("tg")), {})

    def _llamacpp(self, side: Side, pair: Pair, repack: bool) -> None:
        given = self._given
        work = {
            "context": self._context,
            "threads": given.threads,
            "repack": repack,
            "mmap": True,
            "passages": passages(pair.stored.path, given.prompt, given.decode, given.passages),
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(work, file)
            file.flush()
            command = [sys.executable, str(HERE / "llamacpp_run.py"), str(pair.gguf), file.name]
            done = json.loads(output_of(command, pair.limit_bytes).splitlines()[-1])
        for number, request in enumerate(done["rounds"]):
            side.requests.append(
                Request(
                    number == 0, given.prompt / request["prefill_s"], len(request["token_s"]) / sum(request["token_s"])
                )
            )
        side.row = {"weight_bytes_per_token": weight_bytes_per_token(pair.gguf)}


def _into_page_cache(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _repacked(path: Path) -> bool:
    """Whether llama.cpp would repack any of it; it leaves 8-bit weights as they are on x86."""
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    return bool(kinds - {"F32", "F16", "BF16", "Q8_0"})


def weight_bytes_per_token(path: Path) -> int:
    """Bytes of weights that a GGUF's model reads for one token: not idle experts, nor an embedding that is no head."""
    return _per_token(path, "n_bytes")


def weights_per_token(path: Path) -> int:
    """The same as a count of weights."""
    return _per_token(path, "n_elements")


def _per_token(path: Path, size: str) -> int:
    reader = gguf.GGUFReader(path)
    fields = {name.split(".")[-1]: field for name, field in reader.fields.items() if "expert" in name}
    share = fields["expert_used_count"].contents() / fields["expert_count"].contents()
    names = {tensor.name for tensor in reader.tensors}
    idle = {"token_embd.weight"} if "output.weight" in names else set()
    return sum(
        round(int(getattr(tensor, size)) * (share if "_exps" in tensor.name else 1))
        for tensor in reader.tensors
        if tensor.name not in idle
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="MODEL=FILE.gguf")
    parser.add_argument("--limit", help="bytes (1.7GB), or a share of the smaller of the two files (33.3%%)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passages", type=int, default=3, help="requests a process; the first is reported apart")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bench-option", action="append", default=[], help="passed on to moeinf bench")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    given = parser.parse_args()
    pairs = [Pair.parse(text, given.limit) for text in given.pairs]
    print(f"load average before: {os.getloadavg()[0]:.2f}; a busy machine makes figures worthless", file=sys.stderr)
    comparison = Comparison(given)
    for number in range(given.rounds):
        for pair in pairs:
            comparison.round(pair)
        print(f"round {number + 1} of {given.rounds} done", file=sys.stderr, flush=True)
    for pair in pairs:
        held = f", held to {pair.limit_bytes / 1e9:.3f} GB" if pair.limit_bytes else ""
        print(
            f"{pair.stored.name}: {pair.stored.size_bytes / 1e9:.2f} GB{held}; {pair.gguf.name}: "
            f"{pair.gguf.stat().st_size / 1e9:.2f} GB"
        )
    print(markdown(comparison.sides, given.prompt, given.decode))
    if given.json:
        given.json.write_text(json.dumps({"/".join(key): side.to_json() for key, side in comparison.sides.items()}))


if __name__ == "__main__":
    main()
