"""The pages of a check, of a diagnosis and of docs/ in a real browser: read at any width, by day, by night and on paper."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from rlvr_debug.checkout import ROOT
from rlvr_debug.diagnosis.compare import compare
from rlvr_debug.diagnosis.rank import diagnose, diagnose_log
from rlvr_debug.files import write_text
from rlvr_debug.logs.log import make_log
from rlvr_debug.logs.structured import Rows
from rlvr_debug.report.diagnosis_page import comparison_html, diagnosis_html
from rlvr_debug.report.offline import check_html
from tests.browsing import EVIL, INKS, LOCAL, MARKS, browser, logged, looked_at, requests
from tests.check_answer import deviating_answer
from tests.test_diagnose import REAL

__all__ = ["browser"]

pytestmark = MARKS


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a check in which a segment deviates, with tokens, names and notes that are markup."""
    path = tmp_path_factory.mktemp("check") / "check.html"
    write_text(path, check_html(deviating_answer(EVIL)))
    return path


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a log with all kinds of findings, of two logs, and of one whose texts are markup."""
    folder = tmp_path_factory.mktemp("diagnosed")
    one, other = (diagnose(REAL / name, gpus=0) for name in ("kl-blow-up", "healthy-gsm8k"))
    said = [{"step": 1, "prompt": EVIL, "completion": EVIL, "reward": 0.5}] * 4
    evil = diagnose_log(make_log(EVIL, [Rows("JSONL", said)]), gpus=0)
    pages = {name: folder / f"{name}.html" for name in ("one", "two", "evil")}
    write_text(pages["one"], diagnosis_html(one))
    write_text(pages["two"], comparison_html(compare(other, one)))
    write_text(pages["evil"], diagnosis_html(evil))
    return pages


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_of_a_check_is_read_at_any_width_by_day_and_by_night(
    width: int, scheme: str, browser: Chrome, checked: Path
) -> None:
    with looked_at(browser, checked, width, scheme) as body:
        assert browser.title.startswith("Check of ")
        assert body.text.count(EVIL) >= 3
        marks = browser.find_elements(By.CSS_SELECTOR, "mark")
        assert [mark.text for mark in marks] == ["third"]
        assert marks[0].is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["one", "two", "evil"])
def test_the_page_of_a_diagnosis_is_read_at_any_width_by_day_and_by_night(
    name: str, width: int, scheme: str, browser: Chrome, diagnosed: dict[str, Path]
) -> None:
    with looked_at(browser, diagnosed[name], width, scheme) as body:
        if name == "evil":
            assert EVIL in body.text
            assert browser.title.startswith("Diagnosis of <img")
            return
        drawn = browser.find_elements(By.CSS_SELECTOR, "svg .line")
        assert len(drawn) >= 3
        bands = browser.find_elements(By.CSS_SELECTOR, "svg .band")
        assert bands
        assert all(band.is_displayed() for band in bands)
        marks = browser.find_elements(By.CSS_SELECTOR, ".rollout mark")
        assert "<tool_call>" in marks[0].text
        assert marks[0].is_displayed()
        # a line is no area, and axes are none
        for line in browser.find_elements(By.CSS_SELECTOR, "svg .line, svg .axis"):
            assert line.value_of_css_property("fill") == "none"


def test_the_page_of_a_diagnosis_is_printed_as_by_day(
    browser: Chrome, diagnosed: dict[str, Path]
) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        browser.get(diagnosed["one"].as_uri())
        body = browser.find_element(By.TAG_NAME, "body")
        assert body.value_of_css_property("color") == INKS["light"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert re.match("JVBERi", pdf["data"])  # %PDF


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of docs/, as `make docs` makes them."""
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(place)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=120)
    return place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_the_site_asks_for_anything_or_says_an_error(
    scheme: str, browser: Chrome, site: Path
) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    # 404.html is a server's to show, at its root
    pages = sorted(set(site.glob("*.html")) - {site / "404.html"})
    # one for each page of docs/, and the README
    assert len(pages) == len([*(ROOT / "docs").glob("*.md")]) + 1
    shown = {"light": "rgb(252, 252, 252)", "dark": "rgb(22, 25, 29)"}
    try:
        for log in ("performance", "browser"):
            logged(browser, log)
        for page in pages:
            browser.get(page.as_uri())
            assert [url for url in requests(browser) if not url.startswith(LOCAL)] == [], page.name
            assert [each["message"] for each in logged(browser, "browser")] == [], page.name
            ground = browser.execute_script(
                "return getComputedStyle(document.querySelector('.wy-nav-content')).backgroundColor"
            )
            assert ground == shown[scheme], page.name
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
