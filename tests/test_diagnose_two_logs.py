"""What diagnose says of two logs beside each other."""

from __future__ import annotations

from rlvr_debug.cli import main
from rlvr_debug.diagnosis.compare import compare, comparison_json, comparison_text
from rlvr_debug.diagnosis.rank import diagnose_log
from rlvr_debug.logs.log import read_log
from tests.in_process import called
from tests.test_diagnose import REAL


def test_what_tells_two_runs_apart_is_said_in_the_order_of_time() -> None:
    good, bad = (
        diagnose_log(read_log(REAL / name), gpus=0) for name in ("healthy-gsm8k", "kl-blow-up")
    )
    found = compare(good, bad)
    assert [each.quantity for each in found.partings][:3] == ["learning_rate", "kl", "reward"]
    assert [each.step for each in found.partings] == sorted(each.step for each in found.partings)
    assert found.found_one == ()
    assert "kl-explodes" in [each.check.name for each in found.found_other]
    text = comparison_text(found)
    assert "Found in B alone:" in text
    assert "Found in A alone:" not in text
    assert "reward-collapses (from kl-runs-away): " in text
    assert comparison_json(found)["learns"] == [True, False]
    turned = compare(bad, good)
    assert turned.found_one == found.found_other
    assert turned.only_one == found.only_other


def test_a_run_beside_itself_is_told_apart_by_nothing() -> None:
    one = diagnose_log(read_log(REAL / "kl-blow-up"), gpus=0)
    found = compare(one, one)
    assert (found.partings, found.found_one, found.found_other) == ((), (), ())
    assert found.found_both
    assert "No quantity that both have parts them for good." in comparison_text(found)


def test_the_study_of_two_logs_is_refused() -> None:
    place = str(REAL / "kl-blow-up")
    done = called(main, "rlvr-debug", "diagnose", place, place, "--overlay-out", "x.yaml")
    assert done.returncode == 2
    assert "--overlay-out: found with two logs" in done.stderr
