"""Debian's Chromium, without a screen, for tests of the page and for its pictures."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 30.0  # a busy machine must not fail a test
ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,860",
)


@contextmanager
def chromium(*more: str) -> Iterator[Browser]:
    """A browser with an empty profile, until the end of `with`. more: arguments of Chromium."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}", *more):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """One window of Chromium, in the words of those who test the page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Loads the page as somebody who was never there."""
        self.load(url)
        self.wait(lambda: self.find("#model").is_enabled())

    def load(self, url: str) -> None:
        """The same, where the page offers no model."""
        self.command("Storage.clearDataForOrigin", origin=url, storageTypes="all")
        self.driver.get(url)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, holds: Callable[[], Any]) -> None:
        """Until it holds; elements may come and go meanwhile."""
        going = [StaleElementReferenceException]
        WebDriverWait(self.driver, PATIENCE_S, 0.02, going).until(lambda _: holds())

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def prefer(self, scheme: str) -> None:
        """The system is "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        """The size of what the page is drawn into, in its own pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last call; breaches of the policy are among them."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]
