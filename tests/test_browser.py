"""The report in a real browser: nothing fails, nothing is loaded, and the viewer's controls do what they say."""

import base64
import functools
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from rlvr_debug.causes import stages_with
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.sampling.chat import Chat
from tests.browsing import EVIL, INKS, LOCAL, MARKS, browser, count, logged, requests
from tests.made_up_study import CAUSE_FOUND, Study, recorded
from tests.small import small_training

__all__ = ["browser"]

pytestmark = MARKS
FAULTS = ["attention-from-loss-mask", "prompt-without-tools", "tool-turn-rendered-alone"]


@pytest.fixture(scope="module")
def page(
    tmp_path_factory: pytest.TempPathFactory, chat: Chat, talkative: Callable[[int], Any]
) -> Path:
    """The report of a made-up study with rollouts of real trainings, one of them with three faults."""
    study = Study(tmp_path_factory.mktemp("results"), CAUSE_FOUND)
    trained = small_training(chat, talkative)
    keep = DiagnosticSettings(1, 6)
    study.record("case", trained(stages_with(FAULTS), diagnostics=keep).rollouts)
    study.record("control", trained(diagnostics=keep).rollouts)
    evil = recorded(EVIL, row=EVIL, outcome=EVIL)
    evil["sampled"]["ids"] = evil["trained"]["ids"] = [10**6, 10**6 + 1, 10**6 + 2]
    study.record("random-reward", [evil])
    study.tables()
    path = study.results / "report.html"
    path.write_text(study.report(), encoding="utf-8")
    return path


@pytest.fixture
def report(browser: Chrome, page: Path) -> Chrome:
    """The report, just opened at its viewer, with every chart drawn, and no network."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    for log in ("performance", "browser"):
        logged(browser, log)  # what came before
    browser.get(page.as_uri())
    charts = functools.partial(browser.find_elements, By.CSS_SELECTOR)
    WebDriverWait(browser, 30).until(
        lambda _: len(charts(".chart[data-drawn]")) == len(charts(".chart")) > 0
    )
    browser.execute_script("document.getElementById('rollouts').scrollIntoView()")
    return browser


def at(report: Chrome, name: str) -> WebElement:
    return report.find_element(By.ID, name)


def choose(report: Chrome, name: str, value: str) -> None:
    Select(at(report, name)).select_by_value(value)


def columns(report: Chrome) -> list[WebElement]:
    return report.find_elements(By.CSS_SELECTOR, "#lanes [data-column]")


def centred(report: Chrome, element: WebElement) -> WebElement:
    """In view, and under nothing that sticks to an edge."""
    report.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def turn(report: Chrome) -> str:
    """The heading of the turn that is marked."""
    [now] = report.find_elements(By.CSS_SELECTOR, "#lanes [aria-current]")
    return now.find_element(By.TAG_NAME, "h4").text


def test_it_asks_no_network_for_anything_and_reports_no_error(report: Chrome, page: Path) -> None:
    for arm in ("control", "random-reward", "case"):
        choose(report, "arm", arm)
    at(report, "next-turn").click()
    asked = requests(report)
    assert page.as_uri() in asked
    assert [url for url in asked if not url.startswith(LOCAL)] == []
    assert [entry["message"] for entry in logged(report, "browser")] == []


def test_every_chart_is_drawn(report: Chrome) -> None:
    assert count(report, ".chart svg") == count(report, ".chart")
    for chart in report.find_elements(By.CSS_SELECTOR, ".chart svg"):
        assert chart.size["width"] > 100
        assert chart.find_elements(By.CSS_SELECTOR, "path, line")
    for place in report.find_elements(By.CSS_SELECTOR, ".chart"):
        label = place.get_attribute("aria-label")
        assert label
        assert label != "Vega visualization"


def test_answer_curve_and_verdicts_stand_on_the_first_screen(report: Chrome) -> None:
    report.execute_script("scrollTo(0, 0)")
    height = report.execute_script("return innerHeight")
    for selector in (".case", ".answer", ".sure", "#answer .chart svg", "table.verdicts"):
        place = report.find_element(By.CSS_SELECTOR, selector).rect
        assert place["y"] >= 0
        assert place["y"] + place["height"] <= height, selector


def test_what_a_model_said_is_shown_and_not_run(report: Chrome) -> None:
    choose(report, "arm", "random-reward")
    centred(report, columns(report)[0]).click()
    assert EVIL in at(report, "token").text
    assert EVIL in at(report, "about").text
    assert report.title == "Study made-up: the case sick"
    assert count(report, "img") == 0


def test_what_the_policy_never_sees_is_marked_in_the_case_and_not_in_the_control(
    report: Chrome,
) -> None:
    assert "NOT SEEN" in report.find_element(By.CSS_SELECTOR, ".turn h4").text
    assert count(report, ".turn:first-child .token.hidden") > 5
    # the tools' descriptions are missing in training: the lower lane has a gap for each
    assert count(report, ".token.gone") == count(report, ".token.other") > 0
    choose(report, "arm", "control")
    assert "NOT SEEN" not in at(report, "lanes").text
    assert count(report, "#lanes .token.hidden, #lanes .token.gone, #lanes .token.other") == 0
    assert count(report, "#lanes .token.p.uncounted") > 5
    assert count(report, "#lanes .token.a.uncounted") == 0


def test_keys_step_through_turns_and_rollouts(report: Chrome) -> None:
    lanes = at(report, "lanes")
    turns = count(report, ".turn")
    assert turns > 1
    assert turn(report).startswith(f"Turn 1 of {turns}: prompt")
    lanes.send_keys(Keys.ARROW_RIGHT)
    assert turn(report).startswith(f"Turn 2 of {turns}: assistant")
    lanes.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert turn(report).startswith("Turn 1 of")
    first = at(report, "about").text
    lanes.send_keys(Keys.ARROW_DOWN)
    assert at(report, "rollout").get_property("value") == "1"
    assert at(report, "about").text != first
    lanes.send_keys(Keys.ARROW_UP)
    assert at(report, "about").text == first


def test_buttons_step_as_the_keys_do_and_end_where_there_is_no_more(report: Chrome) -> None:
    assert not at(report, "previous-turn").is_enabled()
    assert not at(report, "previous-rollout").is_enabled()
    turns = count(report, ".turn")
    for place in range(2, turns + 1):
        at(report, "next-turn").click()
        assert turn(report).startswith(f"Turn {place} of {turns}")
    assert not at(report, "next-turn").is_enabled()
    at(report, "next-rollout").click()
    assert at(report, "rollout").get_property("value") == "1"


def test_another_step_and_arm_show_their_own_rollouts(report: Chrome) -> None:
    steps = [option.text for option in Select(at(report, "step")).options]
    assert steps == ["1", "2"]
    first = [column.get_attribute("aria-label") for column in columns(report)]
    choose(report, "step", "2")
    assert [column.get_attribute("aria-label") for column in columns(report)] != first
    choose(report, "arm", "control")
    assert at(report, "step").get_property("value") == "2"
    assert at(report, "about").text.startswith("control (")


def facts(report: Chrome) -> dict[str, str]:
    pairs = report.find_elements(By.CSS_SELECTOR, "#token dl div")
    names = [pair.find_element(By.TAG_NAME, "dt").text.removesuffix(":") for pair in pairs]
    values = [pair.find_element(By.TAG_NAME, "dd").text for pair in pairs]
    return dict(zip(names, values, strict=True))


def test_a_token_under_the_pointer_tells_its_log_probabilities_their_gap_and_its_advantage(
    report: Chrome,
) -> None:
    """Against the file: the numbers are the recorded ones."""
    packed = str(at(report, "rollouts-data").get_property("textContent"))
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    rollout = data["arms"][0]["rollouts"][0]
    [index, *_] = [i for i, value in enumerate(rollout["trainer"]) if rollout["loss"][i] == "1"]
    place = next(
        number
        for number, column in enumerate(columns(report))
        if f"trained id {rollout['ids'][index]};" in (column.get_attribute("aria-label") or "")
        and "counted by the loss yes" in (column.get_attribute("aria-label") or "")
    )
    ActionChains(report).move_to_element(centred(report, columns(report)[place])).perform()
    told = facts(report)
    sampler, trainer = rollout["sampler"][index], rollout["trainer"][index]
    assert told["role"] == "assistant"
    assert told["counted by the loss"] == "yes"
    assert float(told["log-probability, sampler"]) == pytest.approx(sampler, abs=1e-4)
    assert float(told["log-probability, trainer"]) == pytest.approx(trainer, abs=1e-4)
    gap = told["gap, trainer minus sampler"]
    assert float(gap) == pytest.approx(trainer - sampler, abs=2e-4)
    assert float(told["advantage"]) == pytest.approx(rollout["advantage"], abs=1e-4)


def test_tokens_are_reached_and_told_without_a_mouse(report: Chrome) -> None:
    lanes = at(report, "lanes")
    lanes.send_keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    focused = report.switch_to.active_element
    assert focused.get_attribute("data-column") == "0"
    focused.send_keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    focused = report.switch_to.active_element
    assert focused.get_attribute("data-column") == "1"
    assert "seen by the policy no" in (focused.get_attribute("aria-label") or "")
    assert facts(report)["seen by the policy"] == "no"
    for name in ("arm", "step", "rollout"):
        assert report.execute_script("return arguments[0].labels.length", at(report, name)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_read_by_day_and_by_night(report: Chrome, scheme: str) -> None:
    """Tokens and charts keep their light ground, and what stands on it is dark."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        body = report.find_element(By.TAG_NAME, "body")
        assert body.value_of_css_property("color") == INKS[scheme]
        token = report.find_element(By.CSS_SELECTOR, ".token.a")
        assert token.value_of_css_property("color") == INKS["light"]
        [white] = {
            chart.value_of_css_property("background-color")
            for chart in report.find_elements(By.CSS_SELECTOR, ".chart svg")
        }
        assert scheme == "light" or white == "rgba(255, 255, 255, 1)"
    finally:
        report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [360, 600, 1280])
def test_the_page_fits_its_width(report: Chrome, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    report.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        needed = report.execute_script("return document.documentElement.scrollWidth")
        assert needed <= width
    finally:
        report.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_paper_every_part_begins_a_page_and_nothing_but_content_is_printed(
    report: Chrome,
) -> None:
    report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for selector in ("nav", ".controls", ".pager", "#token"):
            shown = report.find_elements(By.CSS_SELECTOR, selector)
            assert shown
            assert not any(element.is_displayed() for element in shown)
        for part in report.find_elements(By.CSS_SELECTOR, "section.page"):
            assert part.value_of_css_property("break-before") == "page"
        assert at(report, "lanes").is_displayed()
    finally:
        report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    pdf = report.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert re.match("JVBERi", pdf["data"])  # %PDF
