"""Where tokenizers and chat templates are that were published with models: they are too large for the repository."""

from __future__ import annotations

import os
from pathlib import Path

PUBLISHED_DATA = Path(os.environ.get("MOEINF_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
