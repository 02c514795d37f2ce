"""A real browser: started once for a file of tests, with no network of its own, and what it asked for and said."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MARKS = [
    pytest.mark.chromium,
    pytest.mark.heavy,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="chromium or chromedriver is missing (Debian: chromium, chromium-driver)",
    ),
]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1280,800",
)
EVIL = "<img src=x onerror=\"document.title='run'\"></script><script>document.title='run'</script>"
LOCAL = ("file:", "data:", "blob:")
INKS = {"light": "rgba(34, 34, 34, 1)", "dark": "rgba(230, 230, 230, 1)"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = Chrome(options=options, service=Service(DRIVER))
    browser.get("about:blank")  # not the page of a new tab, which loads its own
    yield browser
    browser.quit()


def logged(browser: Chrome, name: str) -> list[dict[str, Any]]:
    """Since this was last asked for."""
    entries: list[dict[str, Any]] = browser.get_log(name)  # type: ignore[no-untyped-call]
    return entries


def count(report: Chrome, selector: str) -> int:
    return len(report.find_elements(By.CSS_SELECTOR, selector))


def requests(report: Chrome) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in logged(report, "performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


@contextmanager
def looked_at(browser: Chrome, page: Path, width: int, scheme: str) -> Iterator[WebElement]:
    """Yield the body of a page as a reader has it; it asked for nothing, said no error, and fits the width."""
    for log in ("performance", "browser"):
        logged(browser, log)
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        browser.get(page.as_uri())
        assert [url for url in requests(browser) if not url.startswith(LOCAL)] == []
        assert [entry["message"] for entry in logged(browser, "browser")] == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        body = browser.find_element(By.TAG_NAME, "body")
        assert body.value_of_css_property("color") == INKS[scheme]
        assert count(browser, "img, script") == 0
        yield body
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
