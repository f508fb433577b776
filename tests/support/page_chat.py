"""What several tests of the page do in its chats, and see of them."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.support.chromium import Browser

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def ask(browser: Browser, text: str) -> None:
    browser.find("#prompt").send_keys(text, Keys.ENTER)


def ended(browser: Browser, answers: int = 1) -> None:
    """Waits until so many answers are there, and the last one is whole or was given up."""
    browser.wait(lambda: len(browser.all(".answer .foot")) == answers and browser.find("#stop").get_attribute("hidden"))


def announced(browser: Browser, start: str) -> None:
    browser.wait(lambda: browser.run("return document.getElementById('announcer').textContent").startswith(start))


def titles(browser: Browser) -> list[str]:
    names = browser.run(
        "return [...document.querySelectorAll('.chat-name span:first-child')].map((e) => e.textContent)"
    )
    return [str(name) for name in names]


def press(browser: Browser, words: str, within: str) -> None:
    """Clicks the button that says so, though what is around it may be drawn anew just now."""

    def pressed() -> bool:
        found = next((each for each in browser.all(f"{within} button") if each.text == words), None)
        if found is not None:
            found.click()
        return found is not None

    browser.wait(pressed)


def downloaded(browser: Browser, folder: Path, words: str, within: str) -> Path:
    """The file that a button gives."""
    folder.mkdir(exist_ok=True)
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    press(browser, words, within)

    def whole() -> list[Path]:  # the browser lays an empty file there before
        return [each for each in folder.iterdir() if each.suffix in (".json", ".md") and each.stat().st_size]

    browser.wait(whole)
    return whole()[0]
