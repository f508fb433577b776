"""Makes a stored model of random weights with the geometry of a real config.json, without a checkpoint on the disk.

    python benchmarks/make_store.py CONFIG_JSON NAME --layers 48 --quant q4_k --scratch /dev/shm/scratch

The weights are those of make_checkpoint.py, drawn and converted a layer at a time: the disk needs room for the store,
and --scratch for one layer in bf16. The store is that of MOEINF_HOME.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from make_checkpoint import cut_config, fill_shard, geometry_parser, write_empty_checkpoint, write_empty_shard

from moeinf.config.environment import store_home
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.conversion_plan import plan_conversion
from moeinf.pull.checkpoint.convert import convert_shard, create_files
from moeinf.pull.checkpoint.seal import seal
from moeinf.pull.source import FolderSource, read_config
from moeinf.store.library import Library
from moeinf.store.naming.names import full_name
from moeinf.store.processes.partials import partial_folder
from moeinf.store.quantisation import KEEP, chosen


def main() -> None:
    parser = geometry_parser(__doc__)
    parser.add_argument("name")
    parser.add_argument("--quant", default="keep")
    parser.add_argument("--scratch", type=Path, required=True, help="a folder that is made and removed")
    given = parser.parse_args()
    generator = torch.Generator(given.device).manual_seed(given.seed)
    shards = write_empty_checkpoint(cut_config(given.config, given.layers, given.vocab), given.scratch)
    try:
        source = FolderSource(given.scratch)
        config = read_config(source)
        family = family_of(config)
        conversion = plan_conversion(family.tensors, source.shards, source.headers(), chosen(given.quant) or KEEP)
        library, locator = Library(store_home()), f"random {given.name}"
        folder = partial_folder(library.home, locator) / "model"
        folder.mkdir(parents=True, exist_ok=True)
        create_files(folder, conversion)
        for file, shapes in shards.items():
            fill_shard(given.scratch / file, shapes, given.embedding_scale, generator)
            convert_shard(given.scratch / file, conversion.moves[file], folder, lambda num_bytes: None)
            write_empty_shard(given.scratch / file, shapes)
            print(f"{file} done", flush=True)
        small = {name: source.read_file(name) for name in source.kept_files()}
        receipt = {"fingerprint": locator, "requested": ""}
        info = family.info(conversion.dtype)
        identifier = seal(folder, conversion, source.origin, info, small, receipt, lambda num_bytes: None)
        stored = library.publish(folder, identifier, full_name(given.name), source.origin)
        shutil.rmtree(folder.parent, ignore_errors=True)
    finally:
        shutil.rmtree(given.scratch)
    print(f"{stored.name}: {stored.size_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
