"""Takes docs/page.png and docs/page-dark.png: the page beside the embedded model at work, a third of it in memory.

Needs Chromium. Run: python -m docs.take_screenshots
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.support.chromium import Browser, chromium, missing

HERE = Path(__file__).parent
QUESTIONS = (
    "Once upon a time, there was a king who",
    "Write a short story about a ship and the sea.",
    "Tell me about the house in the wood.",
)


@contextmanager
def served() -> Iterator[str]:
    """The address of a server with the embedded model in a store of its own, until the end of `with`."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "MOEINF_HOME": home}
        moeinf = [sys.executable, "-m", "moeinf"]
        subprocess.run([*moeinf, "pull", "demo"], env=environment, check=True, capture_output=True)
        command = [*moeinf, "serve", "--host", "127.0.0.1:0", "--expert-cache", "33%", "--num-predict", "400"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
            assert server.stdout is not None
            try:
                line = next(each for each in server.stdout if b"http://" in each)
                yield line.split()[-1].decode()
            finally:
                server.terminate()


def ask(browser: Browser, text: str) -> None:
    answers = len(browser.all(".foot"))
    browser.find("#prompt").send_keys(text, Keys.ENTER)
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
        for question in QUESTIONS:
            ask(browser, question)
        take(browser, "light", HERE / "page.png")
        take(browser, "dark", HERE / "page-dark.png")


if __name__ == "__main__":
    main()
