"""The store of ollama: a manifest for each name, and blobs named by their hashes.

Source: github.com/ollama/ollama, `types/model/name.go` and `server/manifest.go`: manifests/HOST/NAMESPACE/MODEL/TAG is
a JSON object of the form of OCI image manifests, and each layer's digest `sha256:HEX` is the file blobs/sha256-HEX.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from moeinf.errors import MALFORMED, MoeinfError, StoreError
from moeinf.references.foreign.foreign_model import ForeignModel
from moeinf.store.files import parse_json_object, read_small
from moeinf.types import Json

_SCHEMA: Final = 2
_LIBRARY: Final = ("registry.ollama.ai", "library")
_MODEL, _PROJECTOR = "application/vnd.ollama.image.model", "application/vnd.ollama.image.projector"
_TEMPLATE = "application/vnd.ollama.image.template"
_SYSTEM, _PARAMS = "application/vnd.ollama.image.system", "application/vnd.ollama.image.params"
_NEWER = "a newer moeinf may know it, and with MOEINF_FOREIGN=0 models are fetched instead"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MOST_BYTES = 1 << 20  # of a manifest, or of a text beside the weights


def ollama_models(environment: Mapping[str, str], home: Path) -> Iterator[ForeignModel]:
    """Those of the store that ollama would use itself. home: the user's."""
    folder = Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models")
    paths = sorted((folder / "manifests").glob("*/*/*/*"))
    for path in paths:
        if path.is_file() and not path.name.startswith("."):
            yield _model(path, folder)
    if not paths and any((folder / "blobs").glob(f"sha256-{'[0-9a-f]' * 64}")):
        fault = f"it has files, and no manifests that are known here: it may be of a newer layout; {_NEWER}"
        yield ForeignModel("ollama", f"store in {folder}", folder, 0, fault=fault)


def _model(path: Path, folder: Path) -> ForeignModel:
    host, space, word, tag = path.parts[-4:]
    name = f"{word}:{tag}" if (host, space) == _LIBRARY else f"{host}/{space}/{word}:{tag}"
    repo = f"{space}/{word}" if host in ("hf.co", "huggingface.co") else ""

    def faulty(fault: str) -> ForeignModel:
        return ForeignModel("ollama", name, path, 0, repo, fault=fault)

    try:
        manifest = parse_json_object(read_small(path, _MOST_BYTES), str(path), StoreError)
        if manifest.get("schemaVersion") != _SCHEMA:
            return faulty(
                f"its manifest is of another form (schemaVersion {manifest.get('schemaVersion')!r:.20}); {_NEWER}"
            )
        files = dict[str, Path]()
        for layer in manifest.get("layers") or []:
            files[layer["mediaType"]] = _blob(layer, folder)
        if _MODEL not in files:
            return faulty(f"it has no GGUF file; `ollama pull {name}`, or {_NEWER}")
        return ForeignModel(
            "ollama",
            name,
            files[_MODEL],
            files[_MODEL].stat().st_size,
            repo,
            files.get(_PROJECTOR),
            _text(files.get(_SYSTEM)),
            json.loads(_text(files.get(_PARAMS)) or "{}"),
            _text(files.get(_TEMPLATE)),
        )
    except (OSError, MoeinfError, *MALFORMED) as error:
        return faulty(f"it is not whole ({error}); `ollama pull {name}` mends it")


def _blob(layer: Mapping[str, Json], folder: Path) -> Path:
    """The file of a layer, as large as it is to be. Raises ValueError, KeyError, OSError."""
    digest = _DIGEST.fullmatch(layer["digest"])
    if digest is None:
        raise ValueError(f"{layer['digest']!r:.30} is no digest")
    path = folder / "blobs" / f"sha256-{digest[1]}"
    size = os.stat(path).st_size
    if size != layer["size"]:
        raise ValueError(f"{path.name[:19]} has {size} of {layer['size']} bytes")
    return path


def _text(path: Path | None) -> str:
    return "" if path is None else read_small(path, _MOST_BYTES).decode("utf-8")
