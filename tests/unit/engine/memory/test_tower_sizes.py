"""What the towers of published models take of memory."""

from __future__ import annotations

import json
from pathlib import Path

from moeinf.engine.vision.tower_sizes import tower_bytes
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily

PUBLISHED = Path(__file__).parents[3] / "support" / "published"


def test_a_picture_takes_a_few_parts_of_a_tower_and_its_patches() -> None:
    """Towers have half a billion weights, and a picture some thousand patches: 238 GB were once planned for one."""
    found = dict[str, int]()
    for path in sorted(PUBLISHED.glob("*/config.json")):
        family = family_of(json.loads(path.read_text()))
        if isinstance(family, DecoderFamily) and family.vision is not None:
            form, hidden_size = family.vision.form(Fields({}), None), family.decoder.attention.hidden_size
            found[path.parent.name] = tower_bytes(family.vision, form, hidden_size, num_threads=2) >> 20
    assert len(found) >= 4 and all(100 < each < 2000 for each in found.values()), found
