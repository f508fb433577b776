"""Pictures and text files of a message: by a button, dropped, and pasted."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.support.chromium import Browser
from tests.support.page_chat import PIXEL, ask, ended
from tests.support.page_server import DONE, PageServer, said

DRAWN = """
    const canvas = Object.assign(document.createElement('canvas'), { width: 5000, height: 10 });
    canvas.getContext('2d').fillRect(0, 0, 2500, 10);
    return new Promise((made) => canvas.toBlob((blob) => {
      const files = new DataTransfer();
      files.items.add(new File([blob, new Uint8Array(5e6)], 'wide.png', { type: 'image/png' }));
      document.dispatchEvent(new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true }));
      made();
    }));"""


@pytest.fixture
def pixel(tmp_path: Path) -> Path:
    path = tmp_path / "dot.png"
    path.write_bytes(base64.b64decode(PIXEL))
    return path


def attached(browser: Browser) -> list[str]:
    return [each.text for each in browser.all(".attached span")]


def choose(browser: Browser, *paths: Path) -> None:
    browser.find("#attach-file").send_keys("\n".join(str(path) for path in paths))


def test_a_model_that_sees_is_sent_pictures_and_files(
    browser: Browser, server: PageServer, tmp_path: Path, pixel: Path
) -> None:
    server.models = ("seer:latest", "plain:latest")
    server.answers = [[*said("A dot."), DONE]]
    (tmp_path / "note.md").write_text("```\ncode\n```\n", encoding="utf-8")
    browser.open(server.url)
    choose(browser, pixel, tmp_path / "note.md")
    browser.wait(lambda: attached(browser) == ["dot.png", "note.md"])
    ask(browser, "What is it?")
    ended(browser)
    assert server.asked[0]["messages"] == [
        {"role": "user", "content": "note.md:\n````\n```\ncode\n```\n````\n\nWhat is it?", "images": [PIXEL]}
    ]
    assert browser.run("return document.querySelector('.question img').naturalWidth") == 1
    assert browser.text(".text-file summary") == "note.md" and attached(browser) == []

    browser.driver.refresh()
    browser.wait(lambda: browser.all(".question img"))
    browser.find(".edit").click()
    browser.find(".editor textarea").send_keys("!", Keys.ENTER)
    ended(browser)
    assert server.asked[1]["messages"][0]["images"] == [PIXEL], "a changed question keeps its pictures"

    Select(browser.find("#model")).select_by_value("plain:latest")
    browser.wait(lambda: not browser.find("#think").is_displayed())
    ask(browser, "And now?")
    browser.wait(lambda: "has pictures, and plain:latest sees none" in browser.text("#notice-text"))
    assert len(server.asked) == 2 and browser.find("#prompt").get_attribute("value") == "And now?"


def test_what_cannot_be_sent_is_told(browser: Browser, server: PageServer, tmp_path: Path, pixel: Path) -> None:
    server.models = ("plain:latest", "seer:latest")
    (tmp_path / "program").write_bytes(b"\x7fELF\xff\x00")
    (tmp_path / "long.txt").write_bytes(b"x" * 1_000_001)
    browser.open(server.url)
    choose(browser, pixel, tmp_path / "program", tmp_path / "long.txt")
    browser.wait(lambda: browser.find("#notice").is_displayed())
    assert browser.text("#notice-text") == (
        "dot.png is not attached: plain:latest sees no pictures; choose a model that does. "
        "program is not attached: it is neither a picture nor text. "
        "long.txt is not attached: a text may have 1.0 MB."
    )
    Select(browser.find("#model")).select_by_value("seer:latest")
    browser.wait(lambda: browser.run("return document.getElementById('announcer').textContent").startswith("The next"))
    choose(browser, pixel)
    browser.wait(lambda: attached(browser) == ["dot.png"] and not browser.find("#notice").is_displayed())
    Select(browser.find("#model")).select_by_value("plain:latest")
    browser.find("#send").click()
    browser.wait(lambda: "take dot.png away" in browser.text("#notice-text"))
    browser.find(".attached button").click()
    assert attached(browser) == [] and not browser.find("#send").is_enabled() and server.asked == []


def test_files_are_dropped_and_pasted(browser: Browser, server: PageServer, tmp_path: Path, pixel: Path) -> None:
    server.models = ("seer:latest",)
    (tmp_path / "note.txt").write_text("words", encoding="utf-8")
    browser.open(server.url)
    at = {"x": 500, "y": 300, "data": {"items": [], "files": [str(tmp_path / "note.txt")], "dragOperationsMask": 1}}
    for kind in ("dragEnter", "dragOver"):
        browser.command("Input.dispatchDragEvent", type=kind, **at)
    browser.wait(lambda: "dropping" in str(browser.find("#composer").get_attribute("class")))
    browser.command("Input.dispatchDragEvent", type="drop", **at)
    browser.wait(lambda: attached(browser) == ["note.txt"])
    assert "dropping" not in str(browser.find("#composer").get_attribute("class"))

    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.command("Browser.grantPermissions", permissions=permissions, origin=server.url)
    browser.run(
        """
        const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt());
        const picture = new Blob([bytes], { type: 'image/png' });
        return navigator.clipboard.write([new ClipboardItem({ 'image/png': picture })]);
        """,
        PIXEL,
    )
    browser.find("#prompt").send_keys(Keys.CONTROL + "v")
    browser.wait(lambda: len(attached(browser)) == 2 and attached(browser)[1] == "image.png")

    browser.run(DRAWN)  # too large: it is drawn anew
    browser.wait(lambda: len(attached(browser)) == 3)
    browser.find("#send").click()
    ended(browser)
    assert len(server.asked[0]["messages"][0]["images"]) == 2
    assert browser.run("return [...document.querySelectorAll('.question img')].at(-1).naturalWidth") == 4096
