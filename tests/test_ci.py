"""A trainer's repository, checked at each change: what counts as new, its annotations, and action.yml's own steps."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.baseline import (
    Before,
    against,
    against_text,
    annotation_lines,
    read_baseline,
)
from rlvr_debug.venvs import build_venv
from tests.in_process import called
from tests.shared import ran
from tests.test_wheel import SCRIPT, environment, tracked

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def answer(**statuses: str) -> dict[str, Any]:
    def told(segment: str, status: str) -> dict[str, Any]:
        head = {"segment": segment, "status": status, "note": f"{segment} is off"}
        if status != "deviates":
            return {**head, "names": []}
        names = [{"name": f"{segment} by halves", "cause": "c"}]
        return {**head, "names": names, "share": 4e3, "deviation": 0.5, "total": 2.0, "ratio": 0.5}

    return {"segments": [told(*each) for each in statuses.items()]}


def before(**statuses: str) -> dict[str, Before]:
    return {each["segment"]: Before(**each) for each in answer(**statuses)["segments"]}


def test_only_what_deviates_and_did_not_is_new() -> None:
    known = before(groups="deviates", loss="agrees", clip="deviates", prompt="not seen")
    now = answer(
        groups="deviates", prompt="deviates", loss="deviates", clip="agrees", mask="deviates"
    )
    found = against(now, known)
    assert found.new == ("prompt", "loss", "mask")
    assert found.still == ("groups",)
    assert found.mended == ("clip",)
    assert against_text(found, Path("b.json")) == (
        "Against b.json: new deviations: prompt, loss, mask; still deviates: groups; fixed: clip."
    )
    assert against(answer(loss="agrees"), {}).new == ()


def test_what_is_not_seen_any_more_is_a_warning_and_no_pass() -> None:
    now = answer(loss="not seen", clip="not seen")
    found = against(now, before(loss="deviates", clip="not seen"))
    assert (found.new, found.mended, found.unseen) == ((), (), ("loss",))
    [line] = annotation_lines(now, found, "train.py")
    assert line == (
        "::warning file=train.py,title=rlvr-debug check::loss is not seen any more: loss is off."
    )


def test_the_first_new_deviation_is_annotated_in_one_line_that_nothing_ends_early() -> None:
    now = answer(groups="deviates", loss="deviates", clip="deviates")
    now["segments"][1]["note"] = "half, 50% off\n::error::not ours"
    found = against(now, before(groups="deviates"))
    [line] = annotation_lines(now, found, "a,b:c.py")
    assert line == (
        "::error file=a%2Cb%3Ac.py,title=rlvr-debug check::loss: loss by halves. "
        "Half, 50%25 off%0A::error::not ours. After it, and maybe because of it: clip."
    )


sizes = st.floats(1e-6, 1e3)
known_losses = st.builds(
    Before, st.just("loss"), st.just("deviates"), st.floats(1e3, 1e9), sizes, sizes, st.floats(-10, 10)
)  # fmt: skip


@given(known_losses, st.lists(st.floats(-1e-4, 1e-4), min_size=3, max_size=3))
def test_what_equal_runs_differ_in_on_other_processors_is_no_change(
    known: Before, noise: list[float]
) -> None:
    now = answer(loss="deviates")
    for name, off in zip(("deviation", "total", "ratio"), noise, strict=True):
        now["segments"][0][name] = float(f"{getattr(known, name) * (1 + off):.6g}")
    assert against(now, {"loss": known}).still == ("loss",)


@given(known_losses, st.sampled_from(["deviation", "total", "ratio"]), st.floats(1.01, 10))
def test_a_deviation_of_another_size_or_sign_is_not_the_one_that_was_known(
    known: Before, name: str, times: float
) -> None:
    assume(name != "ratio" or abs(known.ratio or 0.0) > 0.2)
    for factor in (times, 1 / times, *([-1.0] if name == "ratio" else [])):
        told = asdict(known)
        found = against({"segments": [{**told, name: told[name] * factor}]}, {"loss": known})
        assert (found.otherwise, found.still) == (("loss",), ())


def test_what_is_right_or_wrong_deviates_otherwise_where_its_words_are_others() -> None:
    exact = {"share": None, "deviation": 1, "total": 4, "ratio": None}
    known = {**answer(loss="deviates")["segments"][0], **exact}
    words: list[dict[str, Any]] = [{"note": "another"}, {"names": []}]
    for change in (*words, {"total": 5}, {"deviation": 2}, {}):
        found = against({"segments": [{**known, **change}]}, {"loss": Before(**known)})
        assert bool(found.otherwise) == bool(change)


def test_a_known_deviation_passes_only_as_it_was(folder: Path) -> None:
    """The loss of one update is half of what it should be, and then something else."""
    path, baseline = folder / "tensors.safetensors", folder / "before.json"
    tensors = load_file(path)

    def check(factor: float, *words: str) -> subprocess.CompletedProcess[str]:
        path.unlink()
        changed = {n: t * factor if n.endswith("grad_logprobs") else t for n, t in tensors.items()}
        save_file(changed, path)
        return called(main, "rlvr-debug", "check", "--record", str(folder), *words)

    assert check(0.5, "--json-out", str(baseline)).returncode == 3
    for factor, status in ((0.5, 0), (0.6, 3)):
        done = check(factor, "--baseline", str(baseline), "--annotate")
        assert done.returncode == status, done.stdout
        assert ("changed deviations: loss" in done.stdout) == bool(status)
        assert ("::error title=rlvr-debug check::loss: " in done.stdout) == bool(status)


def test_a_terminal_obeys_no_name_that_a_record_has(folder: Path) -> None:
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    call = record["generations"][0]["reward_calls"][0]
    call["name"], call["returned"][0] = "\x1b]0;title\x07", 9
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    done = called(main, "rlvr-debug", "check", "--record", str(folder), "--annotate")
    assert "::error title=rlvr-debug check::rewards: " in done.stdout
    assert done.stdout.count("]0;title") > 1
    assert all(c.isprintable() or c == "\n" for c in done.stdout)


@pytest.mark.parametrize(("text", "said"), CASES["a baseline that is none is one line"])
def test_a_baseline_that_is_none_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(said)):
        read_baseline(path)


def test_a_baseline_that_is_missing_ends_the_check_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(9)", encoding="utf-8")
    done = called(main, "rlvr-debug", "check", "--baseline", "gone.json", "train.py", root=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: gone.json: ")


def step_of_action(
    repository: Path, action: Path, given: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the action's one step as a runner does: its expressions replaced, in the repository's root."""
    [step] = ACTION["runs"]["steps"]
    inputs = {name: each.get("default", "") for name, each in ACTION["inputs"].items()} | given
    known = {f"inputs.{name}": value for name, value in inputs.items()}
    known["github.action_path"] = str(action)
    variables = {
        name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: known[found[1]], value)
        for name, value in step["env"].items()
    }
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return ran(command, cwd=repository, env={**kept, "OMP_NUM_THREADS": "1", **variables})


@pytest.mark.releases
def test_a_change_that_breaks_the_trainer_fails_with_a_line_and_an_annotation(
    tmp_path: Path,
) -> None:
    try:
        python = build_venv("trl")
    except InputError as error:
        pytest.skip(str(error))
    [beside] = python.parents[1].glob("lib/python3*/site-packages")
    programs, _ = environment(tmp_path, beside, own_pip=True)
    action = tracked(tmp_path / "action")
    repository = tmp_path / "repository"
    repository.mkdir()
    name = "rlvr-debug-baseline.json"
    given = {
        "script": "train.py",
        "arguments": "now\n--smoke\n",  # as YAML hands over several lines
        "python": str(programs / "python"),
        "out": "found",
    }

    def checked(text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """Change the script, and run the step on it."""
        if text:
            (repository / "train.py").write_text(text, encoding="utf-8")
            commit = "git init -q . && git add train.py && git -c user.name=a -c user.email=a@b commit -qm change"
            subprocess.run(["bash", "-ec", commit], cwd=repository, check=True)
        return step_of_action(repository, action, {**given, **more})

    healthy = checked(SCRIPT)
    assert healthy.returncode == 0, healthy.stderr
    assert "::error" not in healthy.stdout
    shutil.copy(repository / "found" / "check.json", repository / name)

    broken = checked(SCRIPT.replace('"broken" in sys.argv', '"--smoke" in sys.argv'), baseline=name)
    assert broken.returncode == 3, broken.stderr
    assert f"Against {name}: new deviations: loss" in broken.stdout
    [line] = [line for line in broken.stdout.splitlines() if line.startswith("::error")]
    assert line.startswith("::error file=train.py,title=rlvr-debug check::loss: ")
    assert (repository / "found" / "check.html").is_file()
    found = json.loads((repository / "found" / "check.json").read_text(encoding="utf-8"))
    assert found["against"]["new"][0] == "loss"

    # what deviated before the change is no reason to fail it
    shutil.copy(repository / "found" / "check.json", repository / name)
    known = checked(baseline=name)
    assert known.returncode == 0, known.stderr
    assert "still deviates: loss" in known.stdout
    words = ["check", "--baseline", name, "--annotate", "train.py", "--smoke"]
    installed = ran([str(programs / "rlvr-debug"), *words], cwd=repository)
    assert installed.returncode == 0, installed.stderr
    # it leaves the repository's own files alone
    status = ran(["git", "status", "--porcelain"], cwd=repository, check=True)
    assert set(status.stdout.split()) == {"??", "found/", name}
