"""Takes docs/page.png and docs/page-dark.png: the page beside the embedded model at work, a third of it in memory.

Needs Chromium. Run: python -m docs.take_screenshots
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.support.browser import missing
from tests.support.chromium import Browser, chromium

HERE = Path(__file__).parent
WARM_UP = (  # fills the charts, and the list of conversations
    *("Once upon a time", "The king said", "In the morning", "There was a house", "The sea was calm"),
    *("A letter came", "She opened the door", "It rained all night", "The old man smiled", "On the hill"),
)
SHOWN = ("Tell me of a ship and the sea.", "Once upon a time, the captain said")
WARM_UP_S, SHOWN_S = 8.0, 1.5  # until an answer is stopped, or shown


@contextmanager
def served() -> Iterator[str]:
    """The address of a server with the embedded model in a store of its own, until the end of `with`."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "MOEINF_HOME": home}
        moeinf = [sys.executable, "-m", "moeinf"]
        subprocess.run([*moeinf, "pull", "demo"], env=environment, check=True, capture_output=True)
        command = [*moeinf, "serve", "--host", "127.0.0.1:0", "--expert-cache", "33%", "--num-ctx", "2048"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
            assert server.stdout is not None
            try:
                line = next(each for each in server.stdout if b"http://" in each)
                yield line.split()[-1].decode()
            finally:
                server.terminate()


def ask(browser: Browser, text: str, seconds: float, *, stop: bool = True) -> None:
    """Asks, and lets the model write for so long."""
    answers = len(browser.all(".foot"))
    browser.find("#prompt").send_keys(text, Keys.ENTER)
    time.sleep(seconds)
    if stop:
        browser.find("#prompt").send_keys(Keys.ESCAPE)
        browser.wait(lambda: len(browser.all(".foot")) > answers)


def take(browser: Browser, scheme: str, path: Path) -> None:
    browser.prefer(scheme)
    browser.wait(lambda: browser.run("return document.fonts.status") == "loaded")
    picture = browser.command("Page.captureScreenshot", format="png")
    path.write_bytes(base64.b64decode(picture["data"]))


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    with served() as url, chromium() as browser:
        browser.resize(1280, 860)
        browser.open(url)
        for beginning in WARM_UP:
            ask(browser, beginning, WARM_UP_S)
            browser.run("document.getElementById('new-chat').click()")  # without a pointer over it
        ask(browser, SHOWN[0], SHOWN_S)
        ask(browser, SHOWN[1], SHOWN_S, stop=False)
        take(browser, "light", HERE / "page.png")
        take(browser, "dark", HERE / "page-dark.png")


if __name__ == "__main__":
    main()
