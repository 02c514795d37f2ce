"""The page of what a check found: all of the answer stands there, and all that it says is text."""

import re

import pytest

from rlvr_debug.cli import main
from rlvr_debug.cli.shared import print_answer
from rlvr_debug.errors import InputError
from rlvr_debug.replay.answer import answer_text
from rlvr_debug.report.offline import check_html
from tests.check_answer import deviating_answer
from tests.in_process import called

EVIL = '<script>alert(1)</script> & "quoted"'


def test_all_that_the_answer_says_stands_on_the_page() -> None:
    page = check_html(deviating_answer("as it was said"))
    for text in (
        "as it was said: 1 generations and 2 updates",
        "loss: the sign is reversed. as it was said.",
        "After it, and maybe because of it: gradient.",
        "gradient-explosion: mend it.",
        "25%",
        "12.5 times",
        "not seen",
        "row 2: 1 of 4 tokens, and 1 places of padding",
    ):
        assert text in page, text
    assert page.count("as it was said") >= 8


def test_the_tokens_that_deviate_are_marked_and_no_others() -> None:
    page = check_html(deviating_answer("x"))
    assert re.findall(r"<mark[^>]*>(.*?)</mark>", page) == ["third"]
    assert re.findall(r'<span class="token">(.*?)</span>', page) == ["first", "␣second␣", "x"]


def test_what_a_trainer_or_a_model_said_is_text_and_the_page_loads_nothing() -> None:
    page = check_html(deviating_answer(EVIL))
    assert not re.search(r"<script|(?:src|href)=|url\(|@import", page)
    assert "&lt;script&gt;" in page
    assert "script-src &#39;none&#39;" in page or "script-src 'none'" in page


def test_an_answer_in_which_all_agrees_has_no_names_and_no_tokens() -> None:
    answer = deviating_answer("x") | {"first": None, "names": [], "tokens": []}
    answer["segments"] = [each for each in answer["segments"] if each["status"] != "deviates"]
    page = check_html(answer)
    assert 'class="answer agrees"' in page
    assert "Names" not in page
    assert "mark" not in page.partition("</style>")[2]


def test_the_first_prompt_is_shown_on_the_page_and_where_it_is_asked_for() -> None:
    answer = deviating_answer("x") | {"prompt": "<|user|>7 times <6?<|assistant|>"}
    assert "7 times &lt;6?" in check_html(answer)
    assert "7 times" not in answer_text(answer, verbose=True)
    assert answer_text(answer, prompt=True).endswith("reads it:\n<|user|>7 times <6?<|assistant|>")
    assert answer_text(answer | {"prompt": None}, prompt=True).endswith("prompt was not seen")


def test_a_terminal_obeys_nothing_that_a_record_or_a_file_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = "\x1b]0;title\x07\x1b[2J\r\u202e"
    print_answer(answer_text(deviating_answer(sent) | {"prompt": sent}, True, True))
    said = capsys.readouterr().out + str(InputError(f"record.json: found {sent}"))
    assert said.count("title") > 8
    assert all(c.isprintable() or c == "\n" for c in said)


@pytest.mark.parametrize("option", ["--html", "--json-out"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "is a folder, expected a file"),
        ("docs", "is a folder, expected a file"),
        ("README.md/new/page", "is in README.md, which is a file, expected a folder"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_before_anything_is_computed(
    option: str, name: str, said: str
) -> None:
    done = called(main, "rlvr-debug", "check", option, name, "--record", "none")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line == f"error: {option}: {name} {said}"
