"""Which files of a repository make up the model that a tag means."""

from __future__ import annotations

from collections.abc import Collection

from moeinf.errors import CheckpointError
from moeinf.store.naming.gguf_models import join_them, model_files, whole_of

PREFERRED = "q4_k_m"  # where no tag is given, as with ollama


def choose(names: Collection[str], tag: str, where: str) -> str:
    """The first file of the model that a tag means: its quantisation, or the file itself; "" for the usual one.

    Raises CheckpointError, which names the tags that there are.
    """
    models = model_files(names)
    if tag in models.values():
        return tag
    wanted = (tag or PREFERRED).lower().removesuffix(".gguf")
    exact = [file for stem, file in models.items() if stem.rpartition("/")[2] == wanted or stem == wanted]
    fits = exact or [file for stem, file in models.items() if stem.endswith((f"-{wanted}", f".{wanted}", f"_{wanted}"))]
    if not tag and not fits and len(models) == 1:
        return next(iter(models.values()))
    if len(fits) == 1:
        return fits[0]
    in_pieces = sorted({whole_of(name) for name in names} - {""})
    cut = [name for name in in_pieces if wanted in name.lower() or len(in_pieces) == 1]
    if cut and not fits:
        raise CheckpointError(f"{where} has {cut[0]}, but {join_them(cut[0].rpartition('/')[2])}, and give that file")
    known = ", ".join(tags_of(models)) or "none"
    if not fits:
        fault = f"has no GGUF file of the tag {tag[:50]!r}" if tag else "has several GGUF files, none of them Q4_K_M"
        raise CheckpointError(f"{where} {fault}; say which, as in {where}:TAG (tags are {known})")
    raise CheckpointError(f"{where} has several GGUF files of the tag {tag or PREFERRED!r}: {', '.join(sorted(fits))}")


def tags_of(models: dict[str, str]) -> list[str]:
    """What tells the files of a repository apart: their names behind what all of them begin with."""
    stems = [stem.rpartition("/")[2] for stem in models]
    if len(stems) < 2:
        return [stem.upper() for stem in stems]
    common = stems[0]
    for stem in stems[1:]:
        while not stem.startswith(common):
            common = common[:-1]
    cut = max(common.rfind("-"), common.rfind(".")) + 1
    return sorted(stem[cut:].upper() for stem in stems)
