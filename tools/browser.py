"""Chromium without a window, driven by Selenium: for screenshots and for the tests of pages."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--window-size=1280,900",
)  # fmt: skip


def missing() -> str:
    """Which of the two programs is not on the path; "" if both are."""
    browsers = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, browsers)):
        return "needs Chromium on the path"
    return "" if shutil.which("chromedriver") else "needs chromedriver on the path"


@contextmanager
def chromium() -> Iterator[Any]:
    """A driver with a profile of its own, both gone at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def prefer(driver: Any, scheme: str) -> None:
    """Have pages believe that the reader likes "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
