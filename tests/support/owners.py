"""Made-up stores of other programs, which hold the demo model as a GGUF file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

_KIND = "application/vnd.ollama.image."


def ollama_store(home: Path, name: str, file: Path, **texts: Any) -> Path:
    """A model of ollama's store, MODEL:TAG or HOST/SPACE/MODEL:TAG; returns its manifest.

    texts: of its other layers: system, template, params (an object).
    """
    folder = home / ".ollama" / "models"
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    layers = [_layer(folder, "model", file.read_bytes())]
    for kind, text in texts.items():
        data = json.dumps(text) if isinstance(text, dict) else text
        layers.append(_layer(folder, kind, data.encode()))
    path, _, tag = name.rpartition(":")
    place = path if "/" in path else f"registry.ollama.ai/library/{path}"
    manifest = folder / "manifests" / place / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:" + "0" * 64, "size": 2}
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}))
    return manifest


def _layer(folder: Path, kind: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / f"sha256-{digest}").write_bytes(data)
    return {"mediaType": _KIND + kind, "digest": f"sha256:{digest}", "size": len(data)}


def lm_studio_file(home: Path, repo: str, file: Path) -> Path:
    folder = home / ".lmstudio" / "models" / repo
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, folder))


def llama_cpp_file(home: Path, repo: str, file: Path) -> Path:
    folder = home / ".cache" / "llama.cpp"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, folder / f"{repo.replace('/', '_')}_{file.name}"))


def hub_cache(home: Path, repo: str, *files: Path) -> Path:
    """Returns the snapshot, whose files are links to blobs."""
    folder = home / ".cache" / "huggingface" / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for file in files:
        blob = folder / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        os.symlink(os.path.relpath(blob, snapshot), snapshot / file.name)
    return snapshot


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file, which nobody may change."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))}
