"""What a model that sees makes of the pictures of a prompt: soft tokens, whose rows its tower computes when needed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.engine.stored.facts import StoredFacts
from moeinf.engine.stored_weights import Weights
from moeinf.engine.vision.parts import GivenPicture
from moeinf.engine.vision.tower_file import TowerFile, open_tower
from moeinf.engine.vision.tower_sizes import grids_of, picture_variables, processor_of, seen_of, text_ids
from moeinf.errors import CheckpointError, TextError, UsageError
from moeinf.models.layers.protocol import Layers
from moeinf.models.layers.soft_tokens import SOFT_IDS, SoftTokens
from moeinf.models.layers.vision.image_processor import ImageProcessor, Patches
from moeinf.models.layers.vision.vision import Grid, Mark, Vision, with_ids, written
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Float32Array

_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Picture:
    """Ready for the tower."""

    views: tuple[Patches, ...]
    items: Sequence[Grid | Mark]  # what stands for it in a prompt
    digest: bytes  # of all that the tower is given

    def ids(self) -> list[int]:
        """Token ids that no other picture has: below 0, where no embedding has rows. Caches of prompts go by them."""
        count = sum(math.prod(item) for item in self.items if isinstance(item, tuple))
        numbers = np.frombuffer(hashlib.shake_128(self.digest).digest(4 * count), "<u4") >> 1
        found: list[int] = (SOFT_IDS - numbers.astype(np.int64)).tolist()
        return found


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the pictures that those below 0 stand for.

    checks: called while pictures are looked at; each may raise to give that up.
    """

    ids: list[int]
    pictures: tuple[SoftTokens, ...] = ()
    checks: list[Callable[[], None]] = field(default_factory=list)

    @property
    def text_ids(self) -> list[int]:
        return [token for token in self.ids if token >= 0] if self.pictures else self.ids


class VisionEncoder:
    """The pictures of one model's prompts. Used from the thread that runs the model."""

    def __init__(
        self, vision: Vision, form: ImageProcessor, tower: TowerFile, kernels: Kernels, tokenizer: Tokenizer
    ) -> None:
        self._vision, self._form, self._tower, self._kernels = vision, form, tower, kernels
        self._tokenizer = tokenizer
        self._rows: dict[bytes, Float32Array] = {}  # of the last prompt's pictures, as far as they were needed

    def prepared(self, given: GivenPicture) -> Picture:
        """Raises UsageError for a picture that cannot be decoded or is out of bounds."""
        pixels, size = seen_of(given, self._form)
        views = tuple(self._form.patches(each) for row in pixels for each in row)
        items = written(self._vision.layout.items(grids_of(pixels, self._form)), size, text_ids(self._tokenizer))
        digest = hashlib.blake2b(f"{[each.grid for each in views]} {items}".encode(), digest_size=_DIGEST_BYTES)
        for each in views:
            digest.update(each.values.tobytes())
        return Picture(views, items, digest.digest())

    def variables(self, pictures: int) -> dict[str, list[str]]:
        """Of a template, for it to place so many pictures."""
        return picture_variables(self._vision, self._tokenizer, pictures)

    def placed(self, ids: Sequence[int], pictures: Sequence[Picture], start: int | None) -> Prompt:
        """The prompt with the pictures where its ids have a token for each.

        start: where pictures go that no template has placed, unless the ids have such tokens all the same; None: a
        template has. Raises TextError where there are not as many places as pictures.
        """
        rows = {each.digest: self._rows[each.digest] for each in pictures if each.digest in self._rows}
        self._rows, checks = rows, list[Callable[[], None]]()
        token, brackets = known(self._vision.token), self._vision.brackets
        if start is not None and token not in ids:
            one = [known(mark) for mark in (*brackets[:-1], token, *brackets[-1:])]
            ids = [*ids[:start], *one * len(pictures), *ids[start:]]
        places = ids.count(token) if isinstance(ids, list) else list(ids).count(token)
        if places != len(pictures):
            raise TextError(
                f"the prompt has {places} places for {len(pictures)} pictures: the chat template of this model "
                "does not place them as its tower wants"
            )
        made, spans, left = list[int](), list[SoftTokens](), iter(pictures)
        for each in ids:
            if each != token:
                made.append(each)
                continue
            picture = next(left)
            soft, seen = picture.ids(), 0
            for item in picture.items:
                if not isinstance(item, tuple):
                    made.append(known(item))
                    continue
                there = slice(seen, seen + math.prod(item))
                spans.append(SoftTokens(len(made), item, partial(self._rows_of, picture, there, rows, checks)))
                made += soft[there]
                seen = there.stop
        return Prompt(made, tuple(spans), checks)

    def _rows_of(
        self, picture: Picture, there: slice, rows: dict[bytes, Float32Array], checks: Sequence[Callable[[], None]]
    ) -> Float32Array:
        """Some of a picture's. rows: of the pictures of one prompt, as far as they were needed."""
        if picture.digest not in rows:
            with self._tower.opened(self._kernels) as part:

                def checked(prefix: str) -> Layers:
                    for check in checks:
                        check()
                    return part(prefix)

                rows[picture.digest] = self._vision.tower.rows(checked, picture.views)
        return rows[picture.digest][there]


def open_vision(
    weights: Weights, tokenizer: Tokenizer, config: RuntimeConfig, kernels: Kernels, on_wait: OnWait | None
) -> VisionEncoder | str:
    """How the model sees, or a line that says why it does not. kernels: of the CPU, where towers run."""

    def id_of(text: str) -> int:
        found = tokenizer.token_id(text)
        if found is None:
            raise CheckpointError(f"its tokenizer has no token {text!r}, which a picture needs in a prompt")
        return found

    stored, vision = weights.stored, weights.family.vision
    if vision is None or not stored.manifest.vision_bytes:
        return StoredFacts(stored).why_no_vision or f"{stored.name} takes text alone: {weights.family.no_vision}"
    try:
        form = processor_of(stored, vision, config)
        token, brackets, layout = with_ids((vision.token, vision.brackets, vision.layout), id_of)
        vision = replace(vision, token=token, brackets=brackets, layout=layout)
    except CheckpointError as error:
        return f"{stored.name} takes text alone: {error}"
    tower = open_tower(stored, vision.tower, weights.sums, config, on_wait)
    return VisionEncoder(vision, form, tower, kernels, tokenizer)


def known(mark: Mark) -> int:
    """The id of a mark that was looked up before."""
    assert isinstance(mark, int)
    return mark


def required(vision_encoder: VisionEncoder | str) -> VisionEncoder:
    """Raises UsageError where a model does not see."""
    if isinstance(vision_encoder, str):
        raise UsageError(vision_encoder)
    return vision_encoder
