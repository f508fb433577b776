"""Names the formats of a stored model's weights, as users read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from moeinf.store.format import is_head
from moeinf.store.manifest import Manifest


def formats_text(manifest: Manifest) -> str:
    """`bf16`, or `q4_k experts, q4_k dense, q8_0 head`: what is stored, which need not be all that was asked for."""
    experts = expert_formats(manifest)
    dense = {name: blocks.format for name, blocks in manifest.formats.dense.items()}
    if not dense and experts == manifest.info.dtype:
        return experts
    head = [f"{format} head" for name, format in dense.items() if is_head(name)]
    rest = mixed(format for name, format in dense.items() if not is_head(name))
    return ", ".join([f"{experts} experts", f"{rest or manifest.info.dtype} dense", *head])


def expert_formats(manifest: Manifest) -> str:
    """Of the experts of all layers: `q4_k/q6_k`."""
    layouts = manifest.layers or (manifest.layout,)
    return mixed(spec.dtype for layout in layouts for spec in layout.tensors)


def mixed(formats: Iterable[str]) -> str:
    """Joins the names of formats, the most frequent first."""
    return "/".join(format for format, _ in Counter(formats).most_common())
