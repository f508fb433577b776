"""Quantises a bf16 GGUF with llama.cpp's own quantiser, and says which tensors became what.

pip install gguf llama-cpp-python
python benchmarks/peers/gguf_files/quantise_gguf.py IN-bf16.gguf OUT.gguf Q4_K_S
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import gguf
import llama_cpp

FTYPES = {
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q5_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0,
    "Q5_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_1,
    "IQ4_NL": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_NL,
    "Q4_K_S": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "MXFP4": llama_cpp.LLAMA_FTYPE_MOSTLY_MXFP4_MOE,
}


def quantise(source: Path, out: Path, ftype: str, threads: int, *, pure: bool = False) -> None:
    """With llama.cpp's default mixture of types, or as moeinf does: one for all, but 8 bits for the head.

    Raises RuntimeError where llama.cpp refuses.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    if pure:
        params.pure = True
        params.token_embedding_type = params.output_tensor_type = gguf.GGMLQuantizationType.Q8_0
    params.ftype = FTYPES[ftype]
    params.nthread = threads
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if status:
        raise RuntimeError(f"llama.cpp cannot quantise {source} to {ftype} (status {status})")


def types_by_tensor(path: Path) -> dict[str, list[str]]:
    """Type of weights -> the tensors that have it, with the layers they stand in where a layer is not alone."""
    layers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for tensor in gguf.GGUFReader(path).tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        layers[tensor.tensor_type.name, match[2] if match else tensor.name].append(match[1] if match else "")
    names: dict[str, list[str]] = defaultdict(list)
    for (kind, name), numbers in layers.items():
        names[kind].append(name.removesuffix(".weight") + (f" [{','.join(numbers)}]" if numbers[0] else ""))
    return dict(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("ftype", choices=sorted(FTYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pure", action="store_true", help="one type for all matrices, but Q8_0 for the head")
    given = parser.parse_args()
    quantise(given.source, given.out, given.ftype, given.threads, pure=given.pure)
    print(f"{given.out}: {given.out.stat().st_size / 1e9:.3f} GB")
    for kind, names in types_by_tensor(given.out).items():
        print(f"  {kind}: {', '.join(names)}")


if __name__ == "__main__":
    main()
