"""Whether there is a browser for tests of the page; itself needs none, nor what drives one."""

from __future__ import annotations

import shutil


def missing() -> str:
    """Why there is no browser, in one line; empty where there is one."""
    wanted = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(wanted)} not installed (Debian: apt-get install chromium chromium-driver)" if wanted else ""
